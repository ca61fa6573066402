"""What metrics say after a gap in the journal, after the engine's death, and in the next run."""

from __future__ import annotations

import pytest

from metric_runs import (
    collected,
    fed,
    of_kinds,
    rich_run,
    samples,
    value,
)
from nanolens.telemetry.events import (
    BlocksFreed,
    EngineStopped,
    JournalDropped,
    Keyframe,
)
from nanolens.telemetry.metric_families import COUNTERS, ENDS, GAUGES
from nanolens.telemetry.metrics import Metrics


@pytest.mark.parametrize("overlap", [False, True])
def test_after_a_gap_gauges_and_counters_go_on_from_the_keyframe(overlap: bool) -> None:
    frames = rich_run(overlap)[:-1]
    joins = [index for index, frame in enumerate(frames) if isinstance(frame[0], Keyframe)]
    whole = fed(frames)
    for index in (joins[5], joins[len(joins) // 2], joins[-5]):
        lost = JournalDropped(frames[index][0].t, 9, 3, "disk full")  # type: ignore[union-attr]
        broken = fed([*frames[: index - 6], [lost], *frames[index:]])
        skipped = fed([*frames[: index - 6], *frames[index:]])  # nobody says that something is missing
        for other in (broken, skipped, fed(frames[index:])):
            expected, found = samples(whole.render()), samples(other.render())
            assert of_kinds(found, GAUGES) == of_kinds(expected, GAUGES)
            assert of_kinds(found, COUNTERS) == of_kinds(expected, COUNTERS)


def test_counters_do_not_fall_where_events_are_missed() -> None:
    frames = rich_run(True)
    metrics = Metrics(clock=lambda: 0)
    before = collected(metrics)
    for number, frame in enumerate(frames):
        if number % 9 == 8:
            metrics.lose()
        elif number % 9 != 7 or isinstance(frame[-1], EngineStopped):
            metrics.apply_all(frame)
        after = collected(metrics)
        assert not [sample for sample in of_kinds(before, COUNTERS) if after[sample] < before[sample]]
        before = after


def test_an_event_that_fits_nothing_before_it_is_a_gap() -> None:
    frames = rich_run(True)[:-1]
    broken = [*frames[:100], [BlocksFreed(1, 1, 77, [3], 0)], *frames[100:]]
    whole, other = fed(frames), fed(broken)
    assert other.num_contradictions == 1
    assert of_kinds(samples(other.render()), GAUGES, COUNTERS) == of_kinds(samples(whole.render()), GAUGES, COUNTERS)


def test_an_engine_that_died_holds_nothing_and_is_down() -> None:
    frames = rich_run(True)
    metrics = fed(frames[: len(frames) // 2], now=1 << 60)
    assert value(metrics, "engine_up") == 1
    assert value(metrics, "sequences", status="RUNNING") > 0
    counters = of_kinds(samples(metrics.render()), COUNTERS)
    metrics.engine_gone()
    found = samples(metrics.render())
    assert {name for name, _ in of_kinds(found, GAUGES)} == {
        "nanolens_last_step_timestamp_seconds", "nanolens_engine_ended",
    }  # fmt: skip
    assert value(metrics, "engine_ended", reason="gone") == 1
    assert of_kinds(found, COUNTERS) == counters
    metrics.apply_all(frames[len(frames) // 2])
    assert value(metrics, "engine_up") == 1


@pytest.mark.parametrize(("reason", "told"), [("closed", "stopped"), ("error", "failed")])
def test_an_engine_that_ended_tells_how(reason: str, told: str) -> None:
    frames = rich_run(True)[:-1]
    metrics = fed([*frames, [EngineStopped(1 << 50, reason)]])
    for engine_is_looked_for in (False, True):
        if engine_is_looked_for:
            metrics.engine_gone()  # its process ends after its last word
        found = {each: value(metrics, "engine_ended", reason=each) for each in ENDS}
        assert found == {each: each == told for each in ENDS} and value(metrics, "engine_up") == 0
    metrics.apply_all(frames[0])
    assert [value(metrics, "engine_ended", reason=each) for each in ENDS] == [0, 0, 0]


def test_each_gap_in_what_was_read_is_counted() -> None:
    metrics = fed(rich_run(True)[:9])
    assert value(metrics, "journal_gaps_total") == 0
    metrics.lose()
    metrics.lose()
    assert value(metrics, "journal_gaps_total") == 2


def test_a_run_that_begins_starts_all_counts_anew() -> None:
    frames = rich_run(True)
    twice = fed([*frames, *frames])
    assert samples(twice.render()) == samples(fed(frames).render())


def test_lost_events_are_counted_from_the_journals_own_word() -> None:
    frames = rich_run(True)
    metrics = fed([*frames[:40], [JournalDropped(1, 9, 3, "disk full")]])
    assert value(metrics, "journal_dropped_events_total") == 9
