"""Paths of a fleet that name one of its replicas, and those that only one can answer. Knows no transport."""

from __future__ import annotations

import re
from collections import OrderedDict

MAX_REMEMBERED = 1 << 16  # requests whose replica is known
_PINNED = re.compile(r"/replicas/([^/]+)(/.*)")
_REQUEST = re.compile(r"/v1/requests/([^/]+)/")
_PART = re.compile(r"-\d+$")
OF_ONE = "/debug/"


def split_replica(path: str) -> tuple[str, str]:
    """`/replicas/ID/debug/snapshot` as ("ID", "/debug/snapshot"); ("", path) for a path that names none."""
    found = _PINNED.fullmatch(path)
    return (found[1], found[2]) if found is not None else ("", path)


class Homes:
    """Which replica each of the last requests went to: only that one can resume what it paused."""

    def __init__(self) -> None:
        self._homes: OrderedDict[str, str] = OrderedDict()

    def note(self, request: str, replica: str) -> None:
        """A request went to a replica."""
        self._homes[request] = replica
        self._homes.move_to_end(request)
        if len(self._homes) > MAX_REMEMBERED:
            self._homes.popitem(last=False)

    def of_path(self, path: str) -> str:
        """The replica of the request that a path names; "": it names none, or one that is not known."""
        found = _REQUEST.match(path)
        if found is None:
            return ""
        return self._homes.get(found[1]) or self._homes.get(_PART.sub("", found[1]), "")
