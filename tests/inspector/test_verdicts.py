"""Verdicts of nano-inspect: as of any moment what a whole reading up to it gives, and asked for at a bearable price."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fake_source import FakeSource
from histories import witnessed_run
from nanolens.errors import InspectError
from nanolens.inspector.history.history import History
from nanolens.inspector.history.verdicts import Verdicts, judgement
from nanolens.inspector.sources.journal_source import JournalSource
from nanolens.inspector.sources.past import Past
from nanolens.inspector.tui.judge import EVERY_S, Judge
from nanolens.inspector.verdict_rows import blamed_rows, blamed_table, top_parts
from nanolens.inspector.view import Judgement, Moment, View
from nanolens.telemetry.latency_tracks import LatencyTracks
from nanolens.telemetry.reader import JournalReader
from planted_causes import long_prefill, written
from views import judgement_of, view_of_fake_run


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return witnessed_run(tmp_path_factory.mktemp("journal"), commands=500, overlap=True).path


def some_moments(journal: Path, count: int = 12) -> list[Moment]:
    frames = list(JournalReader(journal).frames())
    chosen = sorted(random.Random(3).sample(range(10, len(frames)), count))
    return [Moment(frames[i].segment, frames[i].offset, len(frames[i].events)) for i in chosen]


def read_up_to(journal: Path, moment: Moment) -> LatencyTracks:
    """All from the journal's beginning."""
    tracks = LatencyTracks()
    for frame in JournalReader(journal).frames():
        here = Moment(frame.segment, frame.offset, 0)
        if here > moment:
            break
        for event in frame.events:
            tracks.apply(event)
    tracks.finish(tracks.t)
    return tracks


def living(journal: Path, moment: Moment) -> list[int]:
    return [seq.seq for seq in History(journal).keyframe(moment).keyframe.sequences]


def test_a_verdict_at_any_moment_is_that_of_a_reading_up_to_it(journal: Path) -> None:
    verdicts, run = Verdicts(journal, JournalReader(journal).run), 0
    for moment in some_moments(journal):
        tracks = read_up_to(journal, moment)
        for seq in living(journal, moment):
            found, whole = verdicts.of(seq, moment), judgement(tracks, seq)
            assert found is not None and whole is not None
            assert sum(found.parts.values()) == sum(whole.parts.values())
            waits = {part: ns for part, ns in whole.parts.items() if part.startswith("queue_") or part == "paused"}
            assert {part: found.parts[part] for part in waits} == waits
            run += 1
    assert run > 10


def test_a_verdict_that_is_carried_on_is_that_of_another_reading(journal: Path) -> None:
    run = JournalReader(journal).run
    carried = Verdicts(journal, run)
    moments = some_moments(journal, 40)
    seq = max({seq for moment in moments for seq in living(journal, moment)},
              key=lambda seq: sum(seq in living(journal, moment) for moment in moments))  # fmt: skip
    here = [moment for moment in moments if seq in living(journal, moment)]
    assert len(here) > 1
    for moment in here:
        assert carried.of(seq, moment) == carried.of(seq, moment)
        told, anew = carried.of(seq, moment), Verdicts(journal, run).of(seq, moment)
        assert told is not None and anew is not None
        assert sum(told.parts.values()) == sum(anew.parts.values()) and told.whole == anew.whole
    assert carried.of(seq, here[0]) == Verdicts(journal, run).of(seq, here[0])


def test_time_goes_on_in_silence(journal: Path) -> None:
    verdicts, moment = Verdicts(journal, JournalReader(journal).run), some_moments(journal)[5]
    seq, t = living(journal, moment)[0], History(journal).tick(moment).t
    now, later = verdicts.of(seq, moment), verdicts.of(seq, moment, t + 5_000_000)
    assert now is not None and later is not None
    assert sum(later.parts.values()) == sum(now.parts.values()) + 5_000_000


def test_there_is_no_verdict_on_who_does_not_live(journal: Path) -> None:
    moment = some_moments(journal)[-1]
    assert Verdicts(journal, JournalReader(journal).run).of(10**6, moment) is None
    assert Verdicts(journal, JournalReader(journal).run).of(0, moment) is None


def test_who_asks_a_closed_one_is_refused(journal: Path) -> None:
    verdicts, moment = Verdicts(journal, JournalReader(journal).run), some_moments(journal)[0]
    verdicts.close()
    with pytest.raises(InspectError, match="closed"):
        verdicts.of(living(journal, moment)[0], moment)


def test_a_journal_source_names_a_planted_cause_while_it_lasts(tmp_path: Path) -> None:
    engine, name = long_prefill()
    path = written(engine, tmp_path / "j")
    seq = next(seq for seq, track in read_up_to(path, Moment(10**6, 0, 0)).tracks.items() if track.request == name)
    source = JournalSource(path)
    try:
        history = History(path)
        moments = [history.at_step(step) for step in range(1, history.tick(history.last()).step + 1)]
        said = [found for moment in moments if (found := source.verdict(seq, moment)) is not None]
    finally:
        source.close()
    assert any("stretched by the prefill of others" in found.headline for found in said)
    assert all(found.request == name and found.whole for found in said)
    assert any(each.part == "prefill_interference" for found in said for each in found.blamed)


