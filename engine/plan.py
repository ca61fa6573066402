"""What passes between the core and a runner: the plan of a step, and what came of it. No torch.

The core plans, launches and collects; a runner turns a plan into tokens. It reads sequences and never changes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class BlockMove:
    """Blocks of one sequence that change their place: what `sources[i]` holds goes to `targets[i]`.

    A place >= 0 is a block on the device; -1 - s is slot s of the swap space: in host memory below the runner's
    `host_blocks`, in the swap file from there on.
    """

    move: int  # its number, from 1
    seq_id: int
    kind: str  # out, in, down
    sources: list[int]
    targets: list[int]


@dataclass(frozen=True, slots=True)
class MoveResult:
    """What came of a move."""

    move: int
    num_bytes: int
    duration_ns: int
    error: str = ""  # why it failed: what its targets hold means nothing


@dataclass(slots=True)
class StepPlan:
    """One step's work, as parallel lists: sequence i computes `counts[i]` tokens from position `starts[i]`.

    `starts[i] + counts[i] == sequence.num_tokens` exactly when `samples[i]`: the sequence then samples one token.
    A token at a position >= len(sequence.token_ids) is still on the device: it is the one that the runner itself
    sampled for this sequence in the step before. `epochs[i]` is the sequence's epoch when planned.

    `moves` come before the step, in their order and after all earlier moves: a source may be another one's target.
    A block that a move "out" frees may be written by this very step. No step reads a block before the move that fills
    it is in a `StepResult.moved`. `copies` are pairs (source, target) of blocks on the device, copied before the step's
    tokens are computed. A plan may have moves alone; collecting it waits for all moves launched so far.
    """

    step: int
    kind: str  # decode, prefill, mixed
    sequences: list[Sequence]
    starts: list[int]
    counts: list[int]
    samples: list[bool]
    epochs: list[int]
    released: list[int]  # ids of sequences that left RUNNING since the last plan: the runner forgets them
    planned_t: int = 0  # clock when planning began
    plan_ns: int = 0
    moves: list[BlockMove] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Tokens that the step computes."""
        return sum(self.counts)


@dataclass(slots=True)
class TokenLogprobs:
    """Log-probabilities (natural, of the unmodified logits) at one position."""

    token_id: int
    logprob: float
    rank: int  # 1: the most likely token
    top: list[tuple[int, float]]  # (token id, logprob), most likely first; as many as were asked for


@dataclass(frozen=True, slots=True)
class RankTimes:
    """What a step took on each rank of a model that is split over several."""

    step: int
    device_ns: list[int]
    collective_ns: list[int]  # of it, in collectives: waiting for other ranks, and exchanging
    late_ns: list[int] = field(default_factory=list)  # how much later than the first it came to them; empty: not known


@dataclass(slots=True)
class StepResult:
    """What a step gave, read back from the device.

    `tokens` is aligned with the plan's sequences where `samples` holds, in their order.
    """

    tokens: list[int]
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)  # sequence id -> for its sampled token
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    # sequence id -> for the prompt positions start+1 .. start+count of this chunk (those inside the prompt)
    failed: dict[int, str] = field(default_factory=dict)  # sequence id -> why it has no valid token (non-finite logits)
    device_ns: int = 0
    wait_ns: int = 0  # that collecting waited for the device
    graph: bool = False
    padding: int = 0
    moved: list[MoveResult] = field(default_factory=list)  # moves that ended since the last collect
    collective_ns: int = 0  # that this rank has spent in collectives up to this step's end, where there are several
    ranks: list[RankTimes] = field(default_factory=list)  # of this step and earlier ones, as they come to be known


class Runner(Protocol):
    """Runs planned steps on a device. Launches complete in order; at most two are in flight.

    `launch` raises OutOfDeviceMemory when a step does not fit into memory; its moves, copies and releases are done
    then, and the same sequences, or some of them, can be launched again.
    """

    num_blocks: int  # KV pool size
    host_blocks: int  # slots of the swap space in host memory
    disk_blocks: int  # and in the swap file
    swap_ns_per_block: int  # to move a block between device and host, as measured at start; 0: not known
    vocab_size: int  # logits width; every sampled id is below it

    def launch(self, plan: StepPlan) -> Any:
        """Start a step and return a handle for `collect`; doesn't wait for the device where it can."""

    def collect(self, handle: Any) -> StepResult:
        """Wait for a launched step and read its tokens."""

    def finish_moves(self) -> list[MoveResult]:
        """Wait for all moves launched so far; those that no StepResult has told of yet."""

    def is_sound(self) -> bool:
        """Whether the device still computes, after a step has failed."""

    def look(self) -> str:
        """Why no step can be computed any more, in words; "" where nothing speaks against it.

        For when no step is in flight: again and again while there is nothing to do. Costs little and waits for nothing.
        """

    def close(self) -> None:
        """Give back the device's memory."""
