"""Keeps the garbage collector, and threads, from holding a program up. Knows nothing of what the program does."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator

SWITCH_S = 0.0005  # that a thread computes on while another one waits for the interpreter; 5 ms otherwise
YOUNG, OLDER, OLDEST = 2_000, 20, 50  # as of `gc.set_threshold`: a young collection walks 2,000 containers, 1 ms
MANY = 50_000  # containers between two young collections of a program that only reads and adds up


def rare_collections() -> None:
    """For a program that builds up what it keeps and ends: what it has is not walked again and again."""
    gc.freeze()
    gc.set_threshold(MANY, OLDER, OLDEST)


@contextlib.contextmanager
def short_pauses() -> Iterator[None]:
    """Threads take turns quickly, and what is there already is no work for the garbage collector.

    Modules, classes and styles are some hundred thousand objects, which live as long as the program: a collection
    that walks them holds up all threads for 0.1 s, each time. As it was afterwards.
    """
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, OLDER, OLDEST)
    sys.setswitchinterval(SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*thresholds)
        gc.unfreeze()
