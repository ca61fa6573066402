"""The Steps view on the screen: figures, split, sparklines, who is in a step, keys."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from made_views import keyframe, made_view, sequence, step_row
from nanolens.inspector.tui.steps_view import StepsView
from nanolens.inspector.view import View
from nanolens.telemetry.events import StepFinished
from view_apps import ViewApp, screen_text
from views import big_view, view_of_fake_run

MS = 1_000_000


def finished(step: int, device_ms: int) -> StepFinished:
    """1 ms of planning and of launching, 1 ms of reading."""
    return StepFinished(
        0, step, MS, MS, device_ms * MS, 3 * MS, num_tokens=3, num_sampled=2, wasted=[], wait_ns=2 * MS
    )


def three_steps(last: int = 3) -> View:
    """Steps to `last`, which is in flight; the one before it takes thrice the time of the first and preempts."""
    rows = [
        step_row(last - 2, [(5, 0, 4)], 2, finished=finished(last - 2, 2), interval_ns=6 * MS, gap_ns=MS),
        step_row(
            last - 1, decodes=3, finished=finished(last - 1, 14), interval_ns=18 * MS, gap_ns=MS, preemptions=1,
            queried_tokens=8, hit_tokens=4,
        ),
        step_row(last, [(6, 4, 4)], 1),
    ]  # fmt: skip
    return made_view(keyframe([sequence(1), sequence(6)], step=last), rows)


def drive(view: View, script: Callable[[ViewApp, Any], Awaitable[None]], size: tuple[int, int] = (160, 20)) -> None:
    """Run a script on an app that shows a view."""

    async def run() -> None:
        app = ViewApp(StepsView(), view)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await script(app, pilot)

    asyncio.run(run())


def test_each_step_shows_its_parts_in_milliseconds_and_its_composition() -> None:
    async def script(app: ViewApp, pilot: Any) -> None:
        rows = [line.split() for line in screen_text(app).splitlines()[4:7]]
        assert rows[0][:7] == ["1", "mixed", "6.00", "1.00", "1.00", "2.00", "1.00"]
        assert rows[0][8:12] == ["6", "2", "4", "2"]
        assert rows[1][:7] == ["2", "decode", "18.00", "1.00", "1.00", "14.00", "1.00"]
        assert rows[2][:7] == ["3", "mixed", "-", "-", "-", "-", "-"]

    drive(three_steps(), script)


def test_the_split_of_the_longest_step_is_the_longest_bar() -> None:
    async def script(app: ViewApp, pilot: Any) -> None:
        first, second = (line.split()[7] for line in screen_text(app).splitlines()[4:6])
        assert (first, second) == ("▒▓█░·", "▒▓██████████░·")
        assert "▒ plan  ▓ launch  █ device  ░ read  · gap" in screen_text(app)

    drive(three_steps(), script)


def test_sparklines_show_intervals_and_tokens() -> None:
    async def script(app: ViewApp, pilot: Any) -> None:
        lines = screen_text(app).splitlines()
        assert lines[0].startswith("interval ") and lines[0].endswith("█ mean 12.00, max 18.00 ms")
        assert lines[1].endswith("mean 4.5 a step")

    drive(three_steps(), script)


def test_below_stands_who_is_in_the_step_under_the_cursor() -> None:
    async def script(app: ViewApp, pilot: Any) -> None:
        assert screen_text(app).splitlines()[16:] == [
            "step 3 in flight: 5 tokens, 0 sampled", "prefill: seq 6 4+4", "decode 1: seq 1",
        ]  # fmt: skip
        await pilot.press("up")
        assert screen_text(app).splitlines()[16:18] == [
            "step 2 done: 3 tokens, 2 sampled, 4 of 8 prompt tokens cached",
            "decode 3: go to the step (enter) to see which",
        ]

    drive(three_steps(), script)


def test_enter_goes_to_the_step_and_f_to_its_first_sequence() -> None:
    async def script(app: ViewApp, pilot: Any) -> None:
        await pilot.press("enter", "f")
        assert app.said == [3, 6] and app.widget.selected_seq == 6 and app.widget.selected_id == "3"
        await pilot.press("up", "enter", "f")
        assert app.said == [3, 6, 2] and app.widget.selected_seq is None

    drive(three_steps(), script)


def test_the_cursor_on_the_newest_step_follows_and_any_other_stays() -> None:
    async def script(app: ViewApp, pilot: Any) -> None:
        app.widget.show(three_steps(4))
        await pilot.pause()
        assert app.widget.selected_id == "4"
        await pilot.press("up")
        app.widget.show(three_steps(5))
        await pilot.pause()
        assert app.widget.selected_id == "3"

    drive(three_steps(3), script)


def test_a_filter_leaves_out_what_does_not_meet_it() -> None:
    async def script(app: ViewApp, pilot: Any) -> None:
        steps = app.widget

        def shown() -> list[object]:
            return [row[0] for row in steps.exported().rows]

        assert steps.apply_filter("device>10ms preemptions:1") == "" and shown() == [2]
        assert steps.apply_filter("prefill>0") == "" and shown() == [1, 3]
        assert steps.apply_filter("state:flight") == "" and shown() == [3]
        assert steps.apply_filter("decode") == "" and shown() == [2]
        assert "give a unit" in steps.apply_filter("gap>1")
        assert "did you mean device" in steps.apply_filter("devise>1ms") and shown() == [2]
        assert steps.apply_filter("waiting>50") == ""
        await pilot.pause()
        assert "no step meets the filter" in screen_text(app)
        assert steps.apply_filter("") == "" and shown() == [1, 2, 3]

    drive(three_steps(), script)


def test_steps_can_be_sorted_by_a_column() -> None:
    async def script(app: ViewApp, pilot: Any) -> None:
        await pilot.press("full_stop", "full_stop", "full_stop", "minus")  # interval, the longest first
        assert [row[0] for row in app.widget.exported().rows] == [2, 1, 3]

    drive(three_steps(), script)


def test_before_the_first_step_there_is_nothing_to_choose() -> None:
    async def script(app: ViewApp, pilot: Any) -> None:
        assert "no step yet" in screen_text(app)
        await pilot.press("enter", "f")
        assert app.said == [] and app.widget.selected_id == ""

    drive(made_view(keyframe([])), script)


def test_a_run_of_a_fake_engine_shows_its_last_steps_at_80_columns() -> None:
    view = view_of_fake_run()

    async def script(app: ViewApp, pilot: Any) -> None:
        assert app.widget.selected_id == str(view.keyframe.step)
        assert all(len(line) <= 80 for line in screen_text(app).splitlines())
        assert f"step {view.keyframe.step} done" in screen_text(app)
        assert any(line.split()[:1] == [app.widget.selected_id] for line in screen_text(app).splitlines())

    drive(view, script, (80, 17))


def test_long_histories_end_at_the_width_of_the_screen() -> None:
    async def script(app: ViewApp, pilot: Any) -> None:
        assert all(line.endswith(("ms", "step")) for line in screen_text(app).splitlines()[:2])
        await pilot.resize_terminal(120, 20)
        await pilot.pause()
        assert screen_text(app).splitlines()[0].count("█") > 80

    drive(big_view(20, 2, 300), script, (80, 20))
