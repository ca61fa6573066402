"""The engine's settings as one frozen value. Knows nothing of devices or files."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_type_hints

from ..errors import InvalidConfig


@dataclass(frozen=True)
class EngineConfig:
    """Settings of one engine; sizes in tokens, blocks or sequences as named, memory in bytes.

    Attributes:
        model: a directory, a hub name, `smollm2`, or `dummy:NAME` (random weights of a known shape).
        dtype: "auto" takes the checkpoint's on a GPU and float32 on a CPU.
        device: "auto" takes a GPU where there is one.
        block_size: tokens in a KV block.
        num_blocks: KV blocks in the pool; None sizes it from free memory.
        max_num_seqs: sequences in RUNNING at once.
        max_num_batched_tokens: tokens computed in one step.
        max_prefill_chunk: tokens of one sequence's prefill in one step; None: as many as the budget allows.
        max_model_len: longest prompt + output; None takes the model's, capped by the pool.
        batching: "mixed" computes decode and prefill in one step; "prefill_first" prefills alone first.
        policy: order of the waiting queue: "fcfs", "priority" (lower value first), "sjf" (fewest tokens to go first).
        prefix_cache: share the blocks of equal prefixes.
        overlap: plan and launch step N+1 before step N is read; None: on a GPU.
        attention: attention backend; "auto" picks by device, dtype and block size.
        gpu_memory_utilization: share of the device's memory that the engine may take.
        recording: record events at all (off is for measuring what recording costs).
        journal: directory of the journal; None keeps no file.
        journal_cap: bytes that a journal may take on disk; the oldest segments go first.
        journal_content: put token ids into the journal.
        audit: check every invariant of blocks and transitions after every step.
        seed: gives unseeded requests their seeds.
        enforce_eager: no CUDA graphs.
    """

    model: str = "smollm2"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: str = "auto"
    block_size: int = 16
    num_blocks: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_prefill_chunk: int | None = None
    max_model_len: int | None = None
    batching: Literal["mixed", "prefill_first"] = "mixed"
    policy: Literal["fcfs", "priority", "sjf"] = "fcfs"
    prefix_cache: bool = True
    overlap: bool | None = None
    attention: Literal["auto", "torch", "triton", "flash"] = "auto"
    gpu_memory_utilization: float = 0.9
    recording: bool = True
    journal: str | None = None
    journal_cap: int = 1 << 30
    journal_content: bool = False
    audit: bool = False
    seed: int | None = None
    enforce_eager: bool = False

    def __post_init__(self) -> None:
        """Refuse what can't work.

        Raises:
            InvalidConfig: naming the setting, its value and what is allowed.
        """
        at_least = {"block_size": 1, "max_num_seqs": 1, "max_num_batched_tokens": 1, "journal_cap": 1 << 16}
        optional = {"num_blocks": 1, "max_prefill_chunk": 1, "max_model_len": 1}
        for name, least in (at_least | optional).items():
            value = getattr(self, name)
            if value is None and name in optional:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InvalidConfig(f"{name}={value!r}: must be a whole number of at least {least}")
        for name, hint in get_type_hints(type(self)).items():
            allowed = get_args(hint)
            if allowed and all(isinstance(choice, str) for choice in allowed) and getattr(self, name) not in allowed:
                raise InvalidConfig(f"{name}={getattr(self, name)!r}: must be one of {', '.join(allowed)}")
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise InvalidConfig(f"gpu_memory_utilization={self.gpu_memory_utilization}: must be above 0 and at most 1")

    @classmethod
    def from_options(cls, model: str, options: dict[str, Any]) -> EngineConfig:
        """Build from keyword options.

        Raises:
            TypeError: an option that does not exist, named, with the closest existing one.
            InvalidConfig: a value out of range.
        """
        known = {f.name for f in dataclasses.fields(cls)} - {"model"}
        for name in options:
            if name not in known:
                import difflib

                close = difflib.get_close_matches(name, known, 1)
                hint = f"; did you mean {close[0]}?" if close else f"; options are {', '.join(sorted(known))}"
                raise TypeError(f"unknown option {name!r}{hint}")
        return cls(model=model, **options)

    def as_record(self) -> dict[str, str | int | float | bool | None]:
        """The settings as the journal's first event holds them."""
        return dataclasses.asdict(self)
