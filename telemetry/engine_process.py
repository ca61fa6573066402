"""Whether the process that writes a journal still lives, as seen from another process of the same machine."""

from __future__ import annotations

import os
import time
from pathlib import Path

from .clock import boot_id
from .events import EngineStarted
from .frames import parse_name

_NS = 1_000_000_000
_SLACK_NS = 2 * _NS  # the process starts before its first event; clock ticks are coarse


def is_running(started: EngineStarted) -> bool:
    """Whether the engine of a run is there. A process that took its number since, or a zombie, is not it."""
    return was_and_is(started.pid, started.t)


def is_stopped(started: EngineStarted) -> bool:
    """Whether a process that is there has been stopped by a signal (SIGSTOP), until it is continued."""
    try:
        stat = Path(f"/proc/{started.pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] == "T"


def written_elsewhere(started: EngineStarted, path: Path) -> str:
    """The directory that a running engine writes its run into, where `path` holds a copy of it.

    Args:
        started: of the run.
        path: a journal's directory, or a segment of it.

    Returns:
        "" where this is the engine's own, or where that can't be seen.
    """
    told = started.config.get("journal")
    if not isinstance(told, str) or not told:
        return ""
    try:
        home = Path(f"/proc/{started.pid}/cwd") / told  # as is where it is absolute
        if home.samefile(path if path.is_dir() else path.parent):
            return ""
        names = (parse_name(entry.name) for entry in os.scandir(home))
        has_run = any(name is not None and name.run_id == started.run_id for name in names)
        return os.path.realpath(home) if has_run else ""
    except OSError:
        return ""


def clock_lead_ns(pid: int) -> int:
    """Nanoseconds that CLOCK_MONOTONIC of a process is ahead of this one's: 0, unless either has a time namespace.

    Linux tells both offsets (time_namespaces(7)); where it does not, or the process is gone, they count as alike.
    """
    try:
        return _offset_ns(str(pid)) - _offset_ns("self")
    except (OSError, ValueError):
        return 0


def _offset_ns(process: str) -> int:
    """What a process's time namespace adds to CLOCK_MONOTONIC: the line `monotonic SECONDS NANOSECONDS`."""
    for line in Path(f"/proc/{process}/timens_offsets").read_text(encoding="ascii").splitlines():
        clock, seconds, ns = line.split()
        if clock == "monotonic":
            return int(seconds) * _NS + int(ns)
    return 0


def is_of_another_clock(started: EngineStarted, t: int) -> bool:
    """Whether a run of this boot was written on another clock (a time namespace): its last time is still to come.

    No process of it is to be found then from where its process numbers mean nothing.
    """
    here = boot_id()
    return bool(here) and started.boot_id == here and t > time.monotonic_ns() + _SLACK_NS


def was_and_is(pid: int, t: int) -> bool:
    """Whether the process that had a number at a time of its clock (ns) still has it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    t -= clock_lead_ns(pid)
    if t > time.monotonic_ns() + _SLACK_NS:
        return False  # of an earlier boot
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return not Path("/proc/self/stat").exists()  # no /proc here: the signal had to do
    fields = stat.rpartition(")")[2].split()
    if fields[0] in "ZX":
        return False
    since_boot = int(fields[19]) * _NS // os.sysconf("SC_CLK_TCK")
    asleep = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    return since_boot - asleep <= t + _SLACK_NS
