"""An engine is its process's: in a fork of it, it counts as closed. Journal, ranks and device stay the parent's.

Knows only how an engine is left.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Leavable(Protocol):
    """What is left in a fork."""

    def leave(self, reason: str) -> None:
        """Give it up, for this reason, and touch nothing that the parent uses too. Takes no lock."""


_owners: weakref.WeakKeyDictionary[Leavable, int] = weakref.WeakKeyDictionary()  # the process that each is of


def leave_in_forks(engine: Leavable) -> None:
    """Have `engine.leave` called in every process that is forked off this one from now on."""
    _owners[engine] = os.getpid()


def _leave_all() -> None:
    for engine, owner in tuple(_owners.items()):  # the parent may be a fork too, or gone
        engine.leave(f"the engine is that of process {owner}, of which this one is a fork; start one of its own here")


os.register_at_fork(after_in_child=_leave_all)
