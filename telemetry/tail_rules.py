"""Which traces are kept, decided when a request ends and everything about it is known. Knows no spans."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidConfig

FLAGS = ("failed", "aborted", "preempted", "parent", "unsampled")
FIGURES = {"slow": "slow_s", "ttft": "ttft_s", "percent": "percent"}
ALLOWED = "slow=SECONDS, ttft=SECONDS, percent=0..100, failed, aborted, preempted, parent or unsampled"
_SAMPLED_BITS = 56  # of a trace id, the last ones: random also in ids that others made (W3C Trace Context level 2)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is known of a request that has ended. Times are seconds from its arrival.

    Attributes:
        trace_id: of its trace.
        request_s: to its end.
        ttft_s: to its first token; None: it had none.
        failed: it ended in an error, or was refused.
        aborted: it was aborted.
        preempted: one of its sequences lost its place to another, or took that of another.
        parent_sampled: whether its caller's trace is sampled; None: the caller named none.
    """

    trace_id: int
    request_s: float
    ttft_s: float | None = None
    failed: bool = False
    aborted: bool = False
    preempted: bool = False
    parent_sampled: bool | None = None


@dataclass(frozen=True, slots=True)
class TailRules:
    """A trace is kept if one of the rules that are set holds, or if none is set.

    A trace that its caller did not sample is dropped before any rule is asked, unless `unsampled` is set.

    Attributes:
        slow_s: keep requests that took longer than this, in seconds.
        ttft_s: keep requests that waited longer than this for their first token, in seconds.
        percent: keep this share of all traces, chosen by their ids: other services that do likewise choose the same.
        failed: keep requests that failed or were refused.
        aborted: keep aborted ones.
        preempted: keep those that were preempted, and those that they were preempted for.
        parent: keep those whose caller's trace is sampled.
        unsampled: treat traces that their caller did not sample like all others.
    """

    slow_s: float | None = None
    ttft_s: float | None = None
    percent: float | None = None
    failed: bool = False
    aborted: bool = False
    preempted: bool = False
    parent: bool = False
    unsampled: bool = False

    @classmethod
    def parse(cls, texts: Iterable[str]) -> TailRules:
        """Rules from texts such as `slow=2.5`, `ttft=1`, `percent=10`, `failed`; none: everything is kept.

        Raises:
            InvalidConfig: a text is no rule, given twice, or its figure is out of range.
        """
        given: dict[str, Any] = {}
        for text in texts:
            name, equals, value = text.strip().partition("=")
            field = FIGURES.get(name, name)
            if field in given:
                raise InvalidConfig(f"keep={text}: {name} is given twice")
            if name in FIGURES and equals:
                given[field] = _figure(text, name, value)
            elif name in FLAGS and not equals:
                given[field] = True
            else:
                raise InvalidConfig(f"keep={text}: must be {ALLOWED}")
        return cls(**given)

    def drops_as_unsampled(self, outcome: Outcome) -> bool:
        """Whether its caller decided that this trace is not recorded."""
        return outcome.parent_sampled is False and not self.unsampled

    def keeps(self, outcome: Outcome) -> bool:
        """Whether a rule holds for this request, or none is set."""
        if not self._any:
            return True
        waited_s = outcome.ttft_s if outcome.ttft_s is not None else outcome.request_s
        return (
            (self.failed and outcome.failed)
            or (self.aborted and outcome.aborted)
            or (self.preempted and outcome.preempted)
            or (self.parent and outcome.parent_sampled is True)
            or (self.slow_s is not None and outcome.request_s > self.slow_s)
            or (self.ttft_s is not None and waited_s > self.ttft_s)
            or (self.percent is not None and _is_among_first(outcome.trace_id, self.percent))
        )

    @property
    def _any(self) -> bool:
        return (
            self.failed
            or self.aborted
            or self.preempted
            or self.parent
            or any(figure is not None for figure in (self.slow_s, self.ttft_s, self.percent))
        )


KEEP_ALL = TailRules()


def _is_among_first(trace_id: int, percent: float) -> bool:
    """Whether a trace is in this share of all; ids are compared as whole numbers, of which a float can't hold each."""
    return (trace_id & ((1 << _SAMPLED_BITS) - 1)) < percent / 100 * (1 << _SAMPLED_BITS)


def _figure(text: str, name: str, value: str) -> float:
    try:
        figure = float(value)
    except ValueError:
        figure = math.nan
    most = 100.0 if name == "percent" else math.inf
    if not (0 <= figure <= most and math.isfinite(figure)):
        allowed = "a number from 0 to 100" if name == "percent" else "a number of seconds, at least 0"
        raise InvalidConfig(f"keep={text}: {value!r} must be {allowed}")
    return figure
