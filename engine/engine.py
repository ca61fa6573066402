"""The engine as its callers see it: text or token ids in, outputs out. Validates; everything else is the core's."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import InvalidRequest, PromptTooLong
from ..telemetry.events import Keyframe, RequestRefused
from .controls import Controls
from .core import EngineCore
from .forks import leave_in_forks
from .request import OnFinish, OnOutput, Request
from .request_fields import Prompt, as_name, as_route, as_token_ids, recordable
from .sampling_params import GenerationDefaults, SamplingParams, check_token_ids

if TYPE_CHECKING:
    from ..models.tokenizer import AnyTokenizer
    from .exporting import Exporting

Message = dict[str, str]


class Engine(Controls):
    """One engine. Not thread-safe: one thread adds requests and steps.

    Args:
        core: the step loop.
        tokenizer: None where only token ids come and go.
        defaults: what the model suggests where a request says nothing.
        vocab_size: every token id is below it.

    Attributes:
        exporting: the exporter's process, where there is one; whoever starts it sets this, and `close` ends it.
    """

    def __init__(
        self, core: EngineCore, tokenizer: AnyTokenizer | None, defaults: GenerationDefaults, vocab_size: int
    ) -> None:
        super().__init__(core, tokenizer, vocab_size)
        leave_in_forks(core)
        self.defaults = defaults
        self.exporting: Exporting | None = None
        self._ids = itertools.count()

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self.core.has_work

    def new_request_id(self) -> str:
        """A request id that no live request has."""
        while True:
            name = f"req-{next(self._ids)}"
            if name not in self.core.requests:
                return name

    def add_request(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int | None = None,
        on_output: OnOutput | None = None,
        on_finish: OnFinish | None = None,
        on_pause: OnFinish | None = None,
        traceparent: str | None = None,
        route: Mapping[str, str | int] | None = None,
    ) -> str:
        """Validate a request and queue it.

        Args:
            prompt: a text, or token ids.
            params: None takes the defaults.
            request_id: a name of the caller's; None makes one.
            priority: overrides `params.priority`; lower is more urgent.
            on_output: called with each Delta as it comes, from within `step`.
            on_finish: called once with the RequestOutput, from within `step` or `abort`.
            on_pause: called with the RequestOutput so far whenever some of its sequences are paused and none of the
                others runs or waits.
            traceparent: W3C trace context of the caller.
            route: what a fleet's router decided on, and why, for the record.

        Returns:
            The request id.

        Raises:
            InvalidRequest: naming the field; nothing but the refusal is recorded.
            EngineDead: the engine was closed.
        """
        self.core.require_open()
        name = request_id if request_id is not None else self.new_request_id()
        try:
            if traceparent is not None:
                traceparent = as_name("traceparent", traceparent)
            told = None if route is None else as_route(route)
            request = self.prepare(prompt, params, name, priority)
            name = request.request_id
            request.on_output, request.on_finish, request.on_pause = on_output, on_finish, on_pause
            request.traceparent, request.route = traceparent, told
            self.core.add(request)
        except InvalidRequest as error:
            self.refuse(name, error, traceparent)
            raise
        return name

    def prepare(
        self, prompt: Prompt, params: SamplingParams | None, request_id: str, priority: int | None = None
    ) -> Request:
        """A validated request that is not queued yet; changes nothing.

        Raises:
            InvalidRequest: naming the field.
            EngineDead: the engine was closed.
        """
        self.core.require_open()
        request_id = as_name("request_id", request_id)
        if not request_id:
            raise InvalidRequest("request_id", "request_id='': must not be empty; None makes one")
        if params is not None and not isinstance(params, SamplingParams):
            raise InvalidRequest("params", f"params: must be SamplingParams, not {type(params).__name__}")
        resolved = (SamplingParams() if params is None else params).resolve(self.defaults)
        if priority is not None:
            resolved = replace(resolved, priority=priority)
        resolved.validate_for_model(self.vocab_size)
        token_ids = self._token_ids(prompt)
        if resolved.stop and self.tokenizer is None:
            raise InvalidRequest("stop", "stop strings need a tokenizer; this model has none: use stop_token_ids")
        return Request(
            request_id=request_id,
            prompt=prompt if isinstance(prompt, str) else None,
            prompt_token_ids=token_ids,
            params=resolved,
            decoder=self.tokenizer,
            bad_words_ids=self._bad_words_ids(resolved.bad_words),
        )

    def chat_prompt(self, messages: list[Message]) -> list[int]:
        """Token ids of a conversation.

        Raises:
            InvalidRequest: no messages, one without role or content, or a model without a chat template.
        """
        if not isinstance(messages, list | tuple):
            raise InvalidRequest("messages", f"messages: must be a list of messages, not {type(messages).__name__}")
        if not messages:
            raise InvalidRequest("messages", "messages=[]: at least one message is needed")
        for index, message in enumerate(messages):
            if not isinstance(message, dict) or not isinstance(message.get("role"), str):
                raise InvalidRequest("messages", f"messages[{index}]: a message is an object with role and content")
            if not isinstance(message.get("content"), str):
                raise InvalidRequest("messages", f"messages[{index}].content: must be a text")
        if self.tokenizer is None:
            raise InvalidRequest("messages", "this model has no tokenizer, so no chat template: send token ids")
        return self.tokenizer.apply_chat_template(messages)

    def refuse(self, request_id: str, error: InvalidRequest, traceparent: str | None = None) -> None:
        """Record a request that was turned away, under the names it gave as far as a journal can hold them."""
        core = self.core
        request_id, traceparent = recordable(request_id) or "", recordable(traceparent)
        core.recorder.record(RequestRefused(core.clock(), request_id, error.field, type(error).__name__, traceparent))
        core.flush()

    def step(self) -> bool:
        """Compute one step; False when there was nothing to do. Callbacks are called from here.

        Raises:
            EngineDead: the engine was closed.
        """
        return self.core.step()

    def abort(self, request_id: str) -> bool:
        """End a live request; False when there is none of this id."""
        return isinstance(request_id, str) and self.core.abort(request_id)

    def snapshot(self) -> Keyframe:
        """The whole state now: sequences, queues and blocks, without any content."""
        return self.core.keyframe()

    def close(self) -> None:
        """Abort what is left, end the journal, give back the device; let the exporter send what it has left."""
        try:
            self.core.close()
        finally:
            exporting, self.exporting = self.exporting, None
            if exporting is not None:
                exporting.finish()

    def _token_ids(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise InvalidRequest("prompt", "this model has no tokenizer: send token ids")
            token_ids = self.tokenizer.encode(prompt)
        else:
            token_ids = as_token_ids(prompt)
        if not token_ids:
            raise InvalidRequest("prompt", "prompt is empty: at least one token is needed")
        check_token_ids("prompt", token_ids, self.vocab_size)
        if len(token_ids) >= self.max_model_len:
            raise PromptTooLong(
                "prompt",
                f"prompt has {len(token_ids)} tokens: at most {self.max_model_len - 1} fit, "
                f"since max_model_len={self.max_model_len} holds prompt and output",
            )
        return token_ids

    def _bad_words_ids(self, bad_words: list[str]) -> list[list[int]]:
        """Token ids of each bad word, as it stands at the start of a text and after a space."""
        if not bad_words:
            return []
        if self.tokenizer is None:
            raise InvalidRequest("bad_words", "bad words need a tokenizer; this model has none: use logit_bias")
        forms = [form for word in bad_words for form in (word, " " + word.lstrip())]
        found = {tuple(self.tokenizer.encode(form, add_special_tokens=False)) for form in forms}
        return [list(ids) for ids in sorted(found) if ids]
