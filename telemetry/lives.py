"""The `lives` projection: where each sequence's time went, and what it held, from arrival to end.

Knows the meaning of events as telemetry/events.py states it. Costs O(sequences in the step) for each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

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
from .life import FINAL, Life

__all__ = ["FINAL", "Life", "Lives"]


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
        intervals: the times since the token before that it gave them, none across a pause: ns -> (how many, one of
            their requests).
    """

    def __init__(self, keep_intervals: bool = False) -> None:
        self.lives: dict[int, Life] = {}
        self.t = 0
        self.sampled: list[Life] = []
        self.intervals: dict[int, tuple[int, str]] = {}
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

    def lose(self) -> None:
        """Say that events were missed: the next keyframe closes the gap."""
        self._gap = True

    def forget(self, seqs: Iterable[int]) -> None:
        """Let go of lives that nobody will ask for."""
        for seq in seqs:
            self.lives.pop(seq, None)

    def _started(self, e: EngineStarted) -> None:
        self.lives.clear()
        self._seqs.clear()
        self._running.clear()
        self._sampling.clear()
        self._gap = False

    def _dropped(self, e: JournalDropped) -> None:
        self.lose()

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
        if e.new == "PAUSED":
            life.num_pauses += 1
            life.rested = True
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
                if life.computed >= life.target and seq not in left_out:  # `life.decodes`: all of these are RUNNING
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
        intervals: dict[int, tuple[int, str]] = {}
        t, keep = e.t, self._keep_intervals
        for life in self.sampled:
            if life.part == "decode":  # as `advance` does it; nearly all take this way
                life.decode_ns += t - life.until_t
                life.until_t = t
            elif life.part == "prefill":
                life.enter("decode", t)
            else:
                life.advance(t)
            life.num_output_tokens += 1
            before, life.last_token_t = life.last_token_t, t
            if not before:
                life.first_token_t, life.rested = life.first_token_t or t, False
                continue
            interval = t - before
            if keep:
                life.intervals_ns.append(interval)
            if life.rested:
                life.rested = False
                continue
            life.interval_ns += interval
            life.num_intervals += 1
            known = intervals.get(interval)
            intervals[interval] = (1, life.request) if known is None else (known[0] + 1, known[1])
        self.intervals = intervals


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
    life.rested = s.status == "PAUSED" or (s.reason == "resumed" and s.last_token_t < s.status_t)
