"""When a verdict is asked for again: it may cost seconds, and a screen should cost next to nothing."""

from __future__ import annotations

import time
from collections.abc import Callable

from ...errors import NanolensError
from ..sources.source import Source
from ..view import Judgement, Moment, View

EVERY_S = 2.0  # at most one verdict on the same sequence in this time
MOST_OF_A_CORE = 0.05  # that verdicts take on average

Asked = tuple[int, Moment, int]  # sequence, moment, clock nanoseconds that it is told up to


class Judge:
    """Asks a source for verdicts. All but `ask` belong to the UI's thread.

    Args:
        source: that is asked.
        clock: seconds, by which it waits.
        cpu: seconds that the calling thread has computed.
    """

    def __init__(
        self,
        source: Source,
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self._source, self._clock, self._cpu = source, clock, cpu
        self._asked: Asked | None = None
        self._said: tuple[Asked, Judgement | None, str] | None = None
        self._next = self._affordable = 0.0  # earliest times of another verdict: live, and at all
        self._is_busy = False

    def is_due(self, seq: int, view: View) -> bool:
        """Whether the verdict on what is shown is to be asked for: at once for another sequence or past moment."""
        asked = (seq, view.moment, view.now_t)
        if self._is_busy or asked == self._asked:
            return False
        if self._asked is None or self._asked[0] != seq:
            return True
        return self._clock() >= max(self._affordable, self._next if view.is_live else 0.0)

    def begin(self, seq: int, view: View) -> None:
        """`ask` will be called, once, for this."""
        self._is_busy, self._asked = True, (seq, view.moment, view.now_t)

    def ask(self) -> None:
        """Ask for the verdict. Blocks. What is wrong with the journal is said in its place."""
        if self._asked is None:
            return
        began, before, asked = self._clock(), self._cpu(), self._asked
        found, words = None, ""
        try:
            found = self._source.verdict(*asked)
        except NanolensError as error:
            words = str(error)
        finally:
            self._next, self._affordable = began + EVERY_S, began + (self._cpu() - before) / MOST_OF_A_CORE
            self._said, self._is_busy = (asked, found, words), False

    def said_of(self, seq: int, view: View) -> tuple[Judgement | None, str]:
        """The verdict that there is, and words where there is none. Of a past moment only its own will do."""
        if self._said is None or self._said[0][0] != seq or not (view.is_live or self._said[0][1] == view.moment):
            return None, "looking for what its time was spent on…"
        return self._said[1:]
