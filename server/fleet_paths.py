"""Paths of a fleet that name one of its replicas, those that only one can answer, and those that the front answers.

Knows no transport.
"""

from __future__ import annotations

import re

from .errors import ApiError

_PINNED = re.compile(r"/replicas/([^/]+)(/.*)")
OF_ONE = "/debug/"
_OWN = {  # path -> its methods, as one server has them
    "/health": ("GET", "HEAD"), "/ready": ("GET", "HEAD"), "/version": ("GET",), "/metrics": ("GET",),
    "/debug/fleet": ("GET",),
}  # fmt: skip


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
