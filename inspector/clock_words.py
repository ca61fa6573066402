"""Moments in words, and out of words. Knows no source and no terminal."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta

from ..errors import InspectError
from .view import Tick, View

NS = 1_000_000_000
WAYS_THERE = "give step 120, 120, +10, -30s, +2m, 14:03:22, first or last"

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_STEP = re.compile(r"(?:step\s+)?([0-9][0-9_,]*)")
_STEPS = re.compile(r"([+-])([0-9]+)")
_OFFSET = re.compile(r"([+-])([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h)")
_CLOCK = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2})(?:[.,]([0-9]{1,6}))?)?")


def clock(t: int, wall_offset_ns: int, decimals: int = 0) -> str:
    """Clock nanoseconds as this machine's time of day."""
    at = datetime.fromtimestamp((t + wall_offset_ns) / NS)
    text = at.strftime("%H:%M:%S")
    return f"{text}.{at.microsecond // 10 ** (6 - decimals):0{decimals}d}" if decimals else text


def iso(t: int, wall_offset_ns: int) -> str:
    """Clock nanoseconds as this machine's date and time with its zone, ISO 8601, to a microsecond."""
    seconds, ns = divmod(t + wall_offset_ns, NS)
    return datetime.fromtimestamp(seconds).astimezone().replace(microsecond=ns // 1000).isoformat("T", "microseconds")


class Jump:
    """Where somebody wants to go, in one of the ways there are.

    Attributes:
        step: this step.
        steps: so many steps on, or back where negative.
        t: these clock nanoseconds.
    """

    def __init__(self, *, step: int | None = None, steps: int | None = None, t: int | None = None) -> None:
        self.step = step
        self.steps = steps
        self.t = t

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Jump) and vars(self) == vars(other)

    def __repr__(self) -> str:
        return f"Jump({vars(self)})"


def read_jump(text: str, view: View) -> Jump:
    """Read a place in time, as seen from a view.

    Args:
        text: `step 120` or `120`; `+10` and `-10` in steps; `-30s` (ms, s, m, h); `14:03:22`; `first`; `last`.
        view: offsets count from its time; a time of day is the one nearest to the journal.

    Raises:
        InspectError: that is none of these.
    """
    words = text.strip().lower()
    if words in ("first", "last"):
        return Jump(t=(view.first if words == "first" else view.last).t)
    for form, read in _FORMS:
        found = form.fullmatch(words)
        if found:
            return read(found, view)
    raise InspectError(f"{text.strip() or 'nothing'}: no place in time; {WAYS_THERE}")


def _offset(found: re.Match[str], view: View) -> Jump:
    sign = -1 if found[1] == "-" else 1
    return Jump(t=view.now_t + sign * int(float(found[2]) * _UNITS[found[3]] * NS))


def _time_of_day(found: re.Match[str], view: View) -> Jump:
    hour, minute, second = int(found[1]), int(found[2]), int(found[3] or 0)
    microsecond = int((found[4] or "0").ljust(6, "0"))
    offset = view.keyframe.started.wall_offset_ns
    middle = datetime.fromtimestamp((view.keyframe.t + offset) / NS)
    try:
        at = middle.replace(hour=hour, minute=minute, second=second, microsecond=microsecond)
    except ValueError as error:
        raise InspectError(f"{found[0]}: no time of day; {WAYS_THERE}") from error
    days = (at + timedelta(days=day) for day in (0, -1, 1))
    times = [round(day.timestamp() * 1e6) * 1000 - offset for day in days]
    return Jump(t=min(times, key=lambda t: _distance(t, view.first, view.last)))


def _distance(t: int, first: Tick, last: Tick) -> int:
    return max(first.t - t, t - last.t, 0)


_FORMS: list[tuple[re.Pattern[str], Callable[[re.Match[str], View], Jump]]] = [
    (_STEP, lambda found, view: Jump(step=int(re.sub("[_,]", "", found[1])))),
    (_STEPS, lambda found, view: Jump(steps=int(found[1] + found[2]))),
    (_OFFSET, _offset),
    (_CLOCK, _time_of_day),
]
