"""Answers in OpenAI's two forms, whole and in chunks, out of the engine's outputs. Knows no HTTP and no engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..engine.outputs import CompletionOutput, Delta, RequestOutput
from .logprobs import LegacyLogprobs, chat_logprobs
from .token_text import TokenTexts

Json = dict[str, Any]


@dataclass
class Ending:
    """How a choice ended, in an answer's words."""

    finish_reason: str | None
    stop_reason: int | str | None
    pause_reason: str | None = None

    @classmethod
    def of(cls, part: Delta | CompletionOutput, timed_out: bool) -> Ending:
        """Of a piece or a whole output; one that is paused has the finish reason "pause"."""
        if part.pause_reason is not None:
            return cls("pause", part.stop_reason, part.pause_reason)
        is_late = timed_out and part.finish_reason == "abort"
        return cls(part.finish_reason, "timeout" if is_late else part.stop_reason)

    def fields(self) -> Json:
        """The fields of a choice that say it."""
        found: Json = {"finish_reason": self.finish_reason, "stop_reason": self.stop_reason}
        return found if self.pause_reason is None else found | {"pause_reason": self.pause_reason}


@dataclass
class Shape(ABC):
    """The form of one answer. A choice's index is place of the prompt * n + index of the sequence.

    Attributes:
        name: the answer's id.
        model: by the name that it was asked for.
        created: seconds since 1970.
        fingerprint: of the system.
        n: sequences of each prompt.
        include_usage: whether chunks carry usage: null in all but the last, which carries nothing else.
        wants_logprobs: whether choices carry log-probabilities.
        texts: of the vocabulary.
    """

    name: str
    model: str
    created: int
    fingerprint: str
    n: int
    include_usage: bool
    wants_logprobs: bool
    texts: TokenTexts

    kind = ""
    chunk_kind = ""

    def answer(self, outputs: Sequence[RequestOutput], timed_out: bool) -> Json:
        """The whole answer."""
        choices = [
            self.choice(place, output, each, Ending.of(each, timed_out))
            for place, output in enumerate(outputs)
            for each in output.outputs
        ]
        return self._frame(self.kind, choices) | {"usage": self.usage(outputs)}

    def openings(self) -> list[Json]:
        """The chunks before the first piece."""
        return []

    def chunk(self, place: int, delta: Delta, timed_out: bool) -> Json | None:
        """The chunk of a piece; None where it holds nothing to tell."""
        ending = Ending.of(delta, timed_out)
        if not (delta.text or ending.finish_reason or (self.wants_logprobs and delta.logprobs)):
            return None
        return self.chunk_of([self.piece(place * self.n + delta.index, delta, ending)])

    def chunk_of(self, choices: list[Json]) -> Json:
        """A chunk of these choices."""
        chunk = self._frame(self.chunk_kind, choices)
        return chunk | {"usage": None} if self.include_usage else chunk

    def closings(self, outputs: Sequence[RequestOutput], timed_out: bool) -> list[Json]:
        """The chunks behind the last piece: one without choices that holds the usage, where that was asked for."""
        return [self._frame(self.chunk_kind, []) | {"usage": self.usage(outputs)}] if self.include_usage else []

    def usage(self, outputs: Sequence[RequestOutput]) -> Json:
        """Tokens in (each prompt once) and out (every id that was generated, over all choices)."""
        prompt = sum(len(output.prompt_token_ids) for output in outputs)
        completion = self.generated(outputs)
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def generated(self, outputs: Sequence[RequestOutput]) -> int:
        """Tokens that were generated for the client."""
        return sum(len(each.token_ids) for output in outputs for each in output.outputs)

    def for_resume(self, name: str) -> Shape:
        """The form of the answers of a later turn of the request of one prompt, which go by its own name."""
        return replace(self, name=name, include_usage=False)

    @abstractmethod
    def choice(self, place: int, output: RequestOutput, each: CompletionOutput, ending: Ending) -> Json:
        """A choice of the whole answer."""

    @abstractmethod
    def piece(self, index: int, delta: Delta, ending: Ending) -> Json:
        """A choice of a chunk."""

    def _frame(self, kind: str, choices: list[Json]) -> Json:
        return {
            "id": self.name,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }


