"""The router of a fleet, on Ray Serve's public interface for request routers: what is chosen is fleet_view.py's."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from ray.exceptions import ActorDiedError, RayError
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from .fleet_messages import Ask, HttpCall, Route
from .fleet_view import FleetView, fleet_of

LEFT_S = 5.0  # for a replica that has left to say that it lives


class PrefixRouter(RequestRouter):
    """Sends a call to the replica that caches the most of its prompt, unless that one is too busy.

    Which calls a replica holds is counted by the front, which knows when each of them ends: Ray may tell of a call's
    end before it tells that a replica took it.
    """

    def initialize_state(self, fleet: str, max_num_seqs: int) -> None:
        """Called by Ray with the settings of the deployment.

        Args:
            fleet: name of the view that the front shares with this router.
            max_num_seqs: see FleetView.
        """
        self._fleet: FleetView = fleet_of(fleet)
        self._fleet.max_num_seqs = max_num_seqs
        self._leaving: set[asyncio.Task[None]] = set()

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Take the list of replicas that run."""
        names = {_name(each.replica_id) for each in replicas}
        left = [each for each in self.curr_replicas.values() if _name(each.replica_id) not in names]
        self._fleet.update(names)
        super().update_replicas(replicas)
        for each in left:
            task = asyncio.get_running_loop().create_task(self._look_after(each))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Candidates in the order in which they are asked, each a rank of its own."""
        if pending_request is None:
            return [list(candidate_replicas)]
        pending_request.routing_context.should_backoff = True  # where all are full it is asked again, but not at once
        named = {_name(each.replica_id): each for each in candidate_replicas}
        call = pending_request.args[0] if pending_request.args else None
        if isinstance(call, Ask):
            return [[named[call.pinned]] if call.pinned in named else list(candidate_replicas)]
        if not isinstance(call, HttpCall):
            return [list(candidate_replicas)]
        route = self._route(sorted(named), call)
        ranks = [[named[name]] for name in route.order if name in named]
        return ranks or [list(candidate_replicas)]  # of one that is gone: whichever takes it says so

    def _route(self, names: list[str], call: HttpCall) -> Route:
        route = self._fleet.choose(names, call)
        call.route = route
        self._fleet.begin(route.order[0], call.number, call.hashes)  # those that are routed meanwhile know of it
        return route

    def on_request_routed(self, pending_request: PendingRequest, replica_id: Any, result: Any) -> None:
        """A replica took a call."""
        call = pending_request.args[0] if pending_request.args else None
        if not isinstance(call, HttpCall):
            return
        name = _name(replica_id)
        call.route.taken_by(name)
        self._fleet.begin(name, call.number, call.hashes)

    def on_replica_actor_died(self, replica_id: Any) -> None:
        """A replica is gone; the list without it comes later."""
        super().on_replica_actor_died(replica_id)
        self._fleet.died(_name(replica_id))

    async def _look_after(self, replica: RunningReplica) -> None:
        """Learn whether a replica that has left the list had died: Ray may have seen that before any call did.

        One that is taken out in order lives until its engine has ended.
        """
        with contextlib.suppress(RayError):
            try:
                await replica.get_queue_len(deadline_s=LEFT_S)
            except ActorDiedError:
                self._fleet.died(_name(replica.replica_id))


def _name(replica_id: Any) -> str:
    """What a replica is called."""
    return str(replica_id.unique_id)
