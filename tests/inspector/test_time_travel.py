"""The ways through time: in which order they are gone, and what overrules them."""

from __future__ import annotations

import pytest

from fake_source import FakeSource
from nanolens.errors import InspectError
from nanolens.inspector.clock_words import Jump
from nanolens.inspector.tui.time_travel import Steps, TimeTravel, To, ToEvent
from nanolens.inspector.view import Moment
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
    assert travel.look(Moment(20, 0, 0), None).view.moment.segment == 16
    assert source.asked == [("move", -4)]


def test_ways_are_gone_in_order() -> None:
    source = FakeSource()
    travel = TimeTravel(source)
    travel.add(Steps(-5))
    travel.add(To(Moment(9, 0, 0)))
    travel.add(Steps(1))
    assert travel.look(Moment(20, 0, 0), None).view.moment.segment == 10


def test_no_steps_at_all_lead_nowhere_else() -> None:
    source = FakeSource()
    travel = TimeTravel(source)
    travel.add(To(Jump(steps=0)))
    assert travel.look(Moment(7, 0, 0), None).view.moment == Moment(7, 0, 0)
    assert source.asked == []


def test_the_first_way_leads_from_what_is_on_the_screen() -> None:
    source = FakeSource()
    travel = TimeTravel(source)
    travel.add(Steps(-1))
    assert travel.look(Moment(7, 0, 0), None).view.moment.segment == 6
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
