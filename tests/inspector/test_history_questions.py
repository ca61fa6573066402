"""Moments, events, steps and stories of a history, each held against a plain reading of the whole journal."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from histories import witnessed_run
from nanolens.inspector.history.history import History
from nanolens.inspector.history.step_log import StepLog
from nanolens.inspector.view import Moment
from nanolens.telemetry.event_fields import RequestNames
from nanolens.telemetry.events import (
    AnyEvent,
    EngineStarted,
    RequestArrived,
    SequencePreempted,
    StatusChanged,
    StepFinished,
    StepPlanned,
)
from nanolens.telemetry.lives import Lives
from nanolens.telemetry.predicate import parse
from nanolens.telemetry.reader import JournalReader

Events = list[tuple[Moment, AnyEvent]]


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return witnessed_run(tmp_path_factory.mktemp("journal"), commands=600, overlap=True).path


@pytest.fixture(scope="module")
def told(journal: Path) -> Events:
    """Every event, with the moment just behind it."""
    return [
        (Moment(frame.segment, frame.offset, index + 1), event)
        for frame in JournalReader(journal).frames()
        for index, event in enumerate(frame.events)
    ]


@pytest.fixture
def history(journal: Path) -> History:
    return History(journal)


def some(told: Events, count: int = 40) -> list[int]:
    """Indices of random events."""
    return sorted(random.Random(2).sample(range(len(told)), count))


def step_after(told: Events, index: int) -> int:
    return next((e.step for _, e in reversed(told[: index + 1]) if isinstance(e, StepPlanned)), 0)


def end_of_frame(told: Events, moment: Moment) -> Moment:
    return max(each for each, _ in told if each[:2] == moment[:2])


def test_the_journals_ends(history: History, told: Events) -> None:
    assert history.first() == told[0][0]
    assert isinstance(told[0][1], EngineStarted)
    assert history.last() == told[-1][0]
    assert history.tick(history.first()) == (0, 0)


def test_the_tick_of_any_moment_is_the_last_planned_step(history: History, told: Events) -> None:
    for index in some(told, 100):
        assert history.tick(told[index][0]).step == step_after(told, index)


def test_a_step_is_found_at_the_end_of_its_frame(history: History, told: Events) -> None:
    planned = {event.step: moment for moment, event in told if isinstance(event, StepPlanned)}
    for step, moment in planned.items():
        assert history.at_step(step) == end_of_frame(told, moment)


def test_steps_beyond_the_journal_are_its_ends(history: History) -> None:
    assert history.at_step(-5) == history.first() or history.tick(history.at_step(-5)).step <= 1
    assert history.at_step(10**9) == history.last()


def test_a_time_is_found_at_the_last_moment_up_to_it(history: History, told: Events) -> None:
    times = [(event.t, moment) for moment, event in told if isinstance(event, StepFinished)]
    for t, moment in times[::7]:
        at = history.at_time(t)
        assert moment <= at
        assert history.tick(at).t <= t < history.tick(history.at_step(history.tick(at).step + 2)).t


def test_times_beyond_the_journal_are_its_ends(history: History) -> None:
    assert history.at_time(-1) == history.first()
    assert history.at_time(1 << 62) == history.last()


def test_walking_forward_meets_each_step_once(history: History, told: Events) -> None:
    steps = [event.step for _, event in told if isinstance(event, StepPlanned)]
    moment, met = history.first(), []
    while (following := history.move(moment, 1)) != history.last():
        moment = following
        met.append(history.tick(moment).step)
    assert met == sorted(set(met))
    assert met == steps[: len(met)] and len(met) >= len(steps) - 1


def test_walking_back_meets_the_same_moments(history: History) -> None:
    middle = history.at_step(history.tick(history.last()).step // 2)
    forward = [middle]
    for _ in range(30):
        forward.append(history.move(forward[-1], 1))
    back = [forward[-1]]
    for _ in range(30):
        back.append(history.move(back[-1], -1))
    assert back[::-1] == forward
    assert history.move(forward[-1], -30) == middle
    assert history.move(middle, 30) == forward[-1]


def test_walking_ends_at_the_ends(history: History) -> None:
    assert history.move(history.last(), 1) == history.last()
    assert history.move(history.first(), -1) == history.first()
    assert history.move(history.last(), -(10**9)) <= history.at_step(1)


@pytest.mark.parametrize(
    "text", ["on=preempted", "on=status to=PAUSED", "seq=7", "on=status request=req-3", "blocks>2", "on=mark"]
)
def test_the_next_and_the_last_event_of_a_kind(history: History, told: Events, text: str) -> None:
    request = next(event.request for _, event in told[len(told) // 2 :] if isinstance(event, RequestArrived))
    predicate = parse(text.replace("req-3", request))
    names = RequestNames()
    meeting = []
    for moment, event in told:
        names.learn(event)
        if predicate.matches(event, names.names):
            meeting.append(moment)
    for index in some(told):
        moment = told[index][0]
        after = next((each for each in meeting if each > moment), None)
        before = next((each for each in reversed(meeting) if each < moment), None)
        found = history.find(moment, predicate, forward=True)
        assert (found and found.moment) == after
        found = history.find(moment, predicate, forward=False)
        assert (found and found.moment) == before
        rows = history.events(moment, 20, predicate)
        assert [row.moment for row in rows] == [each for each in meeting if each <= moment][-20:]


def test_any_event_forward_and_back(history: History, told: Events) -> None:
    for index in some(told[1:-1]):
        before, (moment, _), after = told[index : index + 3]
        found = history.find(moment, None, forward=True)
        assert found is not None and (found.moment, found.event) == after
        found = history.find(moment, None, forward=False)
        assert found is not None and (found.moment, found.event) == before


def test_the_last_events_with_steps_and_times(history: History, told: Events) -> None:
    for index in some(told):
        rows = history.events(told[index][0], 60)
        assert [(row.moment, row.event) for row in rows] == told[max(0, index - 59) : index + 1]
        assert all(row.t >= 0 and row.step >= 0 for row in rows)


def test_the_last_steps_are_those_of_a_reading_from_the_start(history: History, told: Events) -> None:
    indices = some(told)
    for index in [*indices, *indices[::-1]]:
        log = StepLog(25)
        log.apply_all(event for _, event in told[: index + 1])
        found, whole = history.steps(told[index][0], 25), log.rows()
        assert [row.planned for row in found] == [row.planned for row in whole]
        assert found == whole


def test_steps_count_what_planning_did(history: History, told: Events) -> None:
    rows = history.steps(history.last(), 10**6)
    assert sum(row.preemptions for row in rows) == sum(isinstance(event, SequencePreempted) for _, event in told)
    totals = history.keyframe(history.last()).keyframe.totals
    assert sum(row.hit_tokens for row in rows) == totals["prefix_hit_tokens"]
    assert len(rows) == totals["steps"]
    assert all(0 <= row.gap_ns <= row.interval_ns for row in rows)


def test_stories_add_up_as_lives_do(history: History, told: Events) -> None:
    checked = 0
    for index in some(told, 25):
        moment = told[index][0]
        t = history.tick(moment).t
        lives = Lives()
        lives.apply_all(event for _, event in told[: index + 1])
        lives.advance(t)
        for snapshot in history.keyframe(moment).keyframe.sequences:
            story = history.story(moment, snapshot.seq)
            life = lives.lives[snapshot.seq]
            assert story is not None and story.whole and story.request == snapshot.request
            assert story.parts == {name: getattr(life, name + "_ns") for name in story.parts}
            assert sum(story.parts.values()) == max(t, life.until_t) - snapshot.arrived_t
            checked += 1
    assert checked > 50


def test_a_story_has_its_statuses_in_order(history: History, told: Events) -> None:
    moment, event = next((m, e) for m, e in told if isinstance(e, StatusChanged) and e.new == "PAUSED")
    story = history.story(moment, event.seq)
    assert story is not None
    changes = [e for m, e in told if m <= moment and isinstance(e, StatusChanged) and e.seq == event.seq]
    assert [(stay.status, stay.reason, stay.begin_t) for stay in story.stays] == [
        (e.new, e.reason, e.t) for e in changes
    ]
    assert [stay.end_t for stay in story.stays[:-1]] == [e.t for e in changes[1:]]
    assert story.stays[-1].end_t == history.tick(moment).t
    assert [row.event for row in story.events][-1] == event


def test_a_story_goes_on_as_it_is_told_from_the_start(history: History, journal: Path, told: Events) -> None:
    live = [m for m, e in told[200:] if isinstance(e, StepPlanned)]
    seq = history.keyframe(live[0]).keyframe.sequences[0].seq
    for moment in live[:40]:
        told_on, anew = history.story(moment, seq), History(journal).story(moment, seq)
        assert told_on == anew


def test_a_sequence_that_does_not_live_has_no_story(history: History) -> None:
    assert history.story(history.last(), 3) is None
    assert history.story(history.first(), 3) is None
