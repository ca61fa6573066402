"""The engine's settings as one frozen value. Knows nothing of devices or files."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import numbers
import os
import re
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_type_hints

from ..errors import InvalidConfig, shown
from ..telemetry.endpoint import parse_endpoint

MAX_TEXT = 4096  # characters of a model's name and of the journal's path
_MAX = 2**31 - 1

# Least and most of each whole number.
_RANGES: dict[str, tuple[int, int]] = {
    "block_size": (1, _MAX),
    "num_blocks": (1, _MAX),
    "max_num_seqs": (1, 1 << 20),
    "max_num_batched_tokens": (1, _MAX),
    "max_prefill_chunk": (1, _MAX),
    "max_model_len": (1, _MAX),
    "journal_cap": (1 << 16, 2**63 - 1),
    "seed": (-(2**63), 2**63 - 1),
    "host_blocks": (0, _MAX),
    "disk_blocks": (0, _MAX),
    "metrics_port": (0, 65535),
    "tensor_parallel_size": (1, 1024),
}
# Above the first, at most the second; None where the setting allows it.
_REALS: dict[str, tuple[float, float]] = {
    "gpu_memory_utilization": (0.0, 1.0),
    "aging_s": (0.0, 1e9),
    "paused_ttl_s": (0.0, 1e9),
    "rank_timeout_s": (0.0, 1e6),
}
_DEVICE = re.compile(r"auto|cpu|cuda(:(0|[1-9][0-9]{0,2}))?")


@dataclass(frozen=True)
class EngineConfig:
    """Settings of one engine; sizes in tokens, blocks or sequences as named, memory in bytes.

    Attributes:
        model: a directory, a hub name, `smollm2`, or `dummy:NAME` (random weights of a known shape).
        dtype: "auto" takes the checkpoint's on a GPU and float32 on a CPU.
        device: "cpu", "cuda" or "cuda:N"; "auto" takes a GPU where there is one.
        block_size: tokens in a KV block.
        num_blocks: KV blocks in the pool; None sizes it from free memory.
        max_num_seqs: sequences in RUNNING at once.
        max_num_batched_tokens: tokens computed in one step.
        max_prefill_chunk: tokens of one sequence's prefill in one step; None: as many as the budget allows.
        max_model_len: longest prompt + output; None takes the model's, capped by the pool.
        batching: "mixed" computes decode and prefill in one step; "prefill_first" prefills alone first.
        policy: order of the waiting queue: "fcfs", "priority" (lower value first), "sjf" (fewest tokens to go first).
        aging_s: seconds of waiting that weigh as much as one level of priority ("priority"), or 1,000 tokens ("sjf").
        preemption_mode: what a preempted sequence's KV comes back by: "recompute", "swap" (kept in the swap space,
            where there is room), or "auto", the cheaper of the two by what both were measured to cost.
        host_blocks: slots of the swap space in host memory (pinned on a GPU), a block each.
        disk_blocks: slots of the swap space in the file at `swap_path`.
        swap_path: the swap file; made anew, removed at the end. None keeps no file.
        paused_ttl_s: a sequence that stays PAUSED longer expires; None: never.
        prefix_cache: share the blocks of equal prefixes.
        overlap: plan and launch step N+1 before step N is read; None: on a GPU.
        attention: attention backend; "auto" picks by device, dtype and block size.
        gpu_memory_utilization: share of the device's memory that the engine may take.
        recording: record events at all (off is for measuring what recording costs).
        journal: directory of the journal, a text or a path object (kept as text); None keeps no file.
        journal_cap: bytes that a journal may take on disk; the oldest segments go first.
        journal_content: put token ids into the journal.
        metrics_port: where a process beside the engine serves its metrics to Prometheus, on 127.0.0.1; 0: any free
            port; None: nowhere. Without `journal`, it and `otlp` keep one in a temporary directory while the engine
            lives.
        otlp: URL of an OTLP receiver for spans, http://HOST:4318 or grpc://HOST:4317 (https, grpcs); headers come from
            OTEL_EXPORTER_OTLP_HEADERS. None sends none.
        audit: check every invariant of blocks and transitions after every step.
        seed: gives unseeded requests their seeds.
        enforce_eager: no CUDA graphs.
        tensor_parallel_size: ranks that the model is split over, each a process with a GPU of its own (or all on the
            CPU); must divide its query heads. num_blocks, host_blocks and disk_blocks then count blocks whose parts lie
            on all ranks.
        rank_timeout_s: seconds in which no rank gets further with a step that end the engine: none comes to the next
            sum over all ranks, launches a step, sees one end, or moves a block of its swap file. Must be longer than
            what may lie between: on CPUs half a layer of the largest step, on GPUs a step.
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
    aging_s: float = 10.0
    preemption_mode: Literal["auto", "recompute", "swap"] = "auto"
    host_blocks: int = 0
    disk_blocks: int = 0
    swap_path: str | None = None
    paused_ttl_s: float | None = 600.0
    prefix_cache: bool = True
    overlap: bool | None = None
    attention: Literal["auto", "torch", "triton", "flash"] = "auto"
    gpu_memory_utilization: float = 0.9
    recording: bool = True
    journal: str | None = None
    journal_cap: int = 1 << 30
    journal_content: bool = False
    metrics_port: int | None = None
    otlp: str | None = None
    audit: bool = False
    seed: int | None = None
    enforce_eager: bool = False
    tensor_parallel_size: int = 1
    rank_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        """Refuse what can't work.

        Raises:
            InvalidConfig: naming the setting, its value and what is allowed.
        """
        for name, hint in get_type_hints(type(self)).items():
            value, choices = getattr(self, name), get_args(hint)
            if value is None and type(None) in choices:
                continue
            if name in _RANGES:
                self._set(name, _whole(name, value))
            elif bool in (hint, *choices):
                if not isinstance(value, bool):
                    allowed = "True, False or None" if choices else "True or False"
                    raise InvalidConfig(f"{name}={shown(value)}: must be {allowed}")
            elif choices and all(isinstance(choice, str) for choice in choices):
                if not isinstance(value, str) or value not in choices:
                    raise InvalidConfig(f"{name}={shown(value)}: must be one of {', '.join(choices)}")
                self._set(name, str.__str__(value))
            elif name in _REALS:
                self._set(name, _real(name, value, *_REALS[name]))
        self._set("model", _text("model", self.model, "a directory, a hub name, smollm2 or dummy:NAME"))
        self._set("device", check_device(self.device))
        if self.journal is not None:
            self._set("journal", _text("journal", _as_path(self.journal), "a directory's path, or None for no journal"))
        if self.swap_path is not None:
            self._set("swap_path", _text("swap_path", _as_path(self.swap_path), "a file's path, or None for no file"))
        if (self.swap_path is None) != (self.disk_blocks == 0):
            raise InvalidConfig(
                f"swap_path={shown(self.swap_path)} with disk_blocks={self.disk_blocks}: a swap file needs both, its "
                "path and the blocks that it may hold"
            )
        if self.tensor_parallel_size > 1 and ":" in self.device:
            raise InvalidConfig(
                f"tensor_parallel_size={self.tensor_parallel_size} with device={self.device!r}: must be 1 on one GPU; "
                "give device='cuda' and choose the GPUs by CUDA_VISIBLE_DEVICES"
            )
        if self.otlp is not None:
            self._set("otlp", _text("otlp", self.otlp, "the URL of an OTLP receiver, or None"))
            parse_endpoint(self.otlp)
        if self.exports and not self.recording:
            named = "metrics_port" if self.otlp is None else "otlp"
            raise InvalidConfig(f"{named}={shown(getattr(self, named))}: must be None with recording=False")

    @property
    def exports(self) -> bool:
        """Whether an exporter runs beside the engine."""
        return self.metrics_port is not None or self.otlp is not None

    def _set(self, name: str, value: str | int | float) -> None:
        """Put a checked value in the plain type that the journal can hold."""
        object.__setattr__(self, name, value)

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


