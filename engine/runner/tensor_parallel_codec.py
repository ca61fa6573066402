"""A step's plan as bytes, and sequences mirrored from it: what a rank must know of a sequence is sent once.

After that, only its new block ids are. Its new tokens are not: the rank has sampled them itself.
"""

from __future__ import annotations

import msgspec

from ..plan import BlockMove, StepPlan
from ..sampling_params import SamplingParams
from ..sequence import Sequence


class SequenceState(msgspec.Struct, array_like=True):
    """All that a runner reads of a sequence that is new to it."""

    seq_id: int
    token_ids: list[int]
    num_prompt_tokens: int
    appended: list[tuple[int, int]]
    output_start: int
    params: SamplingParams
    seed: int
    stop_token_ids: list[int]
    bad_words_ids: list[list[int]]
    block_table: list[int]
    max_total_tokens: int

    @classmethod
    def of(cls, seq: Sequence) -> SequenceState:
        """The state of a sequence now."""
        return cls(
            seq.seq_id, seq.token_ids, seq.num_prompt_tokens, seq.appended, seq.output_start, seq.params, seq.seed,
            list(seq.stop_token_ids), seq.bad_words_ids, seq.block_table, seq.max_total_tokens,
        )  # fmt: skip

    def mirror(self) -> Sequence:
        """A sequence that a runner can't tell from the original; its `transition` records nothing."""
        seq = Sequence(
            self.seq_id, "", self.token_ids, self.params, self.seed, 0, _ignore, _never, self.max_total_tokens
        )
        seq.num_prompt_tokens, seq.output_start, seq.appended = self.num_prompt_tokens, self.output_start, self.appended
        seq.num_appended_tokens = sum(end - first for first, end in self.appended)
        seq.stop_token_ids, seq.bad_words_ids = frozenset(self.stop_token_ids), self.bad_words_ids
        seq.block_table = self.block_table
        return seq


class PlanRecord(msgspec.Struct, array_like=True):
    """A plan. What most decode steps have in common with the one before is left out."""

    step: int
    kind: str
    seq_ids: list[int] | None  # None: those of the plan before
    epochs: list[int] | None
    starts: list[int]
    counts: list[int] | None  # None: all 1
    samples: list[bool] | None  # None: all sample
    released: list[int]
    new: list[SequenceState]
    grown: list[tuple[int, list[int]]]  # sequence id, block ids to put behind those that it has
    moves: list[BlockMove]
    copies: list[tuple[int, int]]


class PlanEncoder:
    """Turns plans into bytes for a `PlanDecoder` that gets them all, in their order.

    Costs O(sequences + new tokens and blocks), whatever the sequences hold.
    """

    def __init__(self) -> None:
        self._sent: dict[int, list[int]] = {}  # sequence id -> [epoch, blocks]
        self._seq_ids: list[int] = []
        self._epochs: list[int] = []
        self._encoder = msgspec.msgpack.Encoder()

    def encode(self, plan: StepPlan) -> bytes:
        """The plan as bytes."""
        sent = self._sent
        for seq_id in plan.released:
            sent.pop(seq_id, None)
        new: list[SequenceState] = []
        grown: list[tuple[int, list[int]]] = []
        seq_ids = [seq.seq_id for seq in plan.sequences]
        for seq, seq_id, epoch in zip(plan.sequences, seq_ids, plan.epochs, strict=True):
            blocks = seq.block_table
            known = sent.get(seq_id)
            if known is None or known[0] != epoch:
                sent[seq_id] = [epoch, len(blocks)]
                new.append(SequenceState.of(seq))
            elif known[1] != len(blocks):
                grown.append((seq_id, blocks[known[1] :]))
                known[1] = len(blocks)
        same_ids, same_epochs = seq_ids == self._seq_ids, plan.epochs == self._epochs
        size = len(seq_ids)
        record = PlanRecord(
            plan.step,
            plan.kind,
            None if same_ids else seq_ids,
            None if same_epochs else plan.epochs,
            plan.starts,
            None if plan.counts.count(1) == size else plan.counts,
            None if all(plan.samples) else plan.samples,
            plan.released,
            new,
            grown,
            plan.moves,
            plan.copies,
        )
        self._seq_ids = seq_ids
        if not same_epochs:
            self._epochs = list(plan.epochs)
        return self._encoder.encode(record)


class PlanDecoder:
    """Turns bytes back into plans, over sequences of its own; `append` their sampled tokens once they are known."""

    def __init__(self) -> None:
        self._sequences: dict[int, Sequence] = {}
        self._seq_ids: list[int] = []
        self._epochs: list[int] = []
        self._decoder = msgspec.msgpack.Decoder(PlanRecord)

    def decode(self, data: bytes | memoryview) -> StepPlan:
        """The plan, with mirrored sequences."""
        record = self._decoder.decode(data)
        sequences = self._sequences
        for seq_id in record.released:
            sequences.pop(seq_id, None)
        for state in record.new:
            sequences[state.seq_id] = state.mirror()
        for seq_id, blocks in record.grown:
            sequences[seq_id].block_table += blocks
        if record.seq_ids is not None:
            self._seq_ids = record.seq_ids
        if record.epochs is not None:
            self._epochs = record.epochs
        size = len(self._seq_ids)
        return StepPlan(
            step=record.step,
            kind=record.kind,
            sequences=[sequences[seq_id] for seq_id in self._seq_ids],
            starts=record.starts,
            counts=[1] * size if record.counts is None else record.counts,
            samples=[True] * size if record.samples is None else record.samples,
            epochs=self._epochs,
            released=record.released,
            moves=record.moves,
            copies=record.copies,
        )


def append_sampled(plan: StepPlan, tokens: list[int]) -> None:
    """Give a decoded plan's sequences the tokens that its step has sampled (`StepResult.tokens`)."""
    sampling = [seq for seq, samples in zip(plan.sequences, plan.samples, strict=True) if samples]
    for seq, token in zip(sampling, tokens, strict=True):
        seq.token_ids.append(token)


def _ignore(event: object) -> None:
    pass


def _never() -> int:
    return 0
