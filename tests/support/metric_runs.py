"""Builders for tests of the metrics: a run in which everything happens, and scrapes as dictionaries."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from fake_engine import Clock, FakeEngine
from nanolens.engine.plan import StepPlan
from nanolens.engine.sampling_params import SamplingParams
from nanolens.engine.sequence import SequenceStatus
from nanolens.errors import InvalidRequest, PromptTooLong
from nanolens.telemetry.events import AnyEvent
from nanolens.telemetry.journal import JournalWriter
from nanolens.telemetry.metrics import Metrics
from nanolens.telemetry.reader import JournalReader
from nanolens.telemetry.recorder import Recorder

NOT_COUNTED = {
    f"nanolens_{name}"
    for name in ("engine_info", "journal_lag_seconds", "spans_total", "journal_bytes_total", "journal_gaps_total")
}
Key = tuple[str, frozenset[tuple[str, str]]]


class Failures:
    """Faults that a runner has at chosen steps."""

    def __init__(self, engine: FakeEngine) -> None:
        engine.runner.fail_launch = self.launch
        engine.runner.fail_rows = self.rows
        self.launches: set[int] = set()
        self.row_steps: set[int] = set()

    def launch(self, plan: StepPlan) -> Exception | None:
        return RuntimeError("a kernel failed") if plan.step in self.launches else None

    def rows(self, plan: StepPlan) -> dict[int, str]:
        failing = plan.step in self.row_steps and plan.sequences
        return {plan.sequences[-1].seq_id: "logits are not finite"} if failing else {}


def rich_engine(journal: Path, overlap: bool = True, **options: object) -> FakeEngine:
    """An engine over a small pool after a run with queueing, chunks, cache hits, evictions, preemptions by swap and by
    recompute, pauses, moves that fail, aborts, refusals, failed rows, a failed step and a failing callback; not closed.

    The journal has a keyframe after each frame, made from the engine's own objects, and the tokens.
    """
    clock = Clock()
    writer = JournalWriter(journal, "run", segment_bytes=1 << 20, clock=clock)
    settings: dict[str, object] = {
        "num_blocks": 20, "max_num_seqs": 6, "max_prefill_chunk": 6, "host_blocks": 5, "disk_blocks": 7,
        "preemption_mode": "swap", "journal_content": True, "policy": "priority",
    } | options  # fmt: skip
    engine = FakeEngine(recorder=Recorder(writer, clock, keyframe_interval_ns=0), overlap=overlap, **settings)  # type: ignore[arg-type]
    failures = Failures(engine)
    failures.row_steps = {20, 21}
    failures.launches = {40}
    engine.runner.fail_move = lambda move: "a bad device" if move.move % 5 == 3 else ""
    for number in range(30):
        _one_more(engine, number)
    while engine.core.requests:
        engine.run()
        for request in _resting(engine):
            engine.finish(request)
    return engine


def _one_more(engine: FakeEngine, number: int) -> None:
    """Add a request, do something to it, and step twice."""
    shared = [1, 2, 3, 4, 5, 6, 7, 8][: 4 * (number % 3)]
    options = {"n": 1 + (number % 6 == 5), "priority": number % 3, "on_stop": "pause" if number % 7 == 4 else "finish"}
    name = engine.add(shared + [20 + number] * (1 + number % 5), max_tokens=6 + 3 * (number % 5), **options)
    engine.step()
    if number % 8 == 7:
        engine.abort(name)
    if number % 10 == 3 and name in engine.core.requests:
        engine.pause(name)
    if number == 9:
        engine.refuse("too long", PromptTooLong("prompt", "prompt has 9,000 tokens"))
        engine.refuse("odd", InvalidRequest("top_k", "top_k=-2: must be at least -1"))
        engine.add_request([5, 6, 7], SamplingParams(max_tokens=2), on_finish=_failing)
    if number == 15:
        engine.pause_engine()
        engine.step()
        engine.continue_engine()
    engine.step()
    if number % 4 == 3:
        for request in _resting(engine):
            engine.resume(request, append=[900, 901], max_tokens=5)


def _resting(engine: FakeEngine) -> list[str]:
    """Requests of which a sequence is paused."""
    return [
        name for name, request in engine.core.requests.items()
        if any(seq.status is SequenceStatus.PAUSED for seq in request.sequences)
    ]  # fmt: skip


def _failing(output: object) -> None:
    raise RuntimeError("a callback's own fault")


@cache
def rich_run(overlap: bool) -> list[list[AnyEvent]]:
    """The frames of such a run's journal, to its end. Not to be changed."""
    with TemporaryDirectory() as directory:
        engine = rich_engine(Path(directory), overlap)
        engine.core.close()
        return batches(Path(directory))


def flat(frames: list[list[AnyEvent]]) -> list[AnyEvent]:
    """The events of frames."""
    return [event for frame in frames for event in frame]


def fed(frames: list[list[AnyEvent]], now: int = 0) -> Metrics:
    """Metrics that were given these frames."""
    metrics = Metrics(clock=lambda: now)
    for frame in frames:
        metrics.apply_all(frame)
    return metrics


def batches(journal: Path) -> list[list[AnyEvent]]:
    """The journal's frames."""
    return [frame.events for frame in JournalReader(journal).frames()]


def samples(text: bytes) -> dict[Key, float]:
    """A scrape in the classic format: (sample's name, its labels) -> value."""
    found: dict[Key, float] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found
            found[key] = sample.value
    return found


def collected(metrics: Metrics) -> dict[Key, float]:
    """The same without the text between, for tests that look often."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in metrics.collect() for sample in family.samples
    }  # fmt: skip


def key(name: str, labels: Mapping[str, str] | None = None, **more: str) -> Key:
    """The key of a sample in `samples`."""
    return f"nanolens_{name}", frozenset(((labels or {}) | more).items())


def value(metrics: Metrics, name: str, **labels: str) -> float:
    """One sample of a scrape, by its name without prefix."""
    return samples(metrics.render())[key(name, labels)]


def observed(metrics: Metrics, name: str, **labels: str) -> tuple[float, float]:
    """How many values a histogram has, and their sum."""
    found = collected(metrics)
    return found[key(f"{name}_count", labels)], found[key(f"{name}_sum", labels)]


def token_first(engine: FakeEngine, index: int) -> int:
    """When the first token of the request of this number was read."""
    found = engine.outputs[f"req-{index}"].metrics
    assert found is not None
    return found.first_token_t


def of(events: list[AnyEvent], kind: type) -> list[Any]:
    """The events of one kind."""
    return [event for event in events if isinstance(event, kind)]


def of_kinds(found: dict[Key, float], *kinds: tuple[Any, ...]) -> dict[Key, float]:
    """The samples of some families that are not 0."""
    names = {family.name for families in kinds for family in families} - NOT_COUNTED
    return {sample: number for sample, number in found.items() if sample[0] in names and number}
