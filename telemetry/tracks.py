"""What a pass over a journal keeps for the latency model: sequences, requests, and steps in columns."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from .events import PrefixMatched, RequestFinished, SequencePreempted, StepFinished, SwapFinished


@dataclass(slots=True)
class Rest:
    """A time in which a sequence did not run: WAITING for one reason, or PAUSED."""

    part: str
    begin_t: int
    end_t: int
    reason: str  # of the wait or the pause
    after: str  # reason of the transition that began it


@dataclass(slots=True)
class Run:
    """A time in which a sequence was RUNNING.

    Attributes:
        chunks: (step, first position, tokens, how many of them it had computed before).
        decodes: (first step, last step, keys that the first one's query attends to).
        before: the run before it, where one of its steps had not been read yet when this one began.
    """

    begin_t: int
    end_t: int = 0
    chunks: list[tuple[int, int, int, int]] = field(default_factory=list)
    decodes: list[tuple[int, int, int]] = field(default_factory=list)
    before: Run | None = None

    @property
    def last_step(self) -> int:
        """The last one that it computed in; 0 if none."""
        return max(self.chunks[-1][0] if self.chunks else 0, self.decodes[-1][1] if self.decodes else 0)


@dataclass(frozen=True, slots=True)
class FailedStep:
    """One that failed, so that nobody has read what it computed.

    Attributes:
        step: its number.
        t: from when on it was waited for: its planning, or the reading of the step before it.
        reason: what went wrong, in words.
        message: the same, as the requests that ended with it have it as their error, or as its beginning.
    """

    step: int
    t: int
    reason: str
    message: str


@dataclass(slots=True)
class Track:
    """One sequence. Times are clock nanoseconds.

    Attributes:
        known_t: from when on the journal tells of it: its arrival, or the keyframe that it was joined at.
        gaps: (begin, end) of what the journal lost.
        num_copied_tokens: of its prompt, copied from a sibling at its first admission: neither cached nor computed.
        blocks: pairs of a time and the device blocks held from then on.
        end_t: when it ended; 0 while it lives.
        is_end_lost: it ended in what the journal lost, at `end_t` at the latest.
    """

    seq: int
    request: str
    arrived_t: int
    known_t: int
    num_prompt_tokens: int
    priority: int = 0
    rests: list[Rest] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    preemptions: list[SequencePreempted] = field(default_factory=list)
    swaps: list[SwapFinished] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    blocks: array[int] = field(default_factory=lambda: array("q"))
    num_blocks: int = 0
    matched: PrefixMatched | None = None
    num_copied_tokens: int = 0
    status: str = ""
    reason: str = ""
    end_t: int = 0
    is_end_lost: bool = False
    first_token_t: int = 0
    last_token_t: int = 0
    num_output_tokens: int = 0
    high: int = 0  # most tokens that it ever had computed
    decode_from: tuple[int, int] | None = None  # (first step, keys) of the decodes that are going on
    failed: FailedStep | None = None  # that it ended with

    @property
    def num_prompt_computed(self) -> int:
        """Tokens of its prompt that it computed, each once, as far as the journal tells."""
        return sum(
            max(0, min(start + count, self.num_prompt_tokens) - start - known)
            for run in self.runs
            for step, start, count, known in run.chunks
            if self.failed is None or step < self.failed.step
        )

    @property
    def failed_t(self) -> int:
        """From when on it waited for the step that it ended with; 0 where that did not fail."""
        return 0 if self.failed is None else max(self.failed.t, self.arrived_t)

    @property
    def missed(self) -> dict[str, int]:
        """Why tokens of its prompt were not cached -> how many of them it had to compute, as of its first admission."""
        e = self.matched
        if e is None:
            return {}
        # What a sibling's block gave it is in its last block, which is not full.
        sub_block = max(0, e.sub_block - self.num_copied_tokens)
        return {"evicted": e.evicted, "never_seen": e.never_seen, "sub_block": sub_block}

    def rest(self, part: str, t: int, reason: str, after: str) -> None:
        """Begin a time in which it does not run."""
        self.rests.append(Rest(part, t, 0, reason, after))

    def run(self, t: int, last_read: int) -> None:
        """Begin a time in RUNNING; `last_read`: the last step that was read by then."""
        run, before = Run(t), self.runs[-1] if self.runs else None
        if before is not None and before.before is not None and not before.last_step:
            before = before.before
        if before is not None and before.last_step > last_read:
            run.before = before
        self.runs.append(run)

    def stop(self, t: int) -> None:
        """End what is going on."""
        last = self.runs[-1] if self.status == "RUNNING" and self.runs else self.rests[-1] if self.rests else None
        if last is not None and not last.end_t:
            last.end_t = t

    def hold(self, t: int, change: int) -> None:
        """Count device blocks that it took (> 0) or gave up."""
        self.num_blocks += change
        self.blocks.append(t)
        self.blocks.append(self.num_blocks)


@dataclass(slots=True)
class RequestTrack:
    """One request.

    Attributes:
        stalls: (end, nanoseconds) of times in which its reader held its stream up.
        use: 1; more where its id was used before, by requests that had ended.
        traceparent: the caller's span, where its arrival was seen.
        route: what a fleet's router decided on, where its arrival was seen and there is a router.
    """

    request: str
    arrived_t: int
    seqs: list[int]
    num_prompt_tokens: int
    priority: int
    max_tokens: int = 0
    finished: RequestFinished | None = None
    stalls: list[tuple[int, int]] = field(default_factory=list)
    use: int = 1
    traceparent: str | None = None
    route: dict[str, str | int] | None = None


class StepTable:
    """Finished steps in columns, in the order in which they were read. Durations are nanoseconds."""

    COLUMNS = (
        "number", "end_t", "device_ns", "plan_ns", "launch_ns", "collect_ns", "wait_ns",
        "prefill_tokens", "prefill_pairs", "decodes", "decode_context",
    )  # fmt: skip
    WORK = COLUMNS[-4:]  # -1 each where the step's plan was not seen

    def __init__(self) -> None:
        self.rows: array[int] = array("q")  # row after row
        self.last_step = self.last_t = 0

    def add(self, e: StepFinished, work: tuple[int, int, int, int] | None) -> None:
        """Append a step, given its prefill tokens, prefill pairs, decodes and decode context."""
        self.last_step, self.last_t = e.step, e.t
        self.rows.extend((e.step, e.t, e.device_ns, e.plan_ns, e.launch_ns, e.collect_ns, e.wait_ns))
        self.rows.extend(work or (-1, -1, -1, -1))

    def __len__(self) -> int:
        return len(self.rows) // len(self.COLUMNS)


def part_of_wait(wait: str, after: str) -> str:
    """The part of the latency model that a wait is, given its reason and that of the transition which began it."""
    if wait == "swap_in":
        return "swap"
    if wait == "engine_paused":
        return "engine_paused"
    if after == "preempted":
        return "preempted"
    return "queue_" + (wait or "next_step")
