"""The engine as its callers see it: text or token ids in, outputs out. Validates; everything else is the core's."""

from __future__ import annotations

import itertools
import numbers
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import InvalidRequest, NotPaused, PromptTooLong, UnknownRequest
from ..telemetry.events import Keyframe, RequestRefused
from .core import EngineCore
from .request import OnFinish, OnOutput, Request
from .sampling_params import GenerationDefaults, SamplingParams, check_token_ids, check_whole
from .sequence import Sequence as EngineSequence
from .sequence import SequenceStatus

if TYPE_CHECKING:
    from ..models.tokenizer import AnyTokenizer

Prompt = str | Sequence[int]
Message = dict[str, str]
MAX_NAME = 256  # characters of a request id or a traceparent


class Engine:
    """One engine. Not thread-safe: one thread adds requests and steps.

    Args:
        core: the step loop.
        tokenizer: None where only token ids come and go.
        defaults: what the model suggests where a request says nothing.
        vocab_size: every token id is below it.
    """

    def __init__(
        self, core: EngineCore, tokenizer: AnyTokenizer | None, defaults: GenerationDefaults, vocab_size: int
    ) -> None:
        self.core = core
        self.tokenizer = tokenizer
        self.defaults = defaults
        self.vocab_size = vocab_size
        self._ids = itertools.count()

    @property
    def max_model_len(self) -> int:
        """Longest prompt + output of a sequence."""
        return self.core.max_model_len

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
            request = self.prepare(prompt, params, name, priority)
            name = request.request_id
            request.on_output, request.on_finish, request.on_pause = on_output, on_finish, on_pause
            request.traceparent = traceparent
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

    def pause(self, request_id: str, index: int | None = None, reason: str = "operator") -> bool:
        """Pause a request's sequences, or the one of this index; they keep their KV and give up their slot.

        Args:
            request_id: a live request.
            index: which of its n sequences; None: all that run or wait.
            reason: "operator", or "await_input" where the caller is going to append something (a tool's answer).

        Returns:
            Whether a sequence was paused now.

        Raises:
            UnknownRequest: no live request has this id.
            InvalidRequest: naming the argument.
            EngineDead: the engine was closed.
        """
        if reason not in ("operator", "await_input"):
            raise InvalidRequest("reason", f"reason={reason!r}: must be 'operator' or 'await_input'")
        return self.core.pause(self._sequences(request_id, index), reason)

    def resume(
        self,
        request_id: str,
        append: Prompt | None = None,
        max_tokens: int | None = None,
        index: int | None = None,
    ) -> None:
        """Let paused sequences go on, where they stopped or behind something new. What is cached is not computed again.

        Args:
            request_id: a live request.
            append: a text or token ids that come after what the sequence has: the next turn of a conversation. They
                are part of neither the prompt nor the output; special tokens are read as such, none are added.
            max_tokens: generated tokens from here on. None: with `append`, the request's own `max_tokens` once more;
                without it, what is left of them.
            index: which of the n sequences; None: all that are paused.

        Raises:
            UnknownRequest: no live request has this id.
            NotPaused: nothing of it is paused, or not the one of this index.
            InvalidRequest: naming the argument; nothing has changed.
            EngineDead: the engine was closed.
        """
        paused = self._paused(request_id, index)
        token_ids = [] if append is None else self._appended(append)
        limits = [self._limit(seq, token_ids, max_tokens) for seq in paused]
        self.core.resume(paused, token_ids, limits)

    def finish(self, request_id: str, index: int | None = None) -> None:
        """End paused sequences in order: what they have generated is their output.

        Raises:
            UnknownRequest: no live request has this id.
            NotPaused: nothing of it is paused, or not the one of this index.
            EngineDead: the engine was closed.
        """
        self.core.finish(self._paused(request_id, index))

    def set_priority(self, request_id: str, priority: int) -> None:
        """Change the priority of a live request; lower is more urgent. It acts under policy="priority".

        Raises:
            UnknownRequest: no live request has this id.
            InvalidRequest: it is no whole number in range.
            EngineDead: the engine was closed.
        """
        self.core.set_priority(self._sequences(request_id, None), check_whole("priority", priority))

    @property
    def engine_paused(self) -> str:
        """Why the engine plans no steps; "" while it does."""
        return self.core.scheduler.paused

    def pause_engine(self, cause: str = "operator") -> None:
        """Plan no more steps; what is in flight is read. Paused sequences don't expire meanwhile.

        Raises:
            EngineDead: the engine was closed.
        """
        self.core.require_open()
        self.core.pause_engine(as_name("cause", cause) or "operator")

    def continue_engine(self, num_steps: int = 0) -> None:
        """Plan on: this many steps, then pause again; 0: until someone pauses it.

        Raises:
            InvalidRequest: num_steps is no whole number of at least 0.
            EngineDead: the engine was closed.
        """
        self.core.require_open()
        if not isinstance(num_steps, int) or isinstance(num_steps, bool) or num_steps < 0:
            raise InvalidRequest("num_steps", f"num_steps={num_steps!r}: must be a whole number of at least 0")
        self.core.continue_engine(num_steps)

    def add_breakpoint(self, predicate: str, action: str = "engine") -> int:
        """Pause the engine, or the sequence concerned, after the step in which an event meets the predicate.

        Args:
            predicate: as `on=preempted`, `on=status to=PAUSED`, `on=blocks.allocated free<10`, `seq=17`; see
                telemetry/predicate.py.
            action: "engine" or "sequence".

        Returns:
            The breakpoint's number.

        Raises:
            InvalidRequest: it can't be understood, or the engine records nothing.
            EngineDead: the engine was closed.
        """
        self.core.require_open()
        return self.core.watch(predicate, action)

    def remove_breakpoint(self, number: int) -> bool:
        """Remove a breakpoint; False when there is none of this number."""
        return self.core.unwatch(number)

    @property
    def breakpoints(self) -> dict[int, str]:
        """The breakpoints by number, each in words."""
        return self.core.breakpoints.listed

    @property
    def next_deadline(self) -> int | None:
        """When the next paused sequence expires (a `step` does it), in clock nanoseconds; None: none will."""
        return self.core.next_deadline

    def die(self, message: str) -> None:
        """End every open request in ERROR with this message, and the engine: each later call raises EngineDead."""
        self.core.die(message)

    def snapshot(self) -> Keyframe:
        """The whole state now: sequences, queues and blocks, without any content."""
        return self.core.keyframe()

    def close(self) -> None:
        """Abort what is left, end the journal, give back the device."""
        self.core.close()

    def _sequences(self, request_id: str, index: int | None) -> list[EngineSequence]:
        self.core.require_open()
        request = self.core.requests.get(request_id) if isinstance(request_id, str) else None
        if request is None:
            raise UnknownRequest(f"no live request has the id {recordable(request_id) or request_id!r}")
        if index is None:
            return list(request.sequences)
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(request.sequences):
            raise InvalidRequest("index", f"index={index!r}: the request has sequences 0 to {len(request.sequences) - 1}")
        return [request.sequences[index]]

    def _paused(self, request_id: str, index: int | None) -> list[EngineSequence]:
        sequences = self._sequences(request_id, index)
        paused = [seq for seq in sequences if seq.status is SequenceStatus.PAUSED]
        if not paused:
            states = ", ".join(sorted({seq.status.value for seq in sequences if seq.status}))
            raise NotPaused(f"request {request_id} is not paused: {states}")
        return paused

    def _appended(self, append: Prompt) -> list[int]:
        """Token ids to put after those of a sequence."""
        if isinstance(append, str):
            if self.tokenizer is None:
                raise InvalidRequest("append", "this model has no tokenizer: append token ids")
            try:
                token_ids = self.tokenizer.encode(append, add_special_tokens=False)
            except InvalidRequest as error:
                raise InvalidRequest("append", str(error).replace("prompt", "append", 1)) from None
        else:
            token_ids = as_token_ids(append, "append")
        check_token_ids("append", token_ids, self.vocab_size)
        return token_ids

    def _limit(self, seq: EngineSequence, token_ids: list[int], max_tokens: int | None) -> int:
        """Tokens that a paused sequence may have generated in all when it goes on."""
        total = len(seq.token_ids) + len(token_ids)
        if total >= self.max_model_len:
            raise InvalidRequest(
                "append",
                f"sequence {seq.seq_id} would have {total} tokens: at most {self.max_model_len - 1} leave room for one "
                f"more, since max_model_len={self.max_model_len}",
            )
        done = seq.num_output_tokens
        if max_tokens is not None:
            return done + check_whole("max_tokens", max_tokens)
        if token_ids:
            own = seq.params.max_tokens
            return self.max_model_len if own is None else done + own
        if done >= seq.max_tokens:
            raise InvalidRequest(
                "max_tokens", f"sequence {seq.seq_id} has generated its {done} tokens: give max_tokens for more"
            )
        return seq.max_tokens

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


