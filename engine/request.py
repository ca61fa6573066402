"""A request: what a caller asked for, the sequences that answer it, what is handed back. Knows no queue, no block."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from .detokenizer import TextStream, TokenDecoder
from .outputs import CompletionOutput, Delta, RequestMetrics, RequestOutput
from .plan import TokenLogprobs
from .sampling_params import SamplingParams
from .sequence import Sequence, SequenceStatus

logger = logging.getLogger("nanolens.engine")

OnOutput = Callable[[Delta], None]
OnFinish = Callable[[RequestOutput], None]


@dataclass(slots=True)
class Request:
    """One request and everything that is kept for it until it has ended.

    Attributes:
        request_id: the caller's name for it, unique among live requests.
        prompt: its text, where it came as text.
        params: resolved sampling parameters.
        decoder: turns token ids into text; None where only ids are wanted.
        on_output: is given each piece of output as it comes.
        on_finish: is given the whole output once.
        on_pause: is given the output so far whenever none of the sequences runs or waits any more, and some are paused.
        traceparent: W3C trace context of the caller.
        route: what a fleet's router decided on, and why.
        streams: text so far of each sequence; only for requests that stream or have stop strings.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    decoder: TokenDecoder | None = None
    on_output: OnOutput | None = None
    on_finish: OnFinish | None = None
    on_pause: OnFinish | None = None
    traceparent: str | None = None
    route: dict[str, str | int] | None = None
    bad_words_ids: list[list[int]] = field(default_factory=list)
    sequences: list[Sequence] = field(default_factory=list)
    streams: list[TextStream] = field(default_factory=list)
    logprobs: list[list[TokenLogprobs]] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    error: str | None = None

    @property
    def finished(self) -> bool:
        """Whether all its sequences have ended."""
        return all(not seq.is_live for seq in self.sequences)

    @property
    def at_rest(self) -> bool:
        """Whether some of its sequences are paused and none of the others runs or waits."""
        live = [seq for seq in self.sequences if seq.is_live]
        return bool(live) and all(seq.status is SequenceStatus.PAUSED for seq in live)

    def open_streams(self) -> None:
        """Begin to decode as tokens come, where someone reads them, a stop string has to be found, or it will pause."""
        p = self.params
        self.logprobs = [[] for _ in self.sequences]
        if p.prompt_logprobs is not None:
            self.prompt_logprobs = [None] * len(self.prompt_token_ids)
        if self.on_output is not None or p.stop or p.on_stop == "pause" or p.pause_after_prefill:
            self._make_streams()

    def push(self, index: int, token: int) -> tuple[str, str | None]:
        """Decode one more token of a sequence: the text that became final, and the stop string met, if any."""
        if not self.streams:
            return "", None
        return self.streams[index].push([token])

    def keep_text(self) -> None:
        """Have the text of each sequence kept as it came: a pause may part it. What was not decoded yet is now."""
        if self.streams or self.decoder is None:
            return
        self._make_streams()
        for stream, seq in zip(self.streams, self.sequences, strict=True):
            ids = seq.output_token_ids
            if seq.reason == "stop" and not self.params.include_stop_str_in_output:
                ids = ids[:-1]
            stream.push(ids)
            if not seq.is_live:
                stream.finish()

    def go_on(self, index: int, appended: bool) -> str:
        """Prepare the text of a sequence that goes on, after tokens that are not part of it; what was held back."""
        if not self.streams:
            return ""
        stream, seq = self.streams[index], self.sequences[index]
        return stream.begin_again(seq.token_ids[-1]) if appended or stream.ended else ""

    def _make_streams(self) -> None:
        p = self.params
        if self.decoder is not None:
            self.streams = [
                TextStream(self.decoder, p.skip_special_tokens, p.stop, p.include_stop_str_in_output, p.min_tokens)
                for _ in self.sequences
            ]

    def take_prompt_logprobs(self, start: int, values: list[TokenLogprobs]) -> None:
        """Keep the log-probabilities of the prompt's positions start+1 and on; the siblings' are the same."""
        if self.params.prompt_logprobs is not None:
            end = min(start + 1 + len(values), len(self.prompt_token_ids))
            self.prompt_logprobs[start + 1 : end] = values[: end - start - 1]

    def close_stream(self, index: int) -> tuple[str, str | None]:
        """The text of an ended sequence that was held back, and the stop string that it completes, if any."""
        return self.streams[index].finish() if self.streams else ("", None)

    def held_back(self, index: int) -> str:
        """The last text of a sequence; none where the tokenizer fails on it."""
        try:
            return self.close_stream(index)[0]
        except Exception:
            logger.exception("the last text of request %s can't be decoded", self.request_id)
            return ""

    def final_output(self, wall_offset_ns: int) -> RequestOutput:
        """What the caller gets; without text where the tokenizer fails, and the error says so."""
        try:
            return self.output(wall_offset_ns)
        except Exception as error:
            logger.exception("the text of request %s can't be decoded", self.request_id)
            self.error = self.error or f"decoding its text failed: {describe(error)}"
            self.decoder, self.streams = None, []
            return self.output(wall_offset_ns)

    def text_of(self, index: int) -> str:
        """The text of a sequence so far."""
        if self.streams:
            return self.streams[index].text
        if self.decoder is None:
            return ""
        seq = self.sequences[index]
        ids = seq.output_token_ids
        if seq.finish_reason == "stop" and not self.params.include_stop_str_in_output:
            ids = ids[:-1]
        return self.decoder.decode(ids, skip_special_tokens=self.params.skip_special_tokens)

    def output(self, wall_offset_ns: int) -> RequestOutput:
        """What the caller gets, as far as it has come."""
        want_logprobs = self.params.logprobs is not None
        outputs = [
            CompletionOutput(
                index=index,
                text=self.text_of(index),
                token_ids=seq.output_token_ids,
                finish_reason=seq.finish_reason,
                stop_reason=seq.stop_reason,
                pause_reason=seq.reason if seq.status is SequenceStatus.PAUSED else None,
                logprobs=list(self.logprobs[index]) if want_logprobs else None,
            )
            for index, seq in enumerate(self.sequences)
        ]
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            outputs=outputs,
            finished=self.finished,
            prompt_logprobs=list(self.prompt_logprobs) if self.params.prompt_logprobs is not None else None,
            metrics=RequestMetrics.from_sequences(self.sequences, wall_offset_ns),
            error=self.error,
        )


def describe(error: BaseException) -> str:
    """An error's type and message, as text that the journal can hold whatever the message is."""
    try:
        message = str(error)
    except Exception:
        message = "(its message can't be read)"
    return f"{type(error).__name__}: {message}".encode(errors="backslashreplace").decode()


FINISH_REASONS = {"stop": "stop", "length": "length", "aborted": "abort", "delivered": "stop", "expired": "abort"}


def finish_reason_of(seq: Sequence) -> str:
    """The public finish reason of an ended sequence: stop, length, abort or error."""
    return "error" if seq.status is SequenceStatus.ERROR else FINISH_REASONS[seq.reason]
