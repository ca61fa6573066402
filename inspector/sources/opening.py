"""From what a person names (a URL, a journal's directory, a segment) to the source that shows it."""

from __future__ import annotations

from pathlib import Path

from ...errors import InspectError, JournalError
from ...telemetry.segment_files import is_there, kind_of, list_runs
from .journal_source import JournalSource
from .server_source import ServerSource
from .source import Source


def open_source(target: str, api_key: str | None = None, run: str | None = None) -> Source:
    """The source of a target, not started yet.

    Args:
        target: http://host:port, host:port, or a path.
        api_key: for a server.
        run: of a journal, or the part behind its last hyphen; None: the one written to last.

    Raises:
        InspectError: it is none of these, in words.
    """
    if is_url(target):
        if run is not None:
            raise InspectError(f"run={run!r}: a server has one run; leave --run out, or give its journal's directory")
        return ServerSource(target, api_key)
    return JournalSource(target, None if run is None else _whole_id(Path(target), run))


def _whole_id(directory: Path, run: str) -> str:
    """The id of a run that is named by its last part, as the screen does; what is no such part stays as it is."""
    try:
        runs = list_runs(directory) if kind_of(directory) == "folder" else []
    except JournalError:
        return run
    found = [each for each in runs if each.endswith(f"-{run}")]
    return found[0] if run not in runs and len(found) == 1 else run


def is_url(target: str) -> bool:
    """Whether a target names a server. What exists as a file is none."""
    if target.startswith(("http://", "https://")):
        return True
    host, _, port = target.rpartition(":")
    return bool(host) and port.isdigit() and "/" not in target and not is_there(target)
