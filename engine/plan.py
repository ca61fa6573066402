"""What passes between the core and a runner: the plan of a step, and what came of it. No torch.

The core plans, launches and collects; a runner turns a plan into tokens. It reads sequences and never changes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from .sequence import Sequence


@dataclass(slots=True)
class StepPlan:
    """One step's work, as parallel lists: sequence i computes `counts[i]` tokens from position `starts[i]`.

    `starts[i] + counts[i] == sequence.num_tokens` exactly when `samples[i]`: the sequence then samples one token.
    A token at a position >= len(sequence.token_ids) is still on the device: it is the one that the runner itself
    sampled for this sequence in the step before. `epochs[i]` is the sequence's epoch when planned.
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


class Runner(Protocol):
    """Runs planned steps on a device. Launches complete in order; at most two are in flight."""

    num_blocks: int  # KV pool size
    vocab_size: int  # logits width; every sampled id is below it

    def launch(self, plan: StepPlan) -> Any:
        """Start a step and return a handle for `collect`; doesn't wait for the device where it can."""

    def collect(self, handle: Any) -> StepResult:
        """Wait for a launched step and read its tokens."""

    def close(self) -> None:
        """Give back the device's memory."""
