"""The ways through time: in which order they are gone, and what overrules them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_source import FakeSource
from journals import busy_engine
from nanolens.errors import InspectError
from nanolens.inspector.clock_words import Jump
from nanolens.inspector.sources.journal_source import JournalSource
from nanolens.inspector.tui.time_travel import Steps, TimeTravel, To, ToEvent, Way
from nanolens.inspector.view import Moment
from nanolens.telemetry.frames import segment_path
from nanolens.telemetry.predicate import parse


def test_without_ways_it_is_live() -> None:
    source = FakeSource()
    seen = TimeTravel(source).look(None, None)
    assert seen.view.is_live and seen.view.moment.segment == source.last and seen.story is None


def test_steps_in_a_row_are_one_way() -> None:
    source = FakeSource()
    travel = TimeTravel(source)
    for count in (-5, -1, 2):
        travel.add(Steps(count))
    assert travel.look(source.view(Moment(20, 0, 0)), None).view.moment.segment == 16
    assert source.asked == [("move", -4)]


def test_ways_are_gone_in_order() -> None:
    source = FakeSource()
    travel = TimeTravel(source)
    travel.add(Steps(-5))
    travel.add(To(Moment(9, 0, 0)))
    travel.add(Steps(1))
    assert travel.look(source.view(Moment(20, 0, 0)), None).view.moment.segment == 10


def test_no_steps_at_all_lead_nowhere_else() -> None:
    source = FakeSource()
    travel = TimeTravel(source)
    travel.add(To(Jump(steps=0)))
    assert travel.look(source.view(Moment(7, 0, 0)), None).view.moment == Moment(7, 0, 0)
    assert source.asked == []


def test_the_first_way_leads_from_what_is_on_the_screen() -> None:
    source = FakeSource()
    travel = TimeTravel(source)
    travel.add(Steps(-1))
    assert travel.look(source.view(Moment(7, 0, 0)), None).view.moment.segment == 6
    assert travel.moment == Moment(6, 0, 0)


def test_a_way_that_leads_nowhere_ends_the_ones_behind_it() -> None:
    source = FakeSource()
    travel = TimeTravel(source)
    travel.freeze(Moment(20, 0, 0))
    travel.add(ToEvent(parse("on=engine.error"), True))
    travel.add(Steps(-3))
    with pytest.raises(InspectError, match=r"no event that meets on=engine\.error after"):
        travel.look(None, None)
    assert travel.look(None, None).view.moment.segment == 20


def test_going_live_overrules_a_way_that_a_look_is_on() -> None:
    class Slow(FakeSource):
        def move(self, moment: Moment, steps: int) -> Moment:
            travel.go_live()
            return super().move(moment, steps)

    travel = TimeTravel(Slow())
    travel.freeze(Moment(20, 0, 0))
    travel.add(Steps(-1))
    travel.look(None, None)
    assert travel.moment is None


def test_a_story_is_told_of_the_moment() -> None:
    source = FakeSource()
    travel = TimeTravel(source)
    seen = travel.look(None, 2)
    assert seen.story is not None and seen.story.seq == 2 and source.asked == [("story", 2)]


def test_what_was_shown_of_a_moment_that_is_deleted_stays_between_the_ticks_of_now() -> None:
    source = FakeSource()
    source.last -= 5
    travel = TimeTravel(source)
    travel.freeze(Moment(7, 0, 0))
    shown = travel.look(None, None).view
    source.first, source.last = 12, source.last + 5
    seen = travel.look(shown, 3)
    assert seen.is_gone and seen.story is None and seen.view.keyframe == shown.keyframe
    first, last = (source.view(Moment(frame, 0, 0)).keyframe for frame in (source.first, source.last))
    assert (seen.view.first.t, seen.view.last.t) == (first.t, last.t)
    assert seen.view.last > shown.last or shown.last.t == last.t


@pytest.mark.parametrize("way", [Steps(1), Steps(-1), Steps(-40), ToEvent(None, True), ToEvent(None, False),
                                 To(Jump(steps=-3))])  # fmt: skip
def test_from_a_moment_that_is_deleted_steps_and_events_lead_to_the_oldest_that_is_kept(way: Way) -> None:
    source = FakeSource()
    travel = TimeTravel(source)
    travel.freeze(Moment(7, 0, 0))
    shown = travel.look(None, None).view
    source.first = 12
    travel.add(way)
    seen = travel.look(shown, None)
    assert seen.view.moment == travel.moment == Moment(12, 0, 0) and not seen.is_gone


def test_a_moment_that_is_deleted_is_no_place_to_go_to() -> None:
    source = FakeSource()
    source.first = 12
    travel = TimeTravel(source)
    travel.freeze(Moment(14, 0, 0))
    travel.add(To(Moment(7, 0, 0)))
    with pytest.raises(InspectError, match="no longer there"):
        travel.look(source.view(Moment(14, 0, 0)), None)
    assert travel.moment == Moment(14, 0, 0)


def test_a_segment_that_is_deleted_under_a_frozen_screen_is_noticed_in_a_real_journal(tmp_path: Path) -> None:
    engine = busy_engine(tmp_path, segment_bytes=6000)
    source = JournalSource(tmp_path)
    source.start()
    travel = TimeTravel(source)
    travel.freeze(source.at_step(5))
    shown = travel.look(None, None).view
    assert shown.moment.segment < 4
    for number in (1, 2, 3):
        segment_path(tmp_path, "run", number).unlink()

    seen = travel.look(shown, shown.keyframe.sequences[0].seq)
    assert seen.is_gone and seen.view.keyframe == shown.keyframe and seen.view.first > shown.first
    travel.add(ToEvent(None, True))
    seen = travel.look(seen.view, None)
    assert not seen.is_gone and seen.view.moment == source.kept(seen.view.moment).oldest == travel.moment
    assert seen.view.moment.segment == 4
    source.close()
    engine.close()
