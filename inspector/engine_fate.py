"""What became of the engine that wrote a journal, as far as this machine can see. Knows neither requests nor words."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ..telemetry.clock import boot_id
from ..telemetry.engine_process import is_running, is_stopped, written_elsewhere
from ..telemetry.state import EngineState

Fate = Literal["live", "stale", "dead", "unseen", "stopped"]


def fate_of(state: EngineState, path: Path) -> Fate:
    """The fate of an engine.

    Args:
        state: at the end of its journal, joined.
        path: the journal's directory, or one of its segments, which may not be its newest.

    Returns:
        stopped: it ended in order; dead: its process is gone without that; live: it is there and writes here; stale:
        it is there, but held by a signal, or it writes elsewhere (this is a copy, or one segment); unseen: the journal
        is of another machine, or of this one before it was booted.
    """
    started = state.started
    if state.stopped is not None or started is None:
        return "stopped"
    here = boot_id()
    if started.boot_id and here and started.boot_id != here:
        return "unseen"
    if not is_running(started):
        return "dead"
    if not path.is_dir() or is_stopped(started) or written_elsewhere(started, path):
        return "stale"
    return "live"
