"""The front's look at replicas that have left the list: one that lives is heard, one that is gone is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from nanolens.server.fleet_silence import Silence
from nanolens.server.fleet_view import FleetView

pytest.importorskip("ray", reason="ray is not installed")

from ray.exceptions import ActorDiedError, ActorUnavailableError

from nanolens.server import ray_lookout
from nanolens.server.ray_lookout import SURE_S, Lookout


class FakeActor:
    """Of a replica.

    Args:
        error: why it gives no answer; None: it does.
    """

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    @property
    def __ray_ready__(self) -> FakeActor:
        return self

    async def remote(self) -> bool:
        if self._error is not None:
            raise self._error
        return True


def looked(monkeypatch: pytest.MonkeyPatch, find: Callable[[str], Any], times: int = 1) -> Silence:
    """What is known of a replica that has left the list, nothing heard of it for 4 s, after so many questions."""
    view = FleetView()
    view.update(["a"])
    silence = Silence(view)
    monkeypatch.setattr(ray_lookout, "find_actor", find)

    async def ask() -> None:
        silence.look(2.0)
        view.update([])
        silence.look(2.0)
        lookout = Lookout(None, view, silence)
        for _ in range(times):
            await lookout.ask_left("a")
        silence.look(2.0)

    asyncio.run(ask())
    return silence


def test_a_replica_that_has_left_the_list_is_asked_whether_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []

    def find(name: str) -> FakeActor:
        found.append(name)
        return FakeActor(None)

    assert looked(monkeypatch, find, times=3).seconds == {"a": 0.0} and found == ["a"]


def test_one_that_gives_no_answer_stays_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    unavailable = ActorUnavailableError("no answer", None)
    assert looked(monkeypatch, lambda name: FakeActor(unavailable)).seconds == {"a": 6.0}


def test_one_that_is_gone_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(name: str) -> None:
        raise ValueError(name)

    for find in (nobody, lambda name: FakeActor(ActorDiedError())):
        silence = looked(monkeypatch, find)
        assert silence.seconds == {} and silence.left == []


def test_an_end_kills_those_that_stand_still_once_each_whether_on_the_list_or_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed: list[set[str]] = []

    def kill(names: set[str]) -> set[str]:
        killed.append(set(names))
        return set(names)

    monkeypatch.setattr(ray_lookout, "kill", kill)
    view = FleetView()
    silence = Silence(view)

    async def end() -> int:
        view.update(["left", "leaving", "listed", "well"])
        silence.look(1.0)
        view.update(["listed", "well"])
        for name in ("leaving", "well"):
            silence.hear(name)
        silence.look(SURE_S)
        lookout = Lookout(None, view, silence)
        for _ in range(2):
            await lookout.kill_left()
        return await lookout.kill_silent()

    assert asyncio.run(end()) == 2 and killed == [{"left"}, {"listed"}]