def check_device(name: object) -> str:
    """A device's name, if it is one that the engine runs on.

    Raises:
        InvalidConfig: it is not.
    """
    if not isinstance(name, str) or _DEVICE.fullmatch(name) is None:
        raise InvalidConfig(f"device={shown(name)}: must be auto, cpu, cuda, or cuda:N with the number of a GPU")
    return str.__str__(name)


def _whole(name: str, value: object) -> int:
    least, most = _RANGES[name]
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidConfig(f"{name}={shown(value)}: must be a whole number of at least {least} and at most {most}")
    return int.__int__(value)


def _real(name: str, value: object, above: float, most: float) -> float:
    """A real number above the one bound and at most the other, whichever type it comes in."""
    number = math.nan
    if not isinstance(value, bool) and isinstance(value, numbers.Real):
        with contextlib.suppress(OverflowError):
            number = float(value)
    if not above < number <= most:
        raise InvalidConfig(f"{name}={shown(value)}: must be above {above:g} and at most {most:g}")
    return number


def _as_path(value: object) -> object:
    """A path object's text; anything else as it is."""
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _text(name: str, value: object, meaning: str) -> str:
    """A text that can name a file and be written to a journal."""
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_TEXT:
        raise InvalidConfig(f"{name}={shown(value)}: must be a text of 1 to {MAX_TEXT} characters: {meaning}")
    if "\0" in value or any("\ud800" <= char <= "\udfff" for char in value):
        raise InvalidConfig(f"{name}={shown(value)}: must hold no NUL and only characters that UTF-8 can encode")
    return str.__str__(value)
