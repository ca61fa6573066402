"""The header's figures, each with a short history. Pure functions of a view; knows no terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .view import StepRow, View

RATE_S = 5.0  # that tokens/s is worked out over
BARS = " ▁▂▃▄▅▆▇█"
NS = 1_000_000_000

_Value = Callable[[Sequence[StepRow]], float | None]


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of the header.

    Attributes:
        name: as the docs call it.
        short: the same for narrow screens.
        value: in words.
        brief: the same in fewer.
        worry: whether it deserves attention now.
        top: value of a full bar; 0: the largest one in the history.
        of: value of some steps that stand next to each other; None where they have none.
    """

    name: str
    short: str
    value: str
    brief: str
    worry: bool
    top: float
    of: _Value

    def history(self, steps: Sequence[StepRow], width: int) -> str:
        """A sparkline, newest at the right, at most `width` wide."""
        return sparkline([self.of(group) for group in groups(steps, width)], self.top)


def figures(view: View) -> list[Figure]:
    """All of them, in the order of the header."""
    keyframe, totals = view.keyframe, view.keyframe.totals
    num_blocks, free = keyframe.started.num_blocks, len(keyframe.free_blocks)
    running, waiting = f"{len(keyframe.running):,}", f"{len(keyframe.waiting):,}"
    paused = sum(1 for seq in keyframe.sequences if seq.status == "PAUSED")
    with_paused = f"{running} +{paused:,} paused" if paused else running
    queried, hit = totals.get("prefix_queried_tokens", 0), totals.get("prefix_hit_tokens", 0)
    rate = tokens_per_second(view)
    preempted = totals.get("preemptions", 0)
    recent = sum(step.preemptions for step in view.steps[-20:])
    tokens = f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"
    share = f"{hit / queried:.0%}" if queried else "-"
    low = free * 10 < num_blocks
    return [
        Figure("free blocks", "free", f"{free:,}/{num_blocks:,}", f"{free:,}", low, num_blocks, _last_free),
        Figure("running", "running", with_paused, running, False, 0, lambda steps: steps[-1].planned.running),
        Figure("waiting", "waiting", waiting, waiting, False, 0, lambda steps: steps[-1].planned.waiting),
        Figure("tokens/s", "tok/s", tokens, tokens, False, 0, _rate),
        Figure("hit rate", "hit", share, share, False, 1.0, _hit_rate),
        Figure("preemptions", "preempt", f"{preempted:,}", f"{preempted:,}", recent > 0, 0, _preemptions),
    ]


def tokens_per_second(view: View) -> float:
    """Tokens sampled in the last RATE_S before the view's time, per second of them; pauses count.

    Where the view knows less than that, of the time from the first step or event that it knows.
    """
    now, since = view.now_t, view.now_t - int(RATE_S * NS)
    begin, sampled = min([now, *(row.t for row in view.events[:1])]), 0
    for step in reversed(view.steps):
        if step.finished is None:
            continue
        if step.finished.t <= since:
            begin = since
            break
        begin = min(begin, step.finished.t - step.interval_ns)
        sampled += step.finished.num_sampled
    begin = max(begin, since)
    return sampled * NS / (now - begin) if now > begin else 0.0


def groups(steps: Sequence[StepRow], width: int) -> list[Sequence[StepRow]]:
    """At most `width` groups of as many steps each, oldest first; the first one may hold fewer."""
    if not steps or width < 1:
        return []
    size = -(-len(steps) // width)
    first = len(steps) % size
    ends = range(first or size, len(steps) + 1, size)
    return [steps[max(0, end - size) : end] for end in ends]


def sparkline(values: Sequence[float | None], top: float = 0) -> str:
    """Values as bars; what is not 0 shows at least the lowest one, and None is left blank."""
    largest = top or max((value for value in values if value is not None), default=0)
    return "".join(_bar(value, largest) for value in values)


def _bar(value: float | None, largest: float) -> str:
    if value is None or largest <= 0:
        return BARS[0 if value is None else 1]
    return BARS[1 + min(7, max(0, round(value / largest * 7)))]


def _last_free(steps: Sequence[StepRow]) -> float:
    return steps[-1].planned.free


def _rate(steps: Sequence[StepRow]) -> float | None:
    duration = sum(step.interval_ns for step in steps)
    return sum(step.finished.num_sampled for step in steps if step.finished) * NS / duration if duration else None


def _hit_rate(steps: Sequence[StepRow]) -> float | None:
    queried = sum(step.queried_tokens for step in steps)
    return sum(step.hit_tokens for step in steps) / queried if queried else None


def _preemptions(steps: Sequence[StepRow]) -> float | None:
    return sum(step.preemptions for step in steps) or None
