"""What became of the engine that wrote a journal, as far as this machine can see, also in words. Knows no requests."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ..telemetry.clock import boot_id
from ..telemetry.engine_process import (
    clock_lead_ns,
    is_of_another_clock,
    is_running,
    is_stopped,
    written_elsewhere,
)
from ..telemetry.events import EngineStarted
from ..telemetry.state import EngineState
from .clock_words import iso
from .units import duration

Fate = Literal["live", "stale", "dead", "unseen", "stopped"]
SILENT_NS = 10_000_000_000  # that an engine with running sequences is silent for, before it is said


def fate_of(state: EngineState, path: Path) -> Fate:
    """The fate of an engine.

    Args:
        state: at the end of its journal, joined.
        path: the journal's directory, or one of its segments, which may not be its newest.

    Returns:
        stopped: it ended in order; dead: its process is gone without that; live: it is there and writes here; stale:
        it is there, but held by a signal, or it writes elsewhere (this is a copy, or one segment); unseen: the journal
        is of another machine, of this one before it was booted, or was written on another clock of this machine (in a
        time namespace) by a process that is not found.
    """
    started = state.started
    if state.stopped is not None or started is None:
        return "stopped"
    here = boot_id()
    if started.boot_id and here and started.boot_id != here:
        return "unseen"
    if not is_running(started):
        return "unseen" if is_of_another_clock(started, state.t) else "dead"
    if not path.is_dir() or is_stopped(started) or written_elsewhere(started, path):
        return "stale"
    return "live"


def now_of(started: EngineStarted, now: int) -> int:
    """A time of this process's clock (ns) on the clock of an engine that is there."""
    return now + clock_lead_ns(started.pid)


def fate_note(fate: Fate, state: EngineState, path: Path, last_t: int, now: int) -> str:
    """What has to be said of an engine, or "".

    Args:
        fate: its own.
        state: at the end of its journal, joined.
        path: as for `fate_of`.
        last_t: the last record's time.
        now: of the look, on this process's clock.
    """
    started = state.started
    if started is None or fate == "stopped":
        return ""
    when = f"the last record is of {iso(last_t, started.wall_offset_ns)}"
    if fate == "dead":
        return f"its engine died: the process is gone without engine.stopped; {when}"
    if fate == "unseen":
        other = "it was written on another clock of this machine (in a time namespace), and its process is not found"
        told = f"{other}: whether its engine lives can't be told; {when}"
        return told if is_of_another_clock(started, last_t) else ""
    silent = now_of(started, now) - last_t
    since = f"nothing has been written for {duration(max(0, silent))}; {when}"
    if fate == "live":
        hangs = silent >= SILENT_NS and bool(state.running) and not state.engine_paused
        return f"its engine lives, but may hang: with requests running, {since}" if hangs else ""
    if is_stopped(started):
        return f"its engine hangs: the process was stopped by a signal (SIGSTOP); {since}"
    elsewhere = written_elsewhere(started, path)
    if elsewhere:
        return f"a copy: its engine goes on writing to {elsewhere}; {when}"
    return f"one segment of a run that goes on; {when}"
