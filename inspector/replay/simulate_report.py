"""A what-if as text: figures side by side, a sweep as a table, a plot in the terminal, and one as an SVG file."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

from ..units import duration
from .simulate import Simulated, WhatIf
from .simulate_figures import Figures

ROWS = (
    ("ttft_p50", "TTFT p50"), ("ttft_p99", "TTFT p99"), ("itl_p50", "ITL p50"), ("itl_p99", "ITL p99"),
    ("e2e_p50", "e2e p50"), ("e2e_p99", "e2e p99"), ("tokens_per_s", "output tokens/s"), ("preemptions", "preemptions"),
    ("hit_rate", "prefix hits"), ("steps", "steps"), ("requests", "requests"),
)  # fmt: skip
_DURATIONS = ("ttft_p50", "ttft_p99", "itl_p50", "itl_p99", "e2e_p50", "e2e_p99")
_SWEPT = ("ttft_p50", "ttft_p99", "itl_p50", "e2e_p50", "e2e_p99", "tokens_per_s", "preemptions", "hit_rate")
_PLOTTED = ("ttft_p99", "e2e_p50", "tokens_per_s")
BAR = "█"
MOST_TOLD = 3


def shown(name: str, value: float) -> str:
    """A figure as people read it."""
    if value != value:
        return "-"
    if name in _DURATIONS:
        return duration(round(value * 1e9))
    if name == "hit_rate":
        return f"{100 * value:.1f}%"
    return f"{value:,.1f}" if name == "tokens_per_s" else f"{value:,}"


def change(name: str, before: float, after: float) -> str:
    """From one figure to another; "" where that says nothing."""
    if before != before or after != after or before == after:
        return ""
    if name == "hit_rate":
        return f"{100 * (after - before):+.1f} pt"
    return f"{100 * (after / before - 1):+.1f}%" if before else f"+{after:,g}"


def what_if_lines(what_if: WhatIf, base: Simulated, changed: Simulated) -> list[str]:
    """Recorded, simulated as it was, and simulated with other settings."""
    settings = ", ".join(map(str, changed.settings))
    lines = [*_head(what_if), f"What if {settings}:", ""]
    lines.append(f"{'':<16}{'recorded':>11}{'simulated':>11}{'error':>9}{'what if':>11}{'change':>10}")
    for name, title in ROWS:
        real, same, other = (getattr(figures, name) for figures in (what_if.recorded, base.figures, changed.figures))
        lines.append(
            f"{title:<16}{shown(name, real):>11}{shown(name, same):>11}{change(name, real, same):>9}"
            f"{shown(name, other):>11}{change(name, same, other):>10}".rstrip()
        )
    return [*lines, "", *_notes(what_if, base, [changed])]


def sweep_lines(what_if: WhatIf, base: Simulated, found: list[Simulated], width: int) -> list[str]:
    """One line a value, then a plot of what matters most."""
    name = found[0].settings[-1].name
    others = ", ".join(map(str, found[0].settings[:-1]))
    first = max(len(name), *(len(_value(s)) for s in found), 11) + 2
    titles = dict(ROWS) | {"tokens_per_s": "tokens/s", "preemptions": "preempted", "hit_rate": "hits"}
    lines = [*_head(what_if), f"Sweep of {name}{f' with {others}' if others else ''}:", ""]
    lines.append(f"{name:<{first}}" + "".join(f"{titles[figure]:>10}" for figure in _SWEPT))
    for label, figures in (("(recorded)", what_if.recorded), ("(simulated)", base.figures)):
        lines.append(_sweep_row(label, first, figures))
    lines += [_sweep_row(_value(s), first, s.figures) for s in found]
    for figure in _PLOTTED:
        lines += ["", titles[figure]]
        values = [getattr(s.figures, figure) for s in found]
        most = max((value for value in values if value == value), default=0.0)
        room = max(10, width - first - 10)
        for s, value in zip(found, values, strict=True):
            bar = BAR * round(room * value / most) if most and value == value else ""
            lines.append(f"{_value(s):<{first}}{shown(figure, value):>9} {bar}")
    return [*lines, "", *_notes(what_if, base, found)]


def as_json(what_if: WhatIf, base: Simulated, found: list[Simulated]) -> dict[str, Any]:
    """The same as an object. Times in seconds."""
    times = what_if.times
    return {
        "run": what_if.recording.run,
        "model": {
            "steps": times.device.num_steps, "median_error": times.device.median_error,
            "p90_error": times.device.p90_error, "device_scale": times.device_scale, "host_scale": times.host_scale,
            "swap_ns_per_block": times.swap_ns_per_block,
        },
        "left_out": len(what_if.story.cut),
        "recorded": what_if.recorded.as_dict(),
        "simulated": base.figures.as_dict(),
        "unended": base.unended,
        "what_if": [
            {
                "settings": {s.name: s.value for s in simulated.settings}, "figures": simulated.figures.as_dict(),
                "unended": simulated.unended,
            }
            for simulated in found
        ],
    }  # fmt: skip


def _head(what_if: WhatIf) -> list[str]:
    recording, model = what_if.recording, what_if.times.device
    lines = [
        f"Run {recording.run}: {what_if.recorded.requests:,} requests, {what_if.recorded.steps:,} steps. "
        f"A step's cost is modelled with a median error of {100 * model.median_error:.1f}% "
        f"(p90 {100 * model.p90_error:.1f}%)."
    ]
    if recording.ended:
        lines.append(f"The recording is not whole: {recording.ended}.")
    return lines


def _notes(what_if: WhatIf, base: Simulated, found: list[Simulated]) -> list[str]:
    """What to know about these figures."""
    notes = ["Requests arrive when they did: users that wait for answers would have sent theirs at other times."]
    if what_if.story.cut:
        notes.append(f"{len(what_if.story.cut):,} requests that had not ended are simulated, and left out here.")
    notes += [note for simulated in (base, *found) for note in _unended(simulated)]
    tracks = [s.tracks for s in found]
    if not what_if.times.swap_ns_per_block and any(track.swaps for t in tracks for track in t.tracks.values()):
        notes.append("What a move of blocks takes was never measured in this run: here it takes no time.")
    return notes


def _unended(simulated: Simulated) -> list[str]:
    """That some requests could not end, which, and why."""
    count, settings = len(simulated.unended), ", ".join(map(str, simulated.settings)) or "nothing changed"
    if not count:
        return []
    told = [f"{request} {why}" for request, why in list(simulated.unended.items())[:MOST_TOLD]]
    if count > MOST_TOLD:
        told.append(f"and {count - MOST_TOLD:,} more")
    requests = "1 request" if count == 1 else f"{count:,} requests"
    return [f"With {settings} {requests} could not end, and the figures are without: {'; '.join(told)}."]


def _sweep_row(label: str, first: int, figures: Figures) -> str:
    return f"{label:<{first}}" + "".join(f"{shown(name, getattr(figures, name)):>10}" for name in _SWEPT)


def _value(simulated: Simulated) -> str:
    return str(simulated.settings[-1]).partition("=")[2]


@dataclass(frozen=True, slots=True)
class _Panel:
    """Where a plot lies in its picture."""

    left: int
    top: int
    width: int = 250
    height: int = 150


def sweep_svg(what_if: WhatIf, found: list[Simulated]) -> str:
    """A picture of a sweep: a line for each of the main figures over the values, the recorded one as a dashed line."""
    name = found[0].settings[-1].name
    panels = [_Panel(60 + 320 * i, 50) for i in range(len(_PLOTTED))]
    body = [f'<text x="20" y="24" font-size="15">What if: {escape(name)} (run {escape(what_if.recording.run)})</text>']
    for figure, panel in zip(_PLOTTED, panels, strict=True):
        body += _plot(panel, figure, [_value(s) for s in found], [getattr(s.figures, figure) for s in found],
                      getattr(what_if.recorded, figure))  # fmt: skip
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{60 + 320 * len(panels)}" height="260" '
        'font-family="sans-serif" font-size="11">\n<rect width="100%" height="100%" fill="white"/>\n'
        + "\n".join(body) + "\n</svg>\n"
    )  # fmt: skip


def _plot(panel: _Panel, figure: str, labels: list[str], values: list[float], recorded: float) -> list[str]:
    known = [value for value in [*values, recorded] if value == value]
    top = 1.1 * max(known, default=1.0) or 1.0
    bottom = panel.top + panel.height
    places = [panel.left + panel.width * i / max(1, len(values) - 1) for i in range(len(values))]

    def height(value: float) -> float:
        return bottom - panel.height * value / top

    points = [(x, height(value)) for x, value in zip(places, values, strict=True) if value == value]
    title = dict(ROWS)[figure]
    lines = [
        f'<text x="{panel.left}" y="{panel.top - 8}" font-weight="bold">{title}</text>',
        f'<path d="M{panel.left} {panel.top}V{bottom}H{panel.left + panel.width}" fill="none" stroke="#666"/>',
        f'<text x="{panel.left - 6}" y="{bottom}" text-anchor="end">0</text>',
        f'<text x="{panel.left - 6}" y="{panel.top + 10}" text-anchor="end">{shown(figure, top)}</text>',
        '<polyline fill="none" stroke="#1f6feb" stroke-width="2" points="'
        + " ".join(f"{x:.1f},{y:.1f}" for x, y in points) + '"/>',
    ]  # fmt: skip
    lines += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#1f6feb"/>' for x, y in points]
    if recorded == recorded:
        y = height(recorded)
        lines.append(
            f'<line x1="{panel.left}" x2="{panel.left + panel.width}" y1="{y:.1f}" y2="{y:.1f}" stroke="#888" '
            'stroke-dasharray="4 3"/>'
        )
    every = max(1, len(labels) // 7)
    return lines + [
        f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{escape(label)}</text>'
        for i, (x, label) in enumerate(zip(places, labels, strict=True)) if i % every == 0
    ]  # fmt: skip