@dataclass
class CompletionShape(Shape):
    """The form of a completion.

    Attributes:
        echoes: the text of each prompt, to be put in front; empty: none is.
        only_scores: the one token that was generated is left out: only the prompt was to be scored.
        invisible: ids that texts leave out.
    """

    echoes: list[str] = field(default_factory=list)
    only_scores: bool = False
    invisible: frozenset[int] = frozenset()
    _legacy: dict[int, LegacyLogprobs] = field(default_factory=dict)

    kind = chunk_kind = "text_completion"

    @property
    def _is_late(self) -> bool:
        """Whether nothing can be told before the end: a prompt's log-probabilities come first, and are known then."""
        return bool(self.echoes) and self.wants_logprobs

    def openings(self) -> list[Json]:
        """The prompts' texts, where they are wanted."""
        if self._is_late:
            return []
        return [
            self.chunk_of([self._choice(place * self.n + index, echo, None, Ending(None, None))])
            for place, echo in enumerate(self.echoes)
            for index in range(self.n)
        ]

    def closings(self, outputs: Sequence[RequestOutput], timed_out: bool) -> list[Json]:
        """The chunks behind the last piece: each choice as a whole, where that could not be told earlier; usage."""
        choices = self.answer(outputs, timed_out)["choices"] if self._is_late else []
        return [*(self.chunk_of([choice]) for choice in choices), *super().closings(outputs, timed_out)]

    def for_resume(self, name: str) -> Shape:
        """The form of the answers of a later turn: no prompt is in front of them."""
        return replace(self, name=name, include_usage=False, echoes=[], only_scores=False, _legacy={})

    def generated(self, outputs: Sequence[RequestOutput]) -> int:
        """None, where only the prompt was to be scored."""
        return 0 if self.only_scores else super().generated(outputs)

    def choice(self, place: int, output: RequestOutput, each: CompletionOutput, ending: Ending) -> Json:
        """A choice of the whole answer, the prompt in front where that is wanted."""
        index = place * self.n + each.index
        text, ids, entries = each.text, each.token_ids, each.logprobs or []
        if self.only_scores:
            text, ids, entries, ending = "", [], [], Ending("length", None)
        legacy = None
        if self.wants_logprobs:
            writer = LegacyLogprobs(self.texts, self.invisible)
            if self.echoes:
                writer.take_prompt(output.prompt_token_ids, output.prompt_logprobs or (), self.echoes[place])
            legacy = writer.take(ids, entries)
        return self._choice(index, self.echoes[place] + text if self.echoes else text, legacy, ending)

    def piece(self, index: int, delta: Delta, ending: Ending) -> Json:
        """A choice of a chunk."""
        legacy = None
        if self.wants_logprobs and delta.token_ids:
            writer = self._legacy.get(index)
            if writer is None:
                writer = self._legacy[index] = LegacyLogprobs(self.texts, self.invisible)
            legacy = writer.take(delta.token_ids, delta.logprobs or ())
        return self._choice(index, delta.text, legacy, ending)

    def chunk(self, place: int, delta: Delta, timed_out: bool) -> Json | None:
        """The chunk of a piece."""
        if self._is_late:
            return None
        if self.only_scores:
            delta = Delta(delta.index, "", [], "length" if delta.finish_reason else None)
        return super().chunk(place, delta, timed_out)

    @staticmethod
    def _choice(index: int, text: str, logprobs: Json | None, ending: Ending) -> Json:
        return {"index": index, "text": text, "logprobs": logprobs, **ending.fields()}


@dataclass
class ChatShape(Shape):
    """The form of a chat completion."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def openings(self) -> list[Json]:
        """Whose answer it is, for each choice."""
        return [
            self.chunk_of([self._piece(index, {"role": "assistant", "content": ""}, None, Ending(None, None))])
            for index in range(self.n)
        ]

    def choice(self, place: int, output: RequestOutput, each: CompletionOutput, ending: Ending) -> Json:
        """A choice of the whole answer."""
        message = {"role": "assistant", "content": each.text, "refusal": None}
        logprobs = chat_logprobs(self.texts, each.logprobs or ()) if self.wants_logprobs else None
        return {"index": each.index, "message": message, "logprobs": logprobs, **ending.fields()}

    def piece(self, index: int, delta: Delta, ending: Ending) -> Json:
        """A choice of a chunk."""
        wanted = self.wants_logprobs and delta.logprobs
        logprobs = chat_logprobs(self.texts, delta.logprobs or ()) if wanted else None
        return self._piece(index, {"content": delta.text} if delta.text else {}, logprobs, ending)

    @staticmethod
    def _piece(index: int, delta: Mapping[str, Any], logprobs: Json | None, ending: Ending) -> Json:
        return {"index": index, "delta": dict(delta), "logprobs": logprobs, **ending.fields()}
