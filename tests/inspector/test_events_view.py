"""The Events view on the screen: the journal as it comes, the predicate, going to a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from made_views import event_rows, keyframe, made_view, sequence
from nanolens.inspector.describe import describe
from nanolens.inspector.tui.events_view import EventsView, tone_of
from nanolens.inspector.view import View
from nanolens.telemetry.events import (
    AnyEvent,
    BlocksAllocated,
    EngineError,
    EnginePaused,
    Mark,
    RequestArrived,
    RequestFinished,
    SequencePreempted,
    StatusChanged,
    StepPlanned,
)
from view_apps import ViewApp, screen_text
from views import view_of_fake_run

SECOND = 1_000_000_000
EVENTS: list[AnyEvent] = [
    RequestArrived(1 * SECOND, "chat-1", [3], 8, 16, 0, {}),
    StatusChanged(1 * SECOND + 100_000, 4, 3, "", "WAITING", "arrived", "chat-1"),
    BlocksAllocated(2 * SECOND, 5, 3, [], [4, 5], [], 9),
    SequencePreempted(3 * SECOND, 6, 7, 3, "no_blocks", "recompute", 4, 16),
    StepPlanned(3 * SECOND + 500_000, 6, "decode", [], 1, [], 0, 1, 9),
    EnginePaused(4 * SECOND, 6, "operator"),
]


def some(count: int = len(EVENTS)) -> View:
    """The first of these events; sequences 3 and 7 live."""
    return made_view(keyframe([sequence(3, request="chat-1"), sequence(7)]), events=event_rows(EVENTS[:count]))


def drive(view: View, script: Callable[[ViewApp, Any], Awaitable[None]], size: tuple[int, int] = (120, 20)) -> None:
    """Run a script on an app that shows a view."""

    async def run() -> None:
        app = ViewApp(EventsView(), view)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await script(app, pilot)

    asyncio.run(run())


def test_events_stand_in_their_order_with_time_step_words_and_tag() -> None:
    async def script(app: ViewApp, pilot: Any) -> None:
        lines = screen_text(app).splitlines()
        assert lines[0] == "the last 6 events"
        assert lines[2].split()[:5] == ["1.0000", "0", "request", "chat-1", "arrived:"]
        assert lines[3].split()[:2] == ["1.0001", "4"] and lines[3].endswith("sequence.status")
        assert "seq 7 preempted for seq 3 (no_blocks, recompute): 4 blocks" in lines[5]

    drive(some(), script)


def test_narrow_screens_leave_out_the_tag_and_not_the_words() -> None:
    async def script(app: ViewApp, pilot: Any) -> None:
        text = screen_text(app)
        assert "seq 3 takes 2 blocks (4 5); 9 free" in text and "blocks.allocated" not in text
        await pilot.resize_terminal(160, 40)
        await pilot.pause()
        assert "blocks.allocated" in screen_text(app)

    drive(some(), script, (80, 17))


def test_a_predicate_leaves_out_what_it_does_not_hold_for() -> None:
    async def script(app: ViewApp, pilot: Any) -> None:
        events = app.widget

        def shown() -> list[object]:
            return [row[2] for row in events.exported().rows]

        assert events.apply_filter("on=preempted") == "" and shown() == ["sequence.preempted"]
        assert events.predicate is not None and events.predicate.text == "on=sequence.preempted"
        await pilot.pause()
        assert screen_text(app).startswith("1 of the last 6 events: on=sequence.preempted")
        assert events.apply_filter("free<10") == "" and shown() == ["blocks.allocated", "step.planned"]
        assert events.apply_filter("request=chat-1") == ""
        assert shown() == ["request.arrived", "sequence.status", "blocks.allocated"]
        assert "no such event" in events.apply_filter("on=premption")
        assert len(shown()) == 3  # the last one that was right
        assert events.apply_filter("seq=99") == ""
        await pilot.pause()
        assert "none of the last 6 events; { and } look for it in the whole journal" in screen_text(app)
        assert events.apply_filter(" ") == "" and events.predicate is None and len(shown()) == 6

    drive(some(), script)


def test_the_request_of_a_sequence_that_has_ended_is_still_known() -> None:
    async def script(app: ViewApp, pilot: Any) -> None:
        later = [BlocksAllocated(5 * SECOND, 8, 3, [], [6], [], 8)]
        app.widget.show(made_view(keyframe([sequence(7)]), events=event_rows(later, segment=2)))
        assert app.widget.apply_filter("request=chat-1") == ""
        assert len(app.widget.exported().rows) == 1 and app.widget.selected_id == "chat-1"

    drive(some(), script)


def test_enter_opens_the_sequence_or_goes_to_the_moment_of_an_event_without_one() -> None:
    async def script(app: ViewApp, pilot: Any) -> None:
        await pilot.press("enter")
        assert app.said == [(1, 100, 6)] and app.widget.selected_seq is None
        await pilot.press("up", "up", "enter")
        assert app.said[1:] == [7] and app.widget.selected_id == "r7"
        await pilot.press("m")
        assert app.said[2:] == [(1, 100, 4)]

    drive(some(), script)


def test_the_cursor_on_the_newest_event_follows_and_any_other_stays() -> None:
    async def script(app: ViewApp, pilot: Any) -> None:
        app.widget.show(some(5))
        await pilot.press("m")
        await pilot.press("up")
        app.widget.show(some(6))
        await pilot.press("m")
        assert app.said == [(1, 100, 5), (1, 100, 4)]

    drive(some(3), script)


def test_what_went_wrong_stands_out() -> None:
    def tone(event: AnyEvent) -> str:
        return tone_of(event_rows([event])[0])

    assert tone(EngineError(1, 2, "no memory")) == tone(StatusChanged(1, 2, 3, "RUNNING", "ERROR", "error")) == "bad"
    assert tone(RequestFinished(1, "r", "error", 1, 1, 0)) == "bad"
    assert tone(RequestFinished(1, "r", "stop", 1, 1, 0)) == "good"
    assert tone(EVENTS[3]) == tone(EVENTS[5]) == tone(Mark(1, "here", "me")) == "warn"
    assert tone(EVENTS[4]) == "dim" and tone(EVENTS[1]) == ""


def test_before_the_first_event_there_is_nothing_to_choose() -> None:
    async def script(app: ViewApp, pilot: Any) -> None:
        assert "no event yet" in screen_text(app)
        await pilot.press("enter", "m")
        assert app.said == [] and app.widget.selected_seq is None and app.widget.selected_id == ""

    drive(made_view(keyframe([])), script)


def test_a_run_of_a_fake_engine_shows_its_preemptions() -> None:
    view = view_of_fake_run()
    expected = sum(isinstance(row.event, SequencePreempted) for row in view.events)

    async def script(app: ViewApp, pilot: Any) -> None:
        assert describe(view.events[-1].event)[:50] in screen_text(app)  # the newest is seen from the start
        assert app.widget.apply_filter("on=preempted") == ""
        assert len(app.widget.exported().rows) == expected > 0

    drive(view, script)
