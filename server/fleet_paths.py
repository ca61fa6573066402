"""Paths of a fleet that name one of its replicas, those that only one can answer, and those that the front answers;
ids of requests. Knows no transport.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence

from .errors import ApiError
from .request_ids import new_id

MAX_REMEMBERED = 1 << 16  # requests whose replica is known
_PINNED = re.compile(r"/replicas/([^/]+)(/.*)")
_REQUEST = re.compile(r"/v1/requests/([^/]+)/")
_PART = re.compile(r"-\d+$")
OF_ONE = "/debug/"
_OWN = {  # path -> its methods, as one server has them
    "/health": ("GET", "HEAD"), "/ready": ("GET", "HEAD"), "/version": ("GET",), "/metrics": ("GET",),
    "/debug/fleet": ("GET",),
}  # fmt: skip
_PAUSES = b'"on_stop"'  # in the body of a request that may pause


def split_replica(path: str) -> tuple[str, str]:
    """`/replicas/ID/debug/snapshot` as ("ID", "/debug/snapshot"); ("", path) for a path that names none."""
    found = _PINNED.fullmatch(path)
    return (found[1], found[2]) if found is not None else ("", path)


def is_own(method: str, path: str) -> bool:
    """Whether the front answers a path itself.

    Raises:
        ApiError: 405: it does, but takes no such method.
    """
    methods = _OWN.get(path)
    if methods is not None and method not in methods:
        raise ApiError(405, f"{method} {path}: this endpoint takes other methods", code="method_not_allowed",
                       headers={"Allow": ", ".join(methods)})  # fmt: skip
    return methods is not None


class Homes:
    """Which replica each of the last requests went to: only that one can resume what it paused. And which ids are
    taken, so that no two requests that live have the same, as no two of one server do.
    """

    def __init__(self) -> None:
        self._homes: OrderedDict[str, str] = OrderedDict()
        self._live: set[str] = set()
        self._may_pause: OrderedDict[str, None] = OrderedDict()  # ids of requests that have ended, or wait to go on

    def take(self, request: str, path: str, pinned: str, body: bytes, known: Sequence[str]) -> tuple[str, str]:
        """The id of a request that is about to be sent, and the replica that it has to go to ("": any).

        One that lives gets a new id. Where the one before may have paused, that one's replica knows whether it has.

        Args:
            request: the id that it came with.
            path: of the endpoint.
            pinned: the replica that it names; "": none.
            body: of the request.
            known: the replicas that run; what paused at another one is gone.
        """
        home = self._homes.get(request, "") if request in self._may_pause else ""
        home = home if home in known else ""
        if request in self._live or (home and pinned not in ("", home)):
            request = new_id(path)
        elif home:
            pinned = home
        self._live.add(request)
        if _PAUSES in body:
            self._may_pause[request] = None
            if len(self._may_pause) > MAX_REMEMBERED:
                self._may_pause.popitem(last=False)
        return request, pinned

    def drop(self, request: str) -> None:
        """A request has ended, or has paused."""
        self._live.discard(request)

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
