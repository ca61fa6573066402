"""Whatever requests are called and whatever they ask: the set of series stays the declared one, and can be parsed."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from fake_engine import FakeEngine
from metric_runs import Key, collected, samples
from nanolens.engine.sampling_params import SamplingParams
from nanolens.errors import InvalidRequest, NanolensError
from nanolens.telemetry.events import AnyEvent, EngineStarted, RequestRefused
from nanolens.telemetry.metric_families import FAMILIES, MAX_LABEL
from nanolens.telemetry.metrics import Metrics

texts = st.text(st.characters(), max_size=30)  # quotes, line ends and other control characters, and any alphabet
ids = texts | st.sampled_from(['"', "\\", "\n", 'a="b"} 1\n# EOF', "é" * 300, "\ud800", "x" * 5000])
requests = st.fixed_dictionaries(
    {
        "id": ids,
        "length": st.integers(1, 20),
        "tokens": st.integers(1, 8),
        "n": st.integers(1, 2),
        "act": st.sampled_from(["", "abort", "pause", "refuse"]),
        "field": ids,
    }
)
ONE_RUN = {"run_id", "model", "version"}


def declared() -> set[tuple[str, frozenset[tuple[str, str]]]]:
    """(family, its bounded labels) of all series that can be."""
    found: set[tuple[str, frozenset[tuple[str, str]]]] = set()
    for family in FAMILIES:
        rows: list[dict[str, str]] = [{}]
        for name, values in family.labels.items():
            rows = [row | {name: text} for row in rows for text in values] if name not in ONE_RUN else rows
        found |= {(family.name, frozenset(row.items())) for row in rows}
    return found


def shown(found: dict[Key, float]) -> set[tuple[str, frozenset[tuple[str, str]]]]:
    """The same of a scrape; labels that have one value in a run are left out."""
    names = {family.name for family in FAMILIES}
    series = set()
    for name, labels in found:
        family = name if name in names else name.rpartition("_")[0]
        series.add((family, frozenset((label, text) for label, text in labels if label not in {*ONE_RUN, "le"})))
    return series


def live(engine: FakeEngine, asked: list[dict[str, Any]]) -> list[AnyEvent]:
    for one in asked:
        if one["act"] == "refuse":
            engine.refuse(one["id"], InvalidRequest(one["field"], "no"))
            continue
        params = SamplingParams(max_tokens=one["tokens"], n=one["n"], temperature=0.0)
        with suppress(NanolensError):  # an id that is refused is no request
            name = engine.add_request(list(range(one["length"])), params, request_id=one["id"])
            engine.step()
            if name in engine.core.requests and one["act"]:
                getattr(engine, one["act"])(name)
    engine.run()
    for name in list(engine.core.requests):
        engine.finish(name)
    engine.core.flush()
    return engine.events


@settings(
    max_examples=30, deadline=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(asked=st.lists(requests, min_size=1, max_size=8), model=ids, version=texts)
def test_series_are_bounded_and_can_be_read(asked: list[dict[str, Any]], model: str, version: str) -> None:
    engine = FakeEngine(num_blocks=16, max_num_seqs=3, host_blocks=2)
    events = live(engine, asked)
    assert isinstance(events[0], EngineStarted)
    metrics = Metrics(trace_ids=lambda request: "0" * 32, clock=lambda: 0)
    metrics.apply_all([msgspec.structs.replace(events[0], model=model, version=version), *events[1:]])
    assert metrics.num_contradictions == 0
    found = samples(metrics.render())
    assert shown(found) | {("nanolens_last_step_timestamp_seconds", frozenset())} == declared()
    assert len(found) == len(collected(metrics)) <= len(collected(Metrics())) + 2  # info, and when a step was read
    assert all(len(text) <= MAX_LABEL for _, labels in found for _, text in labels)
    read = [sample.name for family in parse_openmetrics(metrics.render(openmetrics=True).decode())
            for sample in family.samples]  # fmt: skip
    assert len(read) == len(found)


@given(field=ids, reason=ids)
@settings(max_examples=50, deadline=None, derandomize=True)
def test_any_refusal_has_one_of_the_known_reasons(field: str, reason: str) -> None:
    metrics = Metrics(clock=lambda: 0)
    metrics.apply_all([FakeEngine().events[0], RequestRefused(1, "r", field, reason)])
    found = {labels: number for (name, labels), number in collected(metrics).items() if "refused" in name}
    assert sum(found.values()) == 1
    assert set(found) == {labels for name, labels in declared() if "refused" in name}
