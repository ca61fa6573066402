"""How a fleet ends and is replaced, without Ray: signals, the drain, what a replica makes of the front's word."""

from __future__ import annotations

import asyncio
import dataclasses
import fcntl
import logging
import signal
import threading
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from nanolens.errors import NanolensError
from nanolens.server import fleet_deployment, fleet_end, fleet_lifecycle, fleet_retiring, ray_host
from nanolens.server.fleet_deployment import Deployment, until_running
from nanolens.server.fleet_end import Ended, drain, within
from nanolens.server.fleet_lifecycle import ONE_S, Signals, in_order, replace_all, warn_unwritable
from nanolens.server.fleet_retiring import Retiring, Word
from nanolens.server.settings import load_settings

TINY = "dummy:llama-tiny"


class FakeEnding:
    """What a replica runs: it ends when a test says so, or when it is cut."""

    def __init__(self, runs: bool = True) -> None:
        self.hurry, self.idle = asyncio.Event(), asyncio.Event()
        self.done: list[str] = []
        if not runs:
            self.idle.set()

    def refuse(self) -> None:
        self.done.append("refuse")

    def hang_up(self) -> None:
        self.done.append("hang up")

    async def cut(self) -> None:
        self.done.append("cut")

    async def idle_within(self, seconds: float) -> bool:
        self.done.append(f"wait {seconds:g}")
        waits = [asyncio.ensure_future(each.wait()) for each in (self.hurry, self.idle)]
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for each in waits:
            each.cancel()
        return self.idle.is_set()


def front_that_says(words: Iterable[Word | Exception]) -> Callable[[], Awaitable[Word]]:
    """The last word is said again and again."""
    left = list(words)

    async def ask() -> Word:
        word = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(word, Exception):
            raise word
        return word

    return ask


def retired(
    monkeypatch: pytest.MonkeyPatch, words: Iterable[Word | Exception], runs: bool = True, drain_seconds: float = 600
) -> list[str]:
    """What a replica does that hears these words."""
    monkeypatch.setattr(fleet_retiring, "LOOK_S", 0.001)

    async def play() -> list[str]:
        ending = FakeEnding(runs)
        await Retiring(ending, front_that_says(words), drain_seconds).run()  # type: ignore[arg-type]
        return ending.done

    return asyncio.run(asyncio.wait_for(play(), 30))


IN, OUT, END = Word.GO_ON, Word.LEFT_OUT, Word.END


def test_a_replica_that_is_left_out_lets_what_runs_finish(monkeypatch: pytest.MonkeyPatch) -> None:
    assert retired(monkeypatch, [IN, OUT], runs=False) == ["refuse", "wait 600", "hang up"]


def test_a_replica_that_is_left_out_aborts_what_outlasts_the_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    assert retired(monkeypatch, [IN, OUT], drain_seconds=0.01) == ["refuse", "wait 0.01", "cut", "hang up"]


def test_a_replica_that_is_told_to_end_aborts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert retired(monkeypatch, [IN, END]) == ["refuse", "cut", "hang up"]


def test_a_replica_that_drains_is_hurried_by_the_end_of_the_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    assert retired(monkeypatch, [IN, OUT, OUT, OUT, END]) == ["refuse", "wait 600", "cut", "hang up"]


def test_a_replica_that_is_not_in_yet_is_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert retired(monkeypatch, [OUT, OUT, OUT, OUT, END]) == ["refuse", "cut", "hang up"]


def test_one_word_alone_and_a_front_that_is_gone_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [OSError(), OUT, OUT, OUT, IN, OUT, IN, OSError(), OSError(), OUT, IN, END]
    assert retired(monkeypatch, words) == ["refuse", "cut", "hang up"]


