"""`--recording pair`: what recording costs, as runs with it and without it in turn, in one process on one model.

With `--exporter`, the runs with it have an exporter beside them too: spans go to a receiver that only counts, metrics
are kept and scraped once a second.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ..engine.build import build_engine
from .exporter_ends import receiver, scraper
from .offline import Offline, base_record
from .report import environment_lines
from .runs import RunResult, measure
from .stats import median, ratio_of_medians
from .subject import load
from .workload import Job

if TYPE_CHECKING:
    from ..engine.runner.load import LoadedModel

DEFAULT_PAIRS = 5
SETTLING_JOBS = 8  # of a first run that doesn't count


def run_pair(plan: Offline, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Run the pairs and print them; the record for JSON.

    Each run has a fresh engine, so an empty cache and pool, on the same weights. Every other pair begins with the
    other side. Recording on means events, encoded and written to a journal in a temporary directory.
    """
    if plan.exporter:
        with receiver() as (url, _):
            return _run_pairs(plan, say, url)
    return _run_pairs(plan, say, None)


def _run_pairs(plan: Offline, say: Callable[[str], None], otlp: str | None) -> dict[str, Any]:
    parts, workload = load(plan, say)
    record = base_record("recording pair", plan, parts, workload)
    for line in environment_lines(record):
        say(line)
    run_once(plan, parts, workload.jobs[:SETTLING_JOBS], True, otlp)
    sides: dict[bool, list[RunResult]] = {True: [], False: []}
    say("\npair       on tokens/s  off tokens/s  on / off")
    for pair in range(plan.rounds or DEFAULT_PAIRS):
        for recording in (True, False) if pair % 2 == 0 else (False, True):
            sides[recording].append(run_once(plan, parts, workload.jobs, recording, otlp))
        say(_row(str(pair + 1), *(sides[side][-1].output_tokens_per_s for side in (True, False))))
    on, off = ([result.output_tokens_per_s for result in sides[side]] for side in (True, False))
    ratio = ratio_of_medians(on, off)
    say(_row("median", median(on), median(off)))
    works = {result.work for results in sides.values() for result in results}
    with_exporter = " with the exporter" if plan.exporter else ""
    say(f"ratio of medians, recording on{with_exporter} over off: {ratio:.4f}")
    for work in works if len(works) > 1 else ():
        say(f"the runs did not do the same work, so the ratio means little: {work}")
    record["pairs"] = [
        {"on": on.as_record(), "off": off.as_record()} for on, off in zip(sides[True], sides[False], strict=True)
    ]
    record["ratio_of_medians"] = ratio
    record["exporter"] = plan.exporter
    record["same_work"] = len(works) == 1
    return record


def _row(name: str, on: float, off: float) -> str:
    return f"{name:6}  {on:14,.1f}{off:14,.1f}{on / off:10.4f}"


def run_once(
    plan: Offline, parts: LoadedModel, jobs: list[Job], recording: bool, otlp: str | None = None
) -> RunResult:
    """One run on an engine of its own; with recording and `otlp`, an exporter is beside it.

    Raises:
        InvalidConfig: a job that the engine can't hold.
    """
    with tempfile.TemporaryDirectory(prefix="nano-bench-") as directory:
        config = dataclasses.replace(plan.config, recording=recording, journal=directory if recording else None)
        if recording and otlp is not None:
            config = dataclasses.replace(config, otlp=otlp, metrics_port=0)
        engine = build_engine(config, parts)
        port = engine.exporting.metrics_port if engine.exporting is not None else None
        try:
            with _scrapes(port):
                return measure(engine, jobs, plan.temperature, intervals=False)
        finally:
            engine.close()


@contextlib.contextmanager
def _scrapes(port: int | None) -> Iterator[None]:
    """Meanwhile, scrape a port once a second from another process."""
    if port is None:
        yield
        return
    with scraper(port):
        yield
