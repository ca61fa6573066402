"""Replicas that a fleet has lost, as against those that it took out in order: which, how and when. Knows no Ray."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from .fleet_messages import Report

MAX_RECENT = 64  # that are known by name: of a fleet whose replicas die all the time, too


class Loss(StrEnum):
    """How a replica was lost."""

    ENGINE_GONE = "engine_gone"  # its engine failed, or the engine's process died
    ENGINE_SILENT = "engine_silent"  # its engine gave no answer, or let work wait without a step, and it was replaced
    PROCESS_SILENT = "process_silent"  # its own process gave no sign of life, and it was replaced
    PROCESS_GONE = "process_gone"  # its own process died, or the machine with it


@dataclass(frozen=True, slots=True)
class LostReplica:
    """One of them.

    Attributes:
        replica: its id.
        how: it was lost.
        t_s: Unix time at which that was known.
    """

    replica: str
    how: Loss
    t_s: float


class Losses:
    """Counts them, each once.

    Args:
        wall_clock: Unix time in seconds.

    Attributes:
        counts: by how they were lost, from the start on.
    """

    def __init__(self, wall_clock: Callable[[], float] = time.time) -> None:
        self.counts = dict.fromkeys(Loss, 0)
        self._wall_clock = wall_clock
        self._recent: OrderedDict[str, LostReplica] = OrderedDict()

    @property
    def recent(self) -> list[LostReplica]:
        """The last MAX_RECENT of them, the oldest first."""
        return list(self._recent.values())

    def left(self, report: Report, is_silent: bool = False) -> None:
        """A replica has left the list of those that run, with this as its last report: lost if it was in trouble.

        Args:
            report: the last one.
            is_silent: whether there was no sign of life after it.
        """
        if is_silent:
            self._note(report.replica, Loss.PROCESS_SILENT)
        elif report.trouble:
            self._note(report.replica, Loss.ENGINE_GONE if report.is_engine_gone else Loss.ENGINE_SILENT)

    def died(self, report: Report, is_silent: bool = False) -> None:
        """A replica's process is gone, and this was its last report."""
        self.left(report, is_silent)  # what was wrong before is why
        self._note(report.replica, Loss.PROCESS_GONE)

    def _note(self, replica: str, how: Loss) -> None:
        if replica in self._recent:
            return
        self.counts[how] += 1
        self._recent[replica] = LostReplica(replica, how, self._wall_clock())
        if len(self._recent) > MAX_RECENT:
            self._recent.popitem(last=False)
