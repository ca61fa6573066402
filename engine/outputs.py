"""What users get back: whole results, pieces of a stream, the times of a request. Knows sequences, not the engine."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass

from .plan import TokenLogprobs
from .sequence import Sequence

_NS = 1_000_000_000  # in a second


def _seconds(start_ns: int, end_ns: int) -> float | None:
    """Seconds between two clock times, or None while either has not come (0)."""
    return (end_ns - start_ns) / _NS if start_ns and end_ns else None


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """When things happened to a request, and how long they took: the engine's own record, as its journal has it.

    The `*_t` fields are clock nanoseconds (CLOCK_MONOTONIC), 0 for what has not happened. The properties give seconds:
    `*_time` since 1970, `*_s` durations, None for what has not happened. Over several sequences (n > 1) the first
    scheduling and the first token are those of the fastest, the end is that of the slowest.

    Attributes:
        wall_offset_ns: wall clock minus CLOCK_MONOTONIC.
        num_prompt_tokens: tokens of the prompt, counted once.
        num_output_tokens: generated tokens of all sequences.
        num_cached_tokens: prompt tokens found in the prefix cache at the first admission.
        num_preemptions: of all sequences.
        decode_ns: from first to last token, summed over the sequences, without the time in PAUSED.
        num_intervals: intervals between tokens in `decode_ns`.
    """

    wall_offset_ns: int
    arrived_t: int
    first_scheduled_t: int
    first_token_t: int
    last_token_t: int
    finished_t: int
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    decode_ns: int
    num_intervals: int

    @classmethod
    def from_sequences(cls, sequences: Many[Sequence], wall_offset_ns: int) -> RequestMetrics:
        """Read the times and counts of a request off its sequences: at least one, the leader (if any) first."""
        timed = [s for s in sequences if s.first_token_t]
        outputs = [s.num_read_output_tokens for s in sequences]
        ended = all(s.finished_t for s in sequences)
        return cls(
            wall_offset_ns=wall_offset_ns,
            arrived_t=sequences[0].arrived_t,
            first_scheduled_t=min((s.first_scheduled_t for s in sequences if s.first_scheduled_t), default=0),
            first_token_t=min((s.first_token_t for s in timed), default=0),
            last_token_t=max((s.last_token_t for s in timed), default=0),
            finished_t=max(s.finished_t for s in sequences) if ended else 0,
            num_prompt_tokens=sequences[0].num_prompt_tokens,
            num_output_tokens=sum(outputs),
            num_cached_tokens=sequences[0].num_cached_tokens or 0,
            num_preemptions=sum(s.num_preemptions for s in sequences),
            decode_ns=sum(s.last_token_t - s.first_token_t - s.decode_paused_ns for s in timed),
            num_intervals=sum(max(count - 1, 0) for count in outputs),
        )

    def _wall(self, t: int) -> float | None:
        return (t + self.wall_offset_ns) / _NS if t else None

    @property
    def arrival_time(self) -> float:
        """Wall time of the arrival."""
        return (self.arrived_t + self.wall_offset_ns) / _NS

    @property
    def first_scheduled_time(self) -> float | None:
        """Wall time of the first admission."""
        return self._wall(self.first_scheduled_t)

    @property
    def first_token_time(self) -> float | None:
        """Wall time at which the first token was read."""
        return self._wall(self.first_token_t)

    @property
    def last_token_time(self) -> float | None:
        """Wall time at which the last token was read."""
        return self._wall(self.last_token_t)

    @property
    def finished_time(self) -> float | None:
        """Wall time of the end."""
        return self._wall(self.finished_t)

    @property
    def queue_s(self) -> float | None:
        """From arrival to first admission."""
        return _seconds(self.arrived_t, self.first_scheduled_t)

    @property
    def prefill_s(self) -> float | None:
        """From first admission to first token."""
        return _seconds(self.first_scheduled_t, self.first_token_t)

    @property
    def ttft_s(self) -> float | None:
        """Time to first token, from arrival; a preemption doesn't restart it."""
        return _seconds(self.arrived_t, self.first_token_t)

    @property
    def decode_s(self) -> float | None:
        """From first to last token of the whole request."""
        return _seconds(self.first_token_t, self.last_token_t)

    @property
    def e2e_s(self) -> float | None:
        """From arrival to the end."""
        return _seconds(self.arrived_t, self.finished_t)

    @property
    def mean_itl_s(self) -> float | None:
        """Mean time between tokens of a sequence (ITL); None with fewer than two tokens."""
        return self.decode_ns / self.num_intervals / _NS if self.num_intervals else None


@dataclass(slots=True)
class CompletionOutput:
    """One generated sequence of a request.

    Attributes:
        index: which of the request's n sequences.
        text: the generated text; a stop string is not in it unless asked for.
        token_ids: the generated tokens, the one that ended the generation included.
        finish_reason: stop, length, abort, error; None while it runs.
        stop_reason: the stop string or stop token id that ended it; None for the model's end of sequence.
        logprobs: one entry a token, where asked for.
        pause_reason: why it is PAUSED: prefill_complete, stop, length, await_input, operator or breakpoint; None else.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: list[TokenLogprobs] | None = None
    pause_reason: str | None = None

    @property
    def finished(self) -> bool:
        """Whether it has ended."""
        return self.finish_reason is not None

    @property
    def cumulative_logprob(self) -> float | None:
        """Sum of the log-probabilities of its tokens; None where none were asked for."""
        return None if self.logprobs is None else sum(entry.logprob for entry in self.logprobs)


@dataclass(slots=True)
class Delta:
    """What a step added to one sequence of a stream; the texts of an index joined are its CompletionOutput's text.

    `text` may be empty while tokens came (half a character, a possible stop string), and the last one may bring text
    without tokens. `finish_reason` is set on the last one of an index only, `pause_reason` on the last one before a
    pause.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: list[TokenLogprobs] | None = None  # one entry for each of token_ids
    pause_reason: str | None = None


@dataclass(slots=True)
class RequestOutput:
    """A request and what came of it.

    Attributes:
        request_id: as given or assigned at arrival.
        prompt: its text; None where token ids were given.
        prompt_token_ids: its tokens.
        outputs: one for each of the n sequences, by index.
        finished: whether all of them have ended.
        prompt_logprobs: one entry a prompt token, where asked for; the first is None, for nothing predicts it.
        metrics: times and counts.
        error: why it ended in error.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    metrics: RequestMetrics | None = None
    error: str | None = None
