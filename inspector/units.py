"""Numbers as people read them in a narrow column, and names from outside on one line. Knows no terminal."""

from __future__ import annotations

NS, US, MS, S = 1, 1_000, 1_000_000, 1_000_000_000
NONE = "-"


def duration(ns: int | None) -> str:
    """At most 6 characters: `850µs`, `12.3ms`, `1.24s`, `3m05s`, `2h10m`, `3d04h`; `-` for None."""
    if ns is None:
        return NONE
    for unit, name in ((US, "µs"), (MS, "ms"), (S, "s")):
        top = 60 if name == "s" else 1000
        value = ns / unit
        if value < top - 0.5:
            digits = 0 if name == "µs" or value >= 99.95 else 1 if value >= 9.995 else 2  # of what is rounded
            return f"{value:.{digits}f}{name}" if digits < 2 or name == "s" else f"{value:.1f}{name}"
    minutes, seconds = divmod(round(ns / S), 60)
    if minutes < 60:
        return f"{minutes}m{seconds:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours < 24 else f"{hours // 24}d{hours % 24:02d}h"


def share(part: int, whole: int) -> str:
    """Per cent without decimals; `-` of nothing."""
    return f"{100 * part / whole:.0f}%" if whole else NONE


def printable(text: str) -> str:
    """A text that came from outside, on one line and without what a terminal would act on."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
