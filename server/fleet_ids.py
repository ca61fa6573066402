"""Which ids of requests are taken in a fleet, and at which replicas their requests are. Knows no transport."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from .fleet_messages import HttpCall
from .request_ids import new_id
from .state import parts_of

MAX_REMEMBERED = 1 << 16  # ids whose requests may be paused
_REQUEST = re.compile(r"/v1/requests/([^/]+)/")


@dataclass(eq=False)
class Names:
    """The ids that one call goes by.

    Attributes:
        name: its own.
        count: requests of an engine that it brings; several have ids of their own.
        may_pause: whether they may pause for their client.
        ids: those of it that are taken: its own, and its requests'.
        call: as it was sent last; None: it was not.
    """

    name: str
    count: int = 1
    may_pause: bool = False
    ids: tuple[str, ...] = ()
    call: HttpCall | None = None

    @property
    def replica(self) -> str:
        """The one that took it; "": none yet."""
        return self.call.route.replica if self.call is not None else ""


class FleetIds:
    """Ids, by the rule of one server: no two requests that live have the same, at whichever replicas they are.

    Those of calls that have not ended are known here. Whether a request has paused, and whether one whose client is
    gone has ended, is known to its replica alone: `doubtful` says who has to be asked.
    """

    def __init__(self) -> None:
        self._live: dict[str, Names] = {}
        self._left: OrderedDict[str, str] = OrderedDict()  # id of a request that may be there still -> its replica

    def take(self, names: Names, path: str) -> None:
        """Take the ids of a call that is about to be sent: new ones for this path, where one of them lives."""
        name = names.name
        while any(each in self._live for each in _ids(name, names.count)):
            name = new_id(path)
        self.rename(names, name)

    def rename(self, names: Names, name: str) -> None:
        """A call goes by another id than it was to."""
        self._give_back(names)
        names.name, names.ids = name, _ids(name, names.count)
        self._live |= dict.fromkeys(names.ids, names)

    def drop(self, names: Names, has_ended: bool) -> None:
        """A call is over; where it has not got its whole answer, its requests may go on for a moment."""
        self._give_back(names)
        if names.replica and (names.may_pause or not has_ended):
            for each in names.ids:
                self._left[each] = names.replica
                self._left.move_to_end(each)
            while len(self._left) > MAX_REMEMBERED:
                self._left.popitem(last=False)

    def doubtful(self, names: Names, running: Sequence[str]) -> dict[str, list[str]]:
        """Replicas that may hold requests with ids of these, and which; what was at one that is gone is gone."""
        found: dict[str, list[str]] = {}
        for each in names.ids:
            if (replica := self._left.get(each, "")) in running:
                found.setdefault(replica, []).append(each)
        return found

    def of_path(self, path: str) -> str:
        """The replica of the request that a path names; "": it names none, or one that is not known."""
        found = _REQUEST.match(path)
        if found is None:
            return ""
        live = self._live.get(found[1])
        return (live.replica if live is not None else "") or self._left.get(found[1], "")

    def _give_back(self, names: Names) -> None:
        for each in names.ids:
            if self._live.get(each) is names:
                del self._live[each]


def _ids(name: str, count: int) -> tuple[str, ...]:
    return (name, *parts_of(name, count))
