"""Steps in flight and the sequences that decode, as the state projection holds them.

Sequences that decode share two counters, so that a step costs the same however many they are; each is brought up to
date when someone looks at it, or when it leaves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from .events import StepFinished, StepPlanned
from .sequence_state import SequenceState

UNKNOWN = -1  # tokens of a step in flight at the keyframe where a reader joined


class _InFlight:
    """A planned step whose tokens have not been read."""

    __slots__ = ("num_sampled", "num_tokens", "ordinal", "samplers", "step")

    def __init__(
        self, step: int, ordinal: int, samplers: list[SequenceState], num_tokens: int = UNKNOWN, num_sampled: int = 0
    ) -> None:
        self.step = step
        self.ordinal = ordinal  # of the step among those with decodes; 0: it has none
        self.samplers = samplers  # those that sample in it and are not, or no longer, counted with the decodes
        self.num_tokens = num_tokens  # UNKNOWN: its plan was not seen
        self.num_sampled = num_sampled


class StepState:
    """What is planned and not read, and who decodes.

    Attributes:
        decoding: sequences that compute one token in each step with decodes, by id.
    """

    def __init__(self) -> None:
        self.decoding: dict[int, SequenceState] = {}
        self._in_flight: deque[_InFlight] = deque()
        self._planned = 0  # steps with decodes, planned
        self._read = 0  # of those, the last one whose tokens were read
        self._read_t = 0  # when they were read

    def adopt(self, in_flight: Mapping[int, list[SequenceState]]) -> None:
        """Take over the steps in flight at a keyframe: step -> who samples in it."""
        self._in_flight = deque(_InFlight(step, 0, in_flight[step]) for step in sorted(in_flight))

    def settle(self, seq: SequenceState) -> SequenceState:
        """Bring a sequence's own counts up to date with the shared ones."""
        if seq.decodes:
            seq.num_computed_tokens += self._planned - seq.planned_base
            seq.planned_base = self._planned
            read = self._read - seq.finished_base
            if read > 0:
                seq.finished_base = self._read
                seq.take(read, self._read_t)
        return seq

    def join(self, seq: SequenceState) -> None:
        """From the next planned step on, this sequence is one of its decodes."""
        seq.decodes = True
        seq.planned_base = seq.finished_base = self._planned
        self.decoding[seq.seq] = seq

    def leave(self, seq: SequenceState) -> None:
        """Stop counting it with the others; steps in flight remember that it samples in them."""
        if not seq.decodes:
            return
        self.settle(seq)
        for record in self._in_flight:
            if record.ordinal > seq.finished_base:
                record.samplers.append(seq)
        seq.decodes = False
        del self.decoding[seq.seq]

    def planned(self, step: int) -> tuple[int, int] | None:
        """(tokens that a step in flight computes, tokens that it samples); None if its plan wasn't seen."""
        for record in self._in_flight:
            if record.step == step and record.num_tokens != UNKNOWN:
                return record.num_tokens, record.num_sampled
        return None

    def plan(self, e: StepPlanned, sequences: Mapping[int, SequenceState]) -> None:
        """A step was planned: whoever decodes computes a token and samples, and so do those whose prefill it ends."""
        for seq_id in e.idle:
            self.leave(sequences[seq_id])
        ready: list[SequenceState] = []
        for seq_id, start, count in e.chunks:
            seq = sequences[seq_id]
            self.leave(seq)
            seq.num_computed_tokens = start + count
            if seq.num_computed_tokens >= seq.prefill_target:
                ready.append(seq)
        self._add(e, ready)
        for seq_id in e.idle:
            seq = sequences[seq_id]
            if seq.status == "RUNNING" and seq.phase == "decode":
                self.join(seq)
        for seq in ready:
            self.join(seq)

    def _add(self, e: StepPlanned, ready: list[SequenceState]) -> None:
        num_tokens = e.decodes + sum(count for _, _, count in e.chunks)
        if e.decodes:
            self._planned += 1
        ordinal = self._planned if e.decodes else 0
        self._in_flight.append(_InFlight(e.step, ordinal, ready, num_tokens, e.decodes + len(ready)))

    def finish(self, e: StepFinished) -> None:
        """The tokens of a step were read: whoever sampled in it has one more, except the wasted."""
        record = self._pop(e.step)
        if record is None:
            return
        rejoining = [self.decoding[seq] for seq in e.wasted if seq in self.decoding]
        for seq in rejoining:
            self.leave(seq)  # before the shared count rises: it took no token
        if record.ordinal:
            self._read, self._read_t = record.ordinal, e.t
        for seq in record.samplers:
            if seq.seq not in e.wasted:
                seq.take(1, e.t)
        for seq in rejoining:
            self.join(seq)

    def _pop(self, step: int) -> _InFlight | None:
        """The plan of a step whose tokens were read; those before it failed, and their tokens are never read."""
        in_flight = self._in_flight
        while in_flight and in_flight[0].step < step:
            in_flight.popleft()
        # A keyframe tells who samples, not in which step: the first to be read, and no later than the last planned.
        if in_flight and (in_flight[0].step == step or in_flight[0].num_tokens == UNKNOWN):
            return in_flight.popleft()
        return None
