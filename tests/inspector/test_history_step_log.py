"""The time between two steps counts where there was work for the engine, and only there."""

from __future__ import annotations

from nanolens.inspector.history.step_log import StepLog
from nanolens.inspector.view import StepRow
from nanolens.telemetry.events import AnyEvent, EngineContinued, EnginePaused, StatusChanged, StepFinished, StepPlanned


def step(number: int, began: int, running: int = 1) -> list[AnyEvent]:
    """Planned for 2 ns, launched for 1, computed for 5, read 10 after its beginning."""
    return [
        StepPlanned(began + 2, number, "decode", [], running, [], 0, running, 9),
        StepFinished(began + 10, number, 2, 1, 5, 1, running, running, []),
    ]


def rows(events: list[AnyEvent]) -> list[StepRow]:
    log = StepLog()
    log.apply_all(events)
    return log.rows()


def test_a_pause_of_the_host_between_two_steps_is_a_gap_of_the_second() -> None:
    first, second = rows([*step(1, 100), *step(2, 150)])
    assert first.interval_ns == 10
    assert (second.interval_ns, second.gap_ns) == (50, 40 + 2)  # 2: launched, and nothing on the device yet


def test_a_time_without_work_is_none() -> None:
    events = [
        *step(1, 100), StatusChanged(111, 1, 0, "RUNNING", "FINISHED", "length"),
        StatusChanged(500, 1, 1, "", "WAITING", "arrived"), *step(2, 503),
    ]  # fmt: skip
    assert rows(events)[1].interval_ns == 513 - 500


def test_the_time_in_which_the_engine_was_paused_is_none() -> None:
    events = [*step(1, 100), EnginePaused(111, 1, "operator"), EngineContinued(900, 1, 0), *step(2, 905)]
    assert rows(events)[1].interval_ns == 915 - 900


def test_one_that_is_paused_wants_nothing() -> None:
    events = [
        *step(1, 100), StatusChanged(111, 1, 0, "RUNNING", "PAUSED", "operator"),
        StatusChanged(400, 1, 0, "PAUSED", "RUNNING", "resumed"), *step(2, 401),
    ]  # fmt: skip
    assert rows(events)[1].interval_ns == 411 - 400
