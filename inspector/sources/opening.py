"""From what a person names (a URL, a journal's directory, a segment) to the source that shows it."""

from __future__ import annotations

from pathlib import Path

from ...errors import InspectError
from .journal_source import JournalSource
from .server_source import ServerSource
from .source import Source


def open_source(target: str, api_key: str | None = None, run: str | None = None) -> Source:
    """The source of a target, not started yet.

    Args:
        target: http://host:port, host:port, or a path.
        api_key: for a server.
        run: of a journal; None: the one written to last.

    Raises:
        InspectError: it is none of these, in words.
    """
    if is_url(target):
        if run is not None:
            raise InspectError(f"run={run!r}: a server has one run; leave --run out, or give its journal's directory")
        return ServerSource(target, api_key)
    return JournalSource(target, run)


def is_url(target: str) -> bool:
    """Whether a target names a server. What exists as a file is none."""
    if target.startswith(("http://", "https://")):
        return True
    host, _, port = target.rpartition(":")
    return bool(host) and port.isdigit() and "/" not in target and not Path(target).exists()
