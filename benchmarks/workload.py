"""What a benchmark asks of an engine: prompts and output lengths, drawn or read from a trace. Knows no engine."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import InvalidConfig
from .traces import Lengths, read_trace, scaled_length

MAX_DRAWN_ID = 10_000  # of the reference workload; smaller vocabularies lower it
REFERENCE_LENGTHS = (100, 1024)
REFERENCE_REQUESTS = 256
REFERENCE_MAX_MODEL_LEN = 4096

Chat = Callable[[list[dict[str, str]]], list[int]]


@dataclass(frozen=True)
class Job:
    """One request: its prompt's token ids and the tokens that it generates, exactly."""

    prompt: list[int]
    max_tokens: int


@dataclass(frozen=True)
class WorkloadSpec:
    """Which workload.

    Attributes:
        num_requests: how many are drawn.
        input_len: least and most prompt tokens.
        output_len: least and most output tokens; for a trace only where it holds none.
        seed: of all draws.
        trace: file to read instead of drawing.
        limit: rows of the trace to read; None: all.
        scale: factor on every length.
        shared_prefix: share of each prompt that is the same in all of them.
    """

    num_requests: int = REFERENCE_REQUESTS
    input_len: Lengths = REFERENCE_LENGTHS
    output_len: Lengths = REFERENCE_LENGTHS
    seed: int = 0
    trace: Path | None = None
    limit: int | None = None
    scale: float = 1.0
    shared_prefix: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what can't be drawn.

        Raises:
            InvalidConfig: naming the flag.
        """
        if self.num_requests < 1:
            raise InvalidConfig(f"num_requests={self.num_requests}: must be at least 1")
        if self.limit is not None and self.limit < 1:
            raise InvalidConfig(f"limit={self.limit}: must be at least 1")
        for name in ("input_len", "output_len"):
            low, high = getattr(self, name)
            if not 1 <= low <= high:
                raise InvalidConfig(f"{name}={low}:{high}: must be MIN:MAX with 1 <= MIN <= MAX")
        if not 0.0 < self.scale <= 1e3:
            raise InvalidConfig(f"scale_lengths={self.scale}: must be above 0 and at most 1000")
        if not 0.0 <= self.shared_prefix <= 1.0:
            raise InvalidConfig(f"shared_prefix={self.shared_prefix}: must be from 0 to 1, a share of each prompt")

    @property
    def is_reference(self) -> bool:
        """Whether this is the reference workload itself."""
        return self == WorkloadSpec()

    def describe(self) -> str:
        """One line, before anything is read or drawn."""
        extras = f", lengths x {self.scale:g}" if self.scale != 1.0 else ""
        extras += f", {self.shared_prefix:.0%} shared prefix" if self.shared_prefix else ""
        if self.trace is not None:
            rows = "all" if self.limit is None else f"the first {self.limit}"
            return f"{rows} requests of {self.trace.name}{extras}"
        name = "the reference workload: " if self.is_reference else ""
        return (
            f"{name}{self.num_requests} requests, {span(self.input_len)} prompt and {span(self.output_len)} output "
            f"tokens, seed {self.seed}{extras}"
        )

    def as_record(self) -> dict[str, Any]:
        """For a JSON file."""
        return {
            "num_requests": self.num_requests if self.trace is None else None,
            "input_len": list(self.input_len) if self.trace is None else None,
            "output_len": list(self.output_len),
            "seed": self.seed,
            "trace": self.trace.name if self.trace is not None else None,
            "limit": self.limit,
            "scale_lengths": self.scale,
            "shared_prefix": self.shared_prefix,
        }


@dataclass(frozen=True)
class Workload:
    """Requests in the order of their arrival; offline they all arrive at once."""

    spec: WorkloadSpec
    jobs: list[Job] = field(repr=False)

    @property
    def num_prompt_tokens(self) -> int:
        """Over all requests."""
        return sum(len(job.prompt) for job in self.jobs)

    @property
    def num_output_tokens(self) -> int:
        """Over all requests."""
        return sum(job.max_tokens for job in self.jobs)

    def check_fits(self, max_model_len: int) -> None:
        """Refuse a workload with a request that the engine can't hold.

        Raises:
            InvalidConfig: naming the first one and what can be done.
        """
        for index, job in enumerate(self.jobs):
            total = len(job.prompt) + job.max_tokens
            if total > max_model_len:
                raise InvalidConfig(
                    f"request {index} of the workload takes {total} tokens, and the engine holds {max_model_len} "
                    "(max_model_len): shorten the requests (--scale-lengths, --input-len, --output-len), or raise "
                    "--max-model-len or --num-blocks"
                )


def span(lengths: Lengths) -> str:
    """A range of lengths in words."""
    low, high = lengths
    return str(low) if low == high else f"{low} to {high}"


def make_workload(spec: WorkloadSpec, vocab_size: int, chat: Chat) -> Workload:
    """Draw or read what `spec` names; the same spec, vocabulary and file give the same requests.

    Args:
        spec: which.
        vocab_size: ids stay below it.
        chat: turns a conversation into token ids, for traces of text.

    Raises:
        InvalidConfig: the trace can't be read or has no known format.
    """
    if spec.trace is None:
        return Workload(spec, _adapt(_draw(spec, vocab_size), spec, vocab_size))
    # A trace of lengths draws at its scale, so that equal blocks stay equal; a text can only be cut.
    rng = random.Random(spec.seed)
    requests, scaled = read_trace(spec.trace, spec.limit, spec.scale, spec.output_len, rng, vocab_size, chat)
    jobs = [Job(prompt, max_tokens) for prompt, max_tokens in requests]
    return Workload(spec, _adapt(jobs, replace(spec, scale=1.0) if scaled else spec, vocab_size))


def _draw(spec: WorkloadSpec, vocab_size: int) -> list[Job]:
    """Prompts first, each its length and then its ids; then the output lengths."""
    rng = random.Random(spec.seed)
    top = min(MAX_DRAWN_ID, vocab_size - 1)
    prompts = [[rng.randint(0, top) for _ in range(rng.randint(*spec.input_len))] for _ in range(spec.num_requests)]
    return [Job(prompt, rng.randint(*spec.output_len)) for prompt in prompts]


def _adapt(jobs: list[Job], spec: WorkloadSpec, vocab_size: int) -> list[Job]:
    """Scale the lengths, then make the beginnings equal."""
    if spec.scale != 1.0:
        jobs = [_scaled(job, spec.scale) for job in jobs]
    if not spec.shared_prefix:
        return jobs
    rng = random.Random(f"shared prefix {spec.seed}")
    top = min(MAX_DRAWN_ID, vocab_size - 1)
    common = [rng.randint(0, top) for _ in range(max(len(job.prompt) for job in jobs))]
    shared = [round(spec.shared_prefix * len(job.prompt)) for job in jobs]
    return [
        Job(common[:count] + job.prompt[count:], job.max_tokens) for job, count in zip(jobs, shared, strict=True)
    ]


def _scaled(job: Job, scale: float) -> Job:
    """A shorter or, with its prompt repeated, a longer job."""
    length = scaled_length(len(job.prompt), scale)
    copies = -(-length // len(job.prompt))
    return Job((job.prompt * copies)[:length], scaled_length(job.max_tokens, scale))
