"""One run of a workload on an engine: what is timed, counted and measured. Knows no flags and prints nothing."""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..engine.engine import Engine
from ..engine.outputs import RequestOutput
from ..engine.sampling_params import SamplingParams
from ..errors import RequestFailed
from ..telemetry.events import AnyEvent
from ..telemetry.lives import Lives
from .ranks import RankFigures
from .stats import Distribution
from .workload import Job

WARM_UP = Job([1, 2, 3, 4, 5, 6, 7, 8], 4)
_NS_PER_MS = 1e6


@dataclass(frozen=True)
class Work:
    """What a run did. Two runs of one workload under the same settings do the same, whatever they cost."""

    num_requests: int
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    num_steps: int


@dataclass(frozen=True)
class RunResult:
    """A run's work and times.

    Attributes:
        work: what it did.
        elapsed_s: from the first add to the last token.
        ttft_ms: arrival to first token.
        itl_ms: time between a sequence's tokens; of all intervals where events were kept, else each request's mean.
        itl_of: "tokens" or "requests", which of the two.
        queue_ms: arrival to first admission.
        ids_sha256: over all output ids, in the requests' order.
        ranks: what the steps took on each rank, where several share the model and events were kept.
    """

    work: Work
    elapsed_s: float
    ttft_ms: Distribution
    itl_ms: Distribution
    itl_of: str
    queue_ms: Distribution
    ids_sha256: str
    ranks: RankFigures | None = None

    @property
    def output_tokens_per_s(self) -> float:
        """Generated tokens a second."""
        return self.work.num_output_tokens / self.elapsed_s

    @property
    def total_tokens_per_s(self) -> float:
        """Prompt and generated tokens a second."""
        return (self.work.num_prompt_tokens + self.work.num_output_tokens) / self.elapsed_s

    @property
    def requests_per_s(self) -> float:
        """Requests a second."""
        return self.work.num_requests / self.elapsed_s

    def as_record(self) -> dict[str, Any]:
        """For a JSON file."""
        rates = {name: getattr(self, name) for name in ("output_tokens_per_s", "total_tokens_per_s", "requests_per_s")}
        return rates | dataclasses.asdict(self)


def run_jobs(engine: Engine, jobs: Sequence[Job], temperature: float, progress: bool = False) -> list[RequestOutput]:
    """Run jobs to their full lengths, all added at once; their outputs, in order.

    Raises:
        RequestFailed: one ended before its length.
    """
    outputs: dict[str, RequestOutput] = {}
    with _bar(len(jobs), progress) as update:

        def finished(output: RequestOutput) -> None:
            outputs[output.request_id] = output
            update()

        names = [
            engine.add_request(
                job.prompt,
                SamplingParams(temperature=temperature, max_tokens=job.max_tokens, ignore_eos=True),
                on_finish=finished,
            )
            for job in jobs
        ]
        while engine.step():
            pass
    ordered = [outputs[name] for name in names]
    for job, output in zip(jobs, ordered, strict=True):
        if len(output.outputs[0].token_ids) != job.max_tokens:
            raise RequestFailed(
                f"{output.request_id} ended after {len(output.outputs[0].token_ids)} of {job.max_tokens} tokens: "
                f"{output.error or output.outputs[0].finish_reason}"
            )
    return ordered


def measure(
    engine: Engine, jobs: Sequence[Job], temperature: float, *, intervals: bool = True, progress: bool = False
) -> RunResult:
    """Warm up with one short request, then time the jobs.

    Args:
        engine: idle.
        jobs: all arrive at once.
        temperature: 0 is greedy.
        intervals: keep the run's events to tell the time between any two tokens; needs a recording engine.
        progress: show a bar on stderr.

    Raises:
        RequestFailed: a job ended before its length.
    """
    run_jobs(engine, [WARM_UP], temperature)
    events: list[AnyEvent] = []
    take = events.extend
    if intervals:
        engine.core.recorder.subscribe(take)
    gc.collect()  # what loading left is no part of the run
    first_step = engine.core.scheduler.step
    began = time.perf_counter()
    outputs = run_jobs(engine, jobs, temperature, progress)
    elapsed = time.perf_counter() - began
    engine.core.recorder.unsubscribe(take)
    result = _result(outputs, elapsed, engine.core.scheduler.step - first_step, _intervals_ms(engine, events))
    return dataclasses.replace(result, ranks=RankFigures.of(events))


def _result(outputs: list[RequestOutput], elapsed: float, num_steps: int, intervals: list[float]) -> RunResult:
    metrics = [output.metrics for output in outputs if output.metrics is not None]
    work = Work(
        num_requests=len(outputs),
        num_prompt_tokens=sum(m.num_prompt_tokens for m in metrics),
        num_output_tokens=sum(m.num_output_tokens for m in metrics),
        num_cached_tokens=sum(m.num_cached_tokens for m in metrics),
        num_preemptions=sum(m.num_preemptions for m in metrics),
        num_steps=num_steps,
    )
    digest = hashlib.sha256()
    for output in outputs:
        digest.update(repr(output.outputs[0].token_ids).encode())
    means = [m.mean_itl_s * 1e3 for m in metrics if m.mean_itl_s is not None]
    return RunResult(
        work=work,
        elapsed_s=elapsed,
        ttft_ms=Distribution.of([m.ttft_s * 1e3 for m in metrics if m.ttft_s is not None]),
        itl_ms=Distribution.of(intervals or means),
        itl_of="tokens" if intervals else "requests",
        queue_ms=Distribution.of([m.queue_s * 1e3 for m in metrics if m.queue_s is not None]),
        ids_sha256=digest.hexdigest(),
    )


def _intervals_ms(engine: Engine, events: list[AnyEvent]) -> list[float]:
    """Times between tokens, worked out after the run from its events."""
    lives = Lives(keep_intervals=True)
    lives.apply(engine.core.started)
    lives.apply_all(events)
    return [interval / _NS_PER_MS for life in lives.lives.values() for interval in life.intervals_ns]


class _bar:
    """A progress bar over requests on stderr, where that is a terminal."""

    def __init__(self, total: int, shown: bool) -> None:
        self._total = total
        self._shown = shown and sys.stderr.isatty()

    def __enter__(self) -> Callable[[], object]:
        from tqdm import tqdm

        self._tqdm = tqdm(total=self._total, desc="requests", disable=not self._shown, dynamic_ncols=True, leave=False)
        update: Callable[[], object] = self._tqdm.update
        return update

    def __exit__(self, *exception: object) -> None:
        self._tqdm.close()
