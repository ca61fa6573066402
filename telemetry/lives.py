"""The `lives` projection: where each sequence's time went, and what it held, from arrival to end.

Knows the meaning of events as telemetry/events.py states it. Costs O(sequences in the step) for each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from .events import (
    AnyEvent,
    BlocksAllocated,
    BlocksFreed,
    BlocksSwapped,
    EngineStarted,
    JournalDropped,
    Keyframe,
    PrefixMatched,
    RequestArrived,
    RequestFinished,
    SequencePreempted,
    SequenceResumed,
    SequenceSnapshot,
    StatusChanged,
    StepFinished,
    StepPlanned,
)

FINAL = ("FINISHED", "ERROR")


@dataclass(slots=True)
class Life:
    """One sequence. Times are clock nanoseconds; 0 for what has not happened.

    `queued_ns + prefill_ns + decode_ns + preempted_ns + paused_ns` is the time from `since_t` to `until_t`, exactly.

    Attributes:
        seq: its id.
        request: the request it belongs to.
        since_t: its arrival; the keyframe's time for one that was joined in the middle of its life.
        until_t: its end, or the last event that concerned it.
        status: as in its last transition.
        reason: of its last transition.
        num_prompt_tokens: of its prompt.
        num_output_tokens: sampled, read and kept.
        num_cached_tokens: of the prompt, found in the prefix cache at the first admission.
        num_preemptions: how often it lost its place to another.
        num_pauses: how often it entered PAUSED, since `since_t`.
        num_blocks: blocks on the device that it holds.
        peak_blocks: the most that it held at once, shared ones included.
        queued_ns: WAITING, for the first admission or after a pause.
        prefill_ns: RUNNING, from an admission to the next token read: a recomputation counts here too.
        decode_ns: RUNNING, after that.
        preempted_ns: WAITING after a preemption.
        paused_ns: PAUSED.
        first_token_t: when its first token was read.
        last_token_t: when its newest one was.
        intervals_ns: times between its tokens, where the projection keeps them.
    """

    seq: int
    request: str
    since_t: int
    num_prompt_tokens: int
    until_t: int = 0
    status: str = ""
    reason: str = ""
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_pauses: int = 0
    num_blocks: int = 0
    peak_blocks: int = 0
    queued_ns: int = 0
    prefill_ns: int = 0
    decode_ns: int = 0
    preempted_ns: int = 0
    paused_ns: int = 0
    first_token_t: int = 0
    last_token_t: int = 0
    intervals_ns: list[int] = field(default_factory=list)
    part: str = "queued"  # the part of its life that it is in; "" once it has ended
    computed: int = 0  # tokens that planned steps compute
    target: int = 0  # tokens that it had at its last admission: computed, they end the prefill
    num_appended_tokens: int = 0  # put in by `resume`

    @property
    def lifetime_ns(self) -> int:
        """The sum of the parts."""
        return self.until_t - self.since_t

    @property
    def ended(self) -> bool:
        """Whether it is FINISHED or in ERROR."""
        return self.status in FINAL

    @property
    def decodes(self) -> bool:
        """Whether it is RUNNING and its prefill is planned to the end."""
        return self.status == "RUNNING" and self.computed >= self.target

    def enter(self, part: str, t: int) -> None:
        """End the current part of its life at `t` and begin another."""
        self.advance(t)
        self.part = part

    def advance(self, t: int) -> None:
        """Count the time up to `t` to the part that it is in."""
        if self.part:
            name = self.part + "_ns"
            setattr(self, name, getattr(self, name) + t - self.until_t)
            self.until_t = t


class Lives:
    """Lives of all sequences seen, in order of arrival.

    It joins at engine.started, which clears what an earlier run left, or at a keyframe. A gap (journal.dropped) is
    closed by the keyframe after it: what lived before the gap and is not in the keyframe stays as it was last seen.

    Args:
        keep_intervals: keep the time between any two tokens of a sequence, 8 bytes and more each.

    Attributes:
        lives: sequence id -> its life.
        t: time of the newest event.
        sampled: those that the newest step.finished gave a token.
    """

    def __init__(self, keep_intervals: bool = False) -> None:
        self.lives: dict[int, Life] = {}
        self.t = 0
        self.sampled: list[Life] = []
        self._keep_intervals = keep_intervals
        self._seqs: dict[str, list[int]] = {}  # sequences of each request that has not finished
        self._running: dict[int, Life] = {}
        self._sampling: dict[int, list[Life]] = {}  # step in flight -> who samples in it
        self._gap = True  # no whole state yet
        self._handlers: dict[type, Callable[..., None]] = {
            EngineStarted: self._started,
            Keyframe: self._keyframe,
            JournalDropped: self._dropped,
            RequestArrived: self._arrived,
            RequestFinished: self._request_finished,
            StatusChanged: self._status,
            PrefixMatched: self._matched,
            BlocksAllocated: self._allocated,
            BlocksFreed: self._freed,
            BlocksSwapped: self._swapped,
            SequenceResumed: self._resumed,
            SequencePreempted: self._preempted,
            StepPlanned: self._planned,
            StepFinished: self._step_finished,
        }

    def apply(self, event: AnyEvent) -> None:
        """Take one event; those before the first whole state are passed over."""
        handler = self._handlers.get(type(event))
        if handler is None or (self._gap and not isinstance(event, EngineStarted | Keyframe)):
            return
        handler(event)
        self.t = getattr(event, "t", self.t)

    def apply_all(self, events: Iterable[AnyEvent]) -> None:
        """Take events in their order."""
        for event in events:
            self.apply(event)

    def advance(self, t: int) -> None:
        """Count the time up to `t` for those that live: a look at a running engine."""
        for life in self.lives.values():
            life.advance(max(t, life.until_t))

    def _started(self, e: EngineStarted) -> None:
        self.lives.clear()
        self._seqs.clear()
        self._running.clear()
        self._sampling.clear()
        self._gap = False

    def _dropped(self, e: JournalDropped) -> None:
        self._gap = True

    def _keyframe(self, e: Keyframe) -> None:
        if not self._gap:
            return
        self._gap = False
        self._sampling.clear()
        self._running.clear()
        self._seqs = {}
        for snapshot in e.sequences:
            life = self.lives.get(snapshot.seq)
            if life is None:
                life = Life(snapshot.seq, snapshot.request, e.t, snapshot.num_prompt_tokens, until_t=e.t)
                self.lives[snapshot.seq] = life
            life.enter(_part_of(snapshot), e.t)
            _take_snapshot(life, snapshot)
            if life.status == "RUNNING":
                self._running[life.seq] = life

    def _arrived(self, e: RequestArrived) -> None:
        self._seqs[e.request] = e.seqs
        for seq in e.seqs:
            self.lives[seq] = Life(seq, e.request, e.t, e.num_prompt_tokens, until_t=e.t)

    def _request_finished(self, e: RequestFinished) -> None:
        seqs = self._seqs.pop(e.request, [])
        if len(seqs) == 1:  # its own count holds also where a step gave no valid token
            self.lives[seqs[0]].num_output_tokens = e.num_output_tokens

    def _status(self, e: StatusChanged) -> None:
        life = self.lives.get(e.seq)
        if life is None:
            return
        life.status, life.reason = e.new, e.reason
        if e.new == "RUNNING":
            self._running[e.seq] = life
            # Whatever it kept of its KV, the newest token is still to be computed: a chunk comes first.
            life.computed = 0
            life.target = life.num_prompt_tokens + life.num_output_tokens + life.num_appended_tokens
            life.enter("prefill", e.t)
            return
        self._running.pop(e.seq, None)
        life.num_pauses += e.new == "PAUSED"
        if e.new == "WAITING":
            life.enter("preempted" if e.reason == "preempted" else "queued", e.t)
        else:
            life.enter("paused" if e.new == "PAUSED" else "", e.t)

    def _matched(self, e: PrefixMatched) -> None:
        life = self.lives.get(e.seq)
        if life is not None and not e.recompute:
            life.num_cached_tokens = e.hit

    def _allocated(self, e: BlocksAllocated) -> None:
        life = self.lives.get(e.seq)
        if life is not None:
            life.num_blocks += len(e.cached) + len(e.new)
            life.peak_blocks = max(life.peak_blocks, life.num_blocks)

    def _freed(self, e: BlocksFreed) -> None:
        life = self.lives.get(e.seq)
        if life is not None:
            life.num_blocks -= _on_device(e.blocks)

    def _swapped(self, e: BlocksSwapped) -> None:
        life = self.lives.get(e.seq)
        if life is not None:
            life.num_blocks += _on_device(e.targets) - _on_device(e.sources)
            life.peak_blocks = max(life.peak_blocks, life.num_blocks)

    def _resumed(self, e: SequenceResumed) -> None:
        life = self.lives.get(e.seq)
        if life is not None:
            life.num_appended_tokens += e.num_appended

    def _preempted(self, e: SequencePreempted) -> None:
        life = self.lives.get(e.seq)
        if life is not None:
            life.num_preemptions += 1

    def _planned(self, e: StepPlanned) -> None:
        sampling: list[Life] = []
        if e.decodes:
            left_out = {seq for seq, _, _ in e.chunks} | set(e.idle)
            for seq, life in self._running.items():
                if life.decodes and seq not in left_out:
                    life.computed += 1
                    sampling.append(life)
        for seq, start, count in e.chunks:
            chunked = self._running.get(seq)
            if chunked is not None:
                chunked.computed = start + count
                if chunked.decodes:
                    sampling.append(chunked)
        self._sampling[e.step] = sampling

    def _step_finished(self, e: StepFinished) -> None:
        wasted = set(e.wasted)
        self.sampled = [life for life in self._sampling.pop(e.step, ()) if life.seq not in wasted]
        for life in self.sampled:
            if life.part == "prefill":
                life.enter("decode", e.t)
            else:
                life.advance(e.t)
            life.num_output_tokens += 1
            life.first_token_t = life.first_token_t or e.t
            if self._keep_intervals and life.last_token_t:
                life.intervals_ns.append(e.t - life.last_token_t)
            life.last_token_t = e.t


def _on_device(entries: list[int]) -> int:
    """How many entries of a block table are blocks on the device; the others are slots of the swap space."""
    return sum(1 for entry in entries if entry >= 0)


def _part_of(s: SequenceSnapshot) -> str:
    """The part of its life that a sequence of a keyframe is in."""
    if s.status == "RUNNING":
        return "decode" if s.phase == "decode" and s.first_token_t else "prefill"
    if s.status == "PAUSED":
        return "paused"
    return "preempted" if s.reason == "preempted" else "queued"


def _take_snapshot(life: Life, s: SequenceSnapshot) -> None:
    """Set everything but the times from a keyframe."""
    life.status, life.reason = s.status, s.reason
    life.num_output_tokens, life.num_cached_tokens = s.num_output_tokens, s.num_cached_tokens
    life.num_preemptions, life.num_appended_tokens = s.num_preemptions, s.num_appended_tokens
    life.num_blocks = _on_device(s.block_table)
    life.peak_blocks = max(life.peak_blocks, life.num_blocks)
    life.first_token_t, life.last_token_t = s.first_token_t, s.last_token_t
    life.computed, life.target = s.num_computed_tokens, s.prefill_target