def as_name(field: str, value: object) -> str:
    """A request id or traceparent as a plain string that a journal can hold.

    Raises:
        InvalidRequest: with that field: no string, too long, or a lone surrogate in it.
    """
    if not isinstance(value, str):
        raise InvalidRequest(field, f"{field}: must be a string, not {type(value).__name__}")
    if len(value) > MAX_NAME:
        raise InvalidRequest(field, f"{field} has {len(value)} characters: must be at most {MAX_NAME}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        message = f"{field} holds a lone surrogate at character {error.start}: send Unicode"
        raise InvalidRequest(field, message) from None
    return str.__str__(value)  # a subclass is no string to the journal


def recordable(value: object) -> str | None:
    """A name as a refusal is recorded under it: escaped and cut if need be; None where it is no string."""
    return value[:MAX_NAME].encode(errors="backslashreplace").decode() if isinstance(value, str) else None


def as_token_ids(prompt: object, field: str = "prompt") -> list[int]:
    """The items of a sequence or an array, whole numbers as plain ints; others are left for the check of ids.

    Raises:
        InvalidRequest: with that field, naming the type of what is neither.
    """
    is_list = isinstance(prompt, Sequence) and not isinstance(prompt, str | bytes | bytearray | memoryview)
    is_array = hasattr(prompt, "dtype") and hasattr(prompt, "tolist")
    items: object = prompt if is_list else prompt.tolist() if is_array else None  # type: ignore[attr-defined]
    if not isinstance(items, Sequence) or isinstance(items, str):  # an array without dimensions holds no list
        kind = type(prompt).__name__
        raise InvalidRequest(field, f"{field}: must be a text or a list of token ids, not {kind}")
    token_ids = list(items)
    if all(type(item) is int for item in token_ids):
        return token_ids
    return [t if isinstance(t, bool) or not isinstance(t, numbers.Integral) else int(t) for t in token_ids]