class FakeFront:
    """A handle of a front: what `drain` answers, one after the other; the last again and again."""

    def __init__(self, *answers: int | Exception, left: int = 0) -> None:
        self.asked: list[str] = []
        self._answers, self._left, self._method = list(answers), left, ""

    def options(self, method_name: str) -> FakeFront:
        self._method = method_name
        return self

    def remote(self) -> FakeFront:
        self.asked.append(self._method)
        return self

    def result(self, timeout_s: float) -> int:
        if self._method == "end":
            return self._left
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is told to whoever started the fleet."""
    lines: list[str] = []
    for module in (fleet_end, fleet_lifecycle):
        monkeypatch.setattr(module, "say", lines.append)
    monkeypatch.setattr(fleet_end, "LOOK_S", 0.001)
    monkeypatch.setattr(fleet_lifecycle, "_reason", str)  # Ray, where there is one, would start to tell
    monkeypatch.setattr(fleet_lifecycle, "load_tokenizer_alone", lambda model: None)  # it leaves none with torch
    return lines


def test_a_drain_ends_when_all_have_finished(said: list[str]) -> None:
    front = FakeFront(3, 2, RuntimeError(), 1, 0)
    assert drain(front, 600, threading.Event()) is Ended.FINISHED
    assert front.asked == ["drain"] * 5 and len(said) == 1


def test_a_drain_waits_for_replicas_that_are_being_replaced(said: list[str]) -> None:
    busy = [True, True, False]
    front = FakeFront(0)
    assert drain(front, 600, threading.Event(), lambda: busy.pop(0)) is Ended.FINISHED
    assert front.asked == ["drain"] * 3


def test_what_outlasts_the_drain_is_ended_by_the_replicas(said: list[str]) -> None:
    front = FakeFront(3)
    assert drain(front, 0.01, threading.Event()) is Ended.CUT
    assert front.asked[-1] == "end" and said[-1] == "3 requests are ended before they finished"


def test_a_drain_that_only_waits_for_a_replacement_claims_no_requests(said: list[str]) -> None:
    assert drain(FakeFront(0), 0.01, threading.Event(), lambda: True) is Ended.CUT
    assert said[-1] == "replicas that are being replaced are ended; no request is known to run"


def test_a_second_signal_ends_the_drain(said: list[str]) -> None:
    hurry = threading.Event()
    hurry.set()
    front = FakeFront(2, left=1)
    assert drain(front, 600, hurry) is Ended.CUT
    assert front.asked == ["drain", "end"] and said[-1].startswith("1 answers are cut")


def test_an_end_that_replicas_held_up_or_did_not_live_to_see_is_not_in_order(said: list[str]) -> None:
    assert in_order(Ended.CUT, killed=0, is_deleted=True) and said[-1] == "ended"
    assert not in_order(Ended.FINISHED, killed=0, is_deleted=False)
    assert not in_order(Ended.FINISHED, killed=2, is_deleted=True) and "2 replicas gave no sign" in said[-1]


def test_nothing_is_drained_without_a_front(said: list[str]) -> None:
    front = FakeFront(RuntimeError())
    assert drain(front, 600, threading.Event()) is Ended.WITHOUT_FRONT
    assert front.asked == ["drain"] * 2 and "RuntimeError" in said[-1]


def test_a_call_that_never_returns_is_left() -> None:
    enough = threading.Event()
    assert not within(0.01, enough.wait)
    enough.set()
    assert within(30, enough.wait)
    assert not within(30, lambda: 1 / 0)


def test_a_second_signal_hurries_and_one_that_came_twice_does_not() -> None:
    now = [5.0]
    signals = Signals(clock=lambda: now[0])
    signals.on_signal(signal.SIGHUP, None)
    assert signals.again.is_set() and not signals.stop.is_set()
    signals.on_signal(signal.SIGTERM, None)
    signals.on_signal(signal.SIGTERM, None)  # to the process, and to its group
    assert signals.stop.is_set() and not signals.hurry.is_set()
    now[0] += 2 * ONE_S
    signals.on_signal(signal.SIGINT, None)
    assert signals.hurry.is_set()


def replaced(deploy: Callable[[], object], **flags: Any) -> None:
    settings = load_settings({"model": TINY, "replicas": 2}, environment={})
    engine = dataclasses.replace(settings.engine, **flags)
    replace_all(dataclasses.replace(settings, engine=engine), deploy, threading.Event())


def test_replicas_that_can_not_start_leave_those_that_run(said: list[str]) -> None:
    def deploy() -> None:
        raise RuntimeError("Deploying failed:\n  no room")

    replaced(deploy)
    assert said[-1].startswith("the replicas could not be replaced, and those that run stay: ")
    assert "no room" in said[-1] and "\n" not in said[-1]


def test_a_roll_is_not_waited_for_once_the_fleet_stops(said: list[str]) -> None:
    stop, enough = threading.Event(), threading.Event()
    stop.set()
    new = replace_all(load_settings({"model": TINY, "replicas": 2}, environment={}), enough.wait, stop)
    assert new is not None and new.is_alive() and len(said) == 1
    enough.set()
    new.join()


class FakeStatus:
    """Of an application, as Ray has it."""

    def __init__(self, status: str) -> None:
        self.status, self.message = status, "no room"


def test_a_deployment_is_waited_for_until_it_runs_or_can_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_deployment, "LOOK_S", 0.001)
    seen = [None, FakeStatus("DEPLOYING"), FakeStatus("RUNNING"), FakeStatus("DEPLOY_FAILED")]
    until_running(lambda: seen.pop(0), threading.Event())
    with pytest.raises(NanolensError, match="no room"):
        until_running(lambda: seen.pop(0), threading.Event())


def test_nobody_asks_ray_how_a_deployment_does_once_the_fleet_stops() -> None:
    stop, asked = threading.Event(), threading.Event()

    def status() -> FakeStatus:
        asked.set()
        return FakeStatus("NOT_STARTED")  # of an application that has been deleted

    waits = Deployment(lambda: until_running(status, stop))
    assert asked.wait(30)
    stop.set()
    waits.join(30)
    assert not waits.is_alive() and waits.error is None


def test_a_place_that_is_gone_is_known_before_a_replica_is_replaced(said: list[str], tmp_path: Path) -> None:
    calls: list[int] = []
    replaced(lambda: calls.append(1), disk_blocks=20, swap_path=str(tmp_path / "gone" / "x"))
    assert "there is no directory" in said[-1] and not calls
    replaced(lambda: calls.append(1))
    assert said[-1] == "the replicas have been replaced" and calls


def test_folders_of_processes_that_were_killed_are_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in ("dead", "alive"):
        (tmp_path / f"{ray_host.PREFIX}{name}").mkdir()
        (tmp_path / f"{ray_host.PREFIX}{name}" / ray_host.LOCK).touch()
    with (tmp_path / f"{ray_host.PREFIX}alive" / ray_host.LOCK).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with ray_host.folder() as mine:
            ray_host.sweep()
            left = {each.name for each in tmp_path.iterdir()}
            assert left == {f"{ray_host.PREFIX}alive", Path(mine).name}
        assert not Path(mine).exists()


def test_a_journal_that_can_not_be_written_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING, "nanolens.server"):
        warn_unwritable(str(tmp_path / "journal"))
        assert not caplog.records
        warn_unwritable(str(tmp_path / "file" / "journal"))
    assert "events are lost until it can be written" in caplog.text
