"""`journal_lag_seconds`: it grows while reading stands still, and an engine that is idle is not behind."""

from __future__ import annotations

from metric_runs import rich_run, samples
from nanolens.telemetry.events import EngineStopped
from nanolens.telemetry.metrics import Metrics

S = 1_000_000_000
LAG = ("nanolens_journal_lag_seconds", frozenset[tuple[str, str]]())


class Read:
    """Metrics of a run that was read before its end, with a clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0
        self.metrics = Metrics(clock=lambda: self.now)
        for frame in rich_run(True)[:11]:
            self.metrics.apply_all(frame)
            self.now = max(getattr(event, "t", 0) for event in frame)

    @property
    def lag_s(self) -> float:
        return samples(self.metrics.render())[LAG]


def test_before_the_first_event_there_is_none() -> None:
    assert samples(Metrics(clock=lambda: 500 * S).render())[LAG] == 0


def test_it_grows_while_nothing_is_read() -> None:
    read = Read()
    read.now += 40 * S
    assert read.lag_s == 40
    read.now += 60 * S
    assert read.lag_s == 100


def test_it_is_none_at_the_end_of_the_journal_however_old_the_newest_event_is() -> None:
    read = Read()
    read.now += 175 * S
    assert read.lag_s == 175
    read.metrics.caught_up()
    assert read.lag_s == 0
    read.now += S // 10
    assert read.lag_s == 0


def test_a_reader_that_looks_no_more_is_behind_since_its_last_look() -> None:
    read = Read()
    read.now += 175 * S
    read.metrics.caught_up()
    read.now += 30 * S
    assert read.lag_s == 30


def test_old_events_that_are_read_after_the_end_was_reached_are_late() -> None:
    read = Read()
    read.metrics.caught_up()
    frame = rich_run(True)[11]
    read.now = max(getattr(event, "t", 0) for event in frame) + 33 * S
    read.metrics.apply_all(frame)
    assert read.lag_s == 33


def test_once_reading_is_over_it_stays_none() -> None:
    read = Read()
    read.metrics.apply(EngineStopped(read.now, "closed"))
    read.metrics.caught_up(for_good=True)
    read.now += 1000 * S
    assert read.lag_s == 0
