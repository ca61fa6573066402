"""The front's look at the replicas: it asks each how it is, again and again, and has those killed that stay silent."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayError
from ray.serve.exceptions import RayServeException
from ray.util import list_named_actors

from ..errors import NanolensError
from .fleet_silence import SILENT_S, Silence
from .fleet_view import FleetView

LOOK_S = 0.25  # between two questions to a replica
ASK_S = 5.0  # for the answer to one
SURE_S = SILENT_S + 1.0  # of silence, before a kill: first, a front that was replaced lets its clients go, too


class Lookout:
    """Looks at the replicas of a fleet.

    Args:
        replicas: handle of their deployment.
        fleet: told what they report.
        silence: told of their signs of life.
    """

    def __init__(self, replicas: Any, fleet: FleetView, silence: Silence) -> None:
        self._replicas, self._fleet, self._silence = replicas, fleet, silence
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._actors: dict[str, Any] = {}  # of replicas that have left the list: Ray sends them no calls
        self._killed: set[str] = set()

    async def run(self) -> None:
        """Ask them, again and again; one that does not answer holds no other up."""
        loop = asyncio.get_running_loop()
        before = loop.time()
        while True:
            for names, ask in ((self._fleet.replicas, self._ask_report), (self._silence.left, self.ask_left)):
                for name in names:
                    self._begin(name, ask)
            await asyncio.sleep(LOOK_S)
            now = loop.time()
            self._silence.look(min(now - before, 2 * LOOK_S))  # no replica is blamed for what holds this process up
            before = now

    def _begin(self, name: str, ask: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        """Ask a replica, if its last answer is not awaited any more."""
        if name not in self._asking:
            task = asyncio.get_running_loop().create_task(ask(name), context=contextvars.Context())
            self._asking[name] = task
            task.add_done_callback(lambda done: self._asking.pop(name, None))

    async def kill_left(self) -> None:
        """Have Ray kill those that have left the list and give no sign of life: nobody waits for them any more."""
        await self._kill(self._silence.left)

    async def kill_silent(self) -> int:
        """Have Ray kill all that give no sign of life, once it is clear which: how many it has killed so far."""
        waited = 0.0
        while any(waited - LOOK_S <= each < SURE_S for each in self._silence.seconds.values()):
            await asyncio.sleep(LOOK_S)  # until each has been heard of since, or is silent
            waited += LOOK_S
        await self._kill(self._silence.seconds)
        return len(self._killed)

    async def _kill(self, names: Iterable[str]) -> None:
        """Kill those of them that are silent, each once."""
        silent = {name for name in names if self._silence.seconds.get(name, 0.0) >= SURE_S} - self._killed
        if silent:
            self._killed |= await asyncio.to_thread(kill, silent)

    async def _ask_report(self, name: str) -> None:
        ask = self._fleet.ask(name)
        with contextlib.suppress(RayError, RayServeException, TimeoutError, NanolensError):
            async with asyncio.timeout(ASK_S):
                self._fleet.take(await self._replicas.options(method_name="report").remote(ask))
                self._silence.hear(name)

    async def ask_left(self, name: str) -> None:
        """Ask the process of a replica that has left the list whether it is there; forget one that is not."""
        try:
            async with asyncio.timeout(ASK_S):
                if name not in self._actors:
                    self._actors[name] = await asyncio.to_thread(find_actor, name)
                await self._actors[name].__ray_ready__.remote()
        except (ActorDiedError, ValueError):
            self._actors.pop(name, None)
            self._silence.forget(name)
        except (RayError, TimeoutError):
            return
        else:
            self._silence.hear(name)


def find_actor(replica: str) -> Any:
    """The actor of a replica, whose name ends in its id.

    Raises:
        ValueError: there is none any more.
    """
    for each in list_named_actors(all_namespaces=True):
        if each["name"].rpartition("#")[2] == replica:
            return ray.get_actor(each["name"], namespace=each["namespace"])
    raise ValueError(f"there is no replica {replica!r}")


def kill(replicas: Collection[str]) -> set[str]:
    """Kill the actors of replicas: those of them that there were."""
    found = set()
    for each in replicas:
        with contextlib.suppress(ValueError, RayError):  # it is gone
            ray.kill(find_actor(each))
            found.add(each)
    return found
