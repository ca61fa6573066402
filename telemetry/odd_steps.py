"""Which steps may take longer than their work for a reason that the journal tells. Knows no times."""

from __future__ import annotations

from .events import RequestArrived, StepPlanned

_NEUTRAL: dict[str, tuple[object, ...]] = {"n": (1,), "top_p": (1.0,), "repetition_penalty": (1.0,)}
_NOTHING: tuple[object, ...] = (None, False, 0)


class OddSteps:
    """Collects them along a journal.

    Attributes:
        steps: those that were launched again in parts, because they did not fit, and those with a prompt of the first
            request that uses a sampling parameter: what that takes is made ready then.
    """

    def __init__(self) -> None:
        self.steps: set[int] = set()
        self._used: set[str] = set()
        self._first: set[int] = set()

    def arrived(self, e: RequestArrived) -> None:
        """Take a request."""
        used = {name for name, value in e.params.items() if value not in _NEUTRAL.get(name, _NOTHING)}
        if not self._used.issuperset(used):
            self._used |= used
            self._first.update(e.seqs)

    def planned(self, e: StepPlanned) -> None:
        """Take a step's plan."""
        if not self._first.isdisjoint(chunk[0] for chunk in e.chunks):
            self.steps.add(e.step)