def test_parts_beyond_those_that_took_most_are_one() -> None:
    verdict = Judgement(1, "r", True, {"a": 5, "b": 9, "c": 1, "d": 2}, "", (), ())
    assert top_parts(verdict, 2) == [("b", 9), ("a", 5), ("others", 3)]
    assert top_parts(verdict, 4) == [("b", 9), ("a", 5), ("d", 2), ("c", 1)]


def test_culprits_are_exported_in_seconds() -> None:
    verdict = judgement_of(5)
    assert verdict is not None and verdict.blamed
    table = blamed_table(5, blamed_rows(verdict))
    first = verdict.blamed[0]
    assert table.rows[0][:4] == [first.part.replace("_", " "), first.culprit.request, first.culprit.seq,
                                 first.culprit.weight_ns / 1e9]  # fmt: skip


class Priced(FakeSource):
    """Verdicts that cost so many seconds of a core, on a clock of its own."""

    def __init__(self, cost: float) -> None:
        super().__init__()
        self.cost, self.now, self.computed = cost, 0.0, 0.0

    def verdict(self, seq: int, moment: Moment, now_t: int = 0) -> Judgement | None:
        self.computed += self.cost
        self.now += self.cost
        return super().verdict(seq, moment, now_t)


def looked_at(source: Priced, seconds: float, view: View, moments: bool = False) -> Judge:
    """A screen that looks five times a second at a sequence; with `moments`, at another past one each time."""
    judge = Judge(source, lambda: source.now, lambda: source.computed)
    looks = 0
    while source.now < seconds:
        looks += 1
        seen = replace(view, later_ns=looks)
        if moments:
            seen = replace(view, is_live=False, moment=Moment(1 + looks % 30, 0, 0))
        if judge.is_due(5, seen):
            judge.begin(5, seen)
            judge.ask()
        source.now += 0.2
    return judge


def asked(source: Priced) -> int:
    return sum(each[0] == "verdict" for each in source.asked)


def test_a_live_verdict_is_asked_for_every_two_seconds_at_most() -> None:
    source = Priced(0.001)
    looked_at(source, 60, replace(view_of_fake_run(), is_live=True, moment=Moment(30, 0, 0)))
    assert 60 / (EVERY_S + 0.4) <= asked(source) <= 60 / EVERY_S + 1


@pytest.mark.parametrize("moments", [False, True])
@pytest.mark.parametrize("cost", [0.5, 3.0])
def test_verdicts_take_a_twentieth_of_a_core_at_most(cost: float, moments: bool) -> None:
    source = Priced(cost)
    looked_at(source, 600, replace(view_of_fake_run(), is_live=True, moment=Moment(30, 0, 0)), moments)
    assert 0.03 * 600 < source.computed <= 0.05 * 600 + cost


def test_a_past_moment_is_judged_once_and_only_as_itself() -> None:
    source = Priced(0.001)
    judge = Judge(source, lambda: source.now, lambda: source.computed)
    view = replace(view_of_fake_run(), is_live=False, moment=Moment(30, 0, 0))
    judge.begin(5, view)
    assert not judge.is_due(5, view) and not judge.is_due(4, view)
    judge.ask()
    assert not judge.is_due(5, view) and judge.said_of(5, view)[0] == judgement_of(5, 30)
    elsewhere = replace(view, moment=Moment(31, 0, 0))
    assert judge.said_of(5, elsewhere)[0] is None and judge.said_of(4, view)[0] is None
    assert judge.is_due(4, view)


def test_what_keeps_a_verdict_from_coming_is_said() -> None:
    class Broken(Priced):
        def verdict(self, seq: int, moment: Moment, now_t: int = 0) -> Judgement | None:
            raise InspectError("the journal is damaged")

    source, view = Broken(0.0), replace(view_of_fake_run(), moment=Moment(30, 0, 0))
    judge = Judge(source)
    judge.begin(5, view)
    judge.ask()
    assert judge.said_of(5, view) == (None, "the journal is damaged")


def test_a_journal_that_gets_more_to_its_front_meanwhile_is_asked_again(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    past, moment = Past(journal, JournalReader(journal).run), some_moments(journal)[-1]
    seq = living(journal, moment)[0]
    asked = past.verdict(seq, moment)
    whole = Verdicts.of
    turns = [past.reopen]

    def disturbed(self: Verdicts, *arguments: Any) -> Judgement | None:
        if turns:
            turns.pop(0)()
        return whole(self, *arguments)

    monkeypatch.setattr(Verdicts, "of", disturbed)
    past.reopen()
    assert past.verdict(seq, moment) == asked
    turns.append(past.close)
    with pytest.raises(InspectError, match="closed"):
        past.verdict(seq, moment)
