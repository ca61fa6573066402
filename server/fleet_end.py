"""The last steps of a fleet, with a limit on each: what a Ray that is gone would never answer. Knows no Ray."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from enum import Enum
from typing import Any

from .fleet_retiring import END_S, HEARD_S
from .startup import say

LOOK_S = 0.25  # between two questions to the front
ASK_S = 5.0  # for the answer to one; a front that has died is back within seconds
KILL_S = 30.0  # for it to find out which replicas are silent; it counts no time in which it stood still itself


class Ended(Enum):
    """How what ran has ended."""

    FINISHED = "finished"
    CUT = "cut"
    WITHOUT_FRONT = "without front"


def drain(
    handle: Any,
    seconds: float,
    hurry: threading.Event,
    is_replacing: Callable[[], bool] = lambda: False,
    ask_s: float = ASK_S,
) -> Ended:
    """Let nobody in, wait for what runs until the time is up or somebody hurries, and have the rest ended.

    Args:
        handle: of the front.
        seconds: that requests may take.
        hurry: ends the wait.
        is_replacing: whether replicas run that the front knows no more, or a front that has been replaced.
        ask_s: for an answer of the front.
    """
    say(f"new requests are refused; those that run may take {seconds:g} s to finish")
    deadline = time.monotonic() + seconds
    num_open: int | None = None
    failures = 0
    while failures < 2:
        found, trouble = _asked(handle, "drain", ask_s)
        failures = failures + 1 if trouble else 0
        num_open = num_open if found is None else found
        if num_open == 0 and not is_replacing():
            return Ended.FINISHED
        if hurry.is_set() or time.monotonic() >= deadline:
            break
        hurry.wait(LOOK_S)
    if not trouble:
        say(_cut(num_open))
        left, trouble = _asked(handle, "end", HEARD_S + END_S + ask_s)
    if trouble:
        say(f"the front does not answer: {trouble}")
        return Ended.WITHOUT_FRONT
    if left:
        say(f"{left} answers are cut: their replicas, or their clients, take no end")
    return Ended.CUT


def _cut(num_open: int | None) -> str:
    """What is ended, in words. None: the front has not said how many requests run; 0: none that it knows of."""
    if num_open == 0:
        return "replicas that are being replaced are ended; no request is known to run"
    return f"{'some' if num_open is None else num_open} requests are ended before they finished"


def kill_silent(handle: Any, ask_s: float = KILL_S) -> int:
    """Have those replicas killed that give no sign of life, which Ray would wait for: how many."""
    killed, trouble = _asked(handle, "kill_silent", ask_s)
    if trouble:
        say(f"which replicas are silent is not known: {trouble}")
    return killed or 0


def _asked(handle: Any, method: str, seconds: float) -> tuple[int | None, str]:
    """What a method of the front answers, or why there is no answer. Without Ray, not even the call returns."""
    answers: list[int] = []
    troubles: list[str] = []

    def ask() -> None:
        try:
            answers.append(handle.options(method_name=method).remote().result(timeout_s=seconds))
        except Exception as error:  # Ray's own, of many kinds
            troubles.append(type(error).__name__)

    within(seconds + 1.0, ask)
    if answers:
        return answers[0], ""
    return None, troubles[0] if troubles else "it takes too long"


def within(seconds: float, work: Callable[[], object]) -> bool:
    """Do something that may never end: whether it has, and without an exception, in so many seconds."""
    done: list[bool] = []

    def do() -> None:
        try:
            work()
        except Exception:  # Ray's own: it may be gone
            return
        done.append(True)

    thread = threading.Thread(target=do, daemon=True)
    thread.start()
    thread.join(seconds)
    return bool(done)
