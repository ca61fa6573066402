"""Windows of steps: from one reading to the next, device time last, pauses before it."""

from __future__ import annotations

import numpy as np
import pytest

from nanolens.telemetry.events import StepFinished
from nanolens.telemetry.step_costs import StepCostModel
from nanolens.telemetry.step_windows import StepWindows
from nanolens.telemetry.tracks import StepTable

MODEL = StepCostModel(fixed=10.0, decode=1.0, decode_context=1.0)
WORK = (0, 0, 2, 10)


def table_of(*steps: tuple[int, int, int], work: tuple[int, int, int, int] | None = WORK) -> StepTable:
    """Steps as (number, when read, device time)."""
    table = StepTable()
    for number, t, device_ns in steps:
        table.add(StepFinished(t, number, 0, 0, device_ns, 0, 2, 2, []), work)
    return table


def test_a_window_is_the_device_time_and_the_hosts_before_it() -> None:
    windows = StepWindows(table_of((1, 100, 60), (2, 150, 50)), [], 20, MODEL)
    assert windows.begin_t.tolist() == [20, 100] and windows.end_t.tolist() == [100, 150]
    assert windows.device.tolist() == [60, 50] and windows.host.tolist() == [20, 0]
    assert windows.exact(0, 2) == (110, 20, 0)


def test_device_time_is_no_longer_than_its_window() -> None:
    windows = StepWindows(table_of((1, 100, 60), (2, 120, 50)), [], 0, MODEL)
    assert windows.device.tolist() == [60, 20] and windows.host.tolist() == [40, 0]


def test_a_pause_counts_where_the_device_did_not_work() -> None:
    pauses = [(10, 30, "operator"), (35, 70, "steps"), (90, 250, "steps")]
    windows = StepWindows(table_of((1, 100, 60), (2, 300, 20)), pauses, 0, MODEL)
    assert windows.paused.tolist() == [25, 150] and windows.host.tolist() == [15, 30]
    assert windows.device.tolist() == [60, 20]


@pytest.mark.parametrize("pauses", [[], [(10, 30, "x"), (35, 70, "x"), (90, 250, "x")]])
def test_the_parts_of_a_window_add_up_to_it_wherever_it_is_cut(pauses: list[tuple[int, int, str]]) -> None:
    windows = StepWindows(table_of((1, 100, 60), (2, 300, 20)), pauses, 0, MODEL)
    for row in (0, 1):
        begin, end = int(windows.begin_t[row]), int(windows.end_t[row])
        for cut in range(begin, end + 1, 3):
            parts = np.array(windows.clip(row, begin, cut)) + np.array(windows.clip(row, cut, end))
            assert tuple(parts) == windows.exact(row, row + 1)


def test_time_in_pauses_is_that_of_a_count() -> None:
    pauses = [(10, 30, "x"), (35, 70, "x"), (70, 75, "x"), (90, 95, "x")]
    windows = StepWindows(table_of((1, 100, 1)), pauses, 0, MODEL)
    for begin in range(0, 110, 7):
        for end in range(begin, 110, 5):
            wanted = sum(any(since <= t < to for since, to, _ in pauses) for t in range(begin, end))
            assert windows.paused_within(begin, end) == wanted


def test_a_step_whose_plan_was_not_seen_is_unknown_and_fits_no_model() -> None:
    table = table_of((1, 100, 60))
    table.add(StepFinished(200, 2, 0, 0, 70, 0, 2, 2, []), None)
    windows = StepWindows(table, [], 0)
    assert windows.model.num_steps == 1 and windows.unseen(0, 2) == windows.unseen(1, 2) == 70
    assert windows.bystander(1, 2) == (0.0, 0.0, 0.0) and windows.columns["decodes"].tolist() == [2, 0]


def test_after_the_last_window_the_device_works_from_the_plan_on() -> None:
    windows = StepWindows(table_of((1, 100, 60)), [(104, 108, "x"), (115, 120, "x")], 0, MODEL, unread_t=110)
    assert windows.unread(100, 150) == (35, 6, 9)
    assert windows.unread(112, 150) == (33, 0, 5)
    assert StepWindows(table_of((1, 100, 60)), [], 0, MODEL).unread(100, 150) == (0, 50, 0)


def test_steps_that_failed_have_no_window() -> None:
    windows = StepWindows(table_of((1, 100, 60), (4, 200, 60)), [], 0, MODEL)
    assert windows.rows_of(2, 3) == (1, 1) and windows.rows_of(1, 4) == (0, 2) and windows.rows_of(3, 9) == (1, 2)


def test_what_a_decode_adds_grows_by_a_key_a_step() -> None:
    windows = StepWindows(table_of((1, 100, 22), (2, 200, 44), (3, 300, 22)), [], 0, MODEL)
    assert windows.added(0, 3, 5) == pytest.approx((1 + 5) + 2 * (1 + 6) + (1 + 7))
    assert windows.added(1, 3, windows.keys_at(0, 1, 5)) == pytest.approx(2 * (1 + 6) + (1 + 7))


def test_no_step_is_no_window() -> None:
    windows = StepWindows(StepTable(), [(1, 2, "x")], 0)
    assert len(windows) == 0 and windows.exact(0, 0) == (0, 0, 0) and windows.row_after(5) == 0
