"""Moments of a journal on this machine as a source answers them; where it comes from is not known here."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from ...errors import AuditError, InspectError, JournalError
from ...telemetry.predicate import Predicate
from ..history.history import History
from ..history.verdicts import Verdicts
from ..view import EventRow, Judgement, Kept, Moment, SourceStatus, Story, Tick, View


@contextlib.contextmanager
def in_words() -> Iterator[None]:
    """What is wrong with a journal, as an InspectError."""
    try:
        yield
    except (JournalError, AuditError) as error:
        raise InspectError(str(error)) from error


class Past:
    """One run of a journal, opened when the first question comes.

    Args:
        path: a journal's directory, or one segment.
        run: its run.
    """

    def __init__(self, path: str | Path, run: str) -> None:
        self._path, self._run = path, run
        self._history: History | None = None
        self._verdicts: Verdicts | None = None
        self._is_over = False
        self._lock = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Whether anything was asked."""
        return self._history is not None

    @property
    def history(self) -> History:
        """The journal up to now.

        Raises:
            InspectError: it can't be read, or holds nothing yet.
        """
        with self._lock, in_words():
            if self._history is None:
                self._history = History(self._path, self._run)
            else:
                self._history.refresh()
            return self._history

    @property
    def verdicts(self) -> Verdicts:
        """As `history`, for verdicts, which may take a while: no other question waits for them."""
        with self._lock, in_words():
            if self._verdicts is None:
                self._verdicts = Verdicts(self._path, self._run)
            return self._verdicts

    def reopen(self) -> None:
        """Begin anew at the next question: the journal has more to its front."""
        with self._lock:
            history, self._history = self._history, None
            verdicts, self._verdicts = self._verdicts, None
        if history is not None:
            history.close()
        if verdicts is not None:
            verdicts.close()

    def close(self) -> None:
        """Let go of it. May be called again."""
        self._is_over = True
        self.reopen()

    def first(self) -> Tick:
        """Where it begins."""
        with in_words():
            history = self.history
            return history.tick(history.first())

    def kept(self) -> Kept:
        """As of `Source`."""
        with in_words():
            history = self.history
            oldest = history.first()
            return Kept(oldest, history.tick(oldest), history.tick(history.last()))

    def view(self, moment: Moment, status: SourceStatus, first: Tick | None, last: Tick | None) -> View:
        """The engine at a moment.

        Args:
            moment: which.
            status: of the source.
            first: where the source's journal begins; None: where this one does.
            last: where it ends; None: as far as it was read.
        """
        with in_words():
            history = self.history
            state = history.keyframe(moment)
            return View(
                moment=moment,
                is_live=False,
                keyframe=state.keyframe,
                steps=history.steps(moment),
                events=history.events(moment),
                is_order_sure=state.is_order_sure,
                stopped=state.stopped,
                first=first or history.tick(history.first()),
                last=last or history.tick(history.last()),
                status=status,
            )

    def story(self, seq: int, moment: Moment, now_t: int = 0) -> Story | None:
        """As of `Source`."""
        with in_words():
            return self.history.story(moment, seq, now_t)

    def verdict(self, seq: int, moment: Moment, now_t: int = 0, engine: str = "live") -> Judgement | None:
        """As of `Source`; `engine`: dead where it died at that moment."""
        with in_words():
            verdicts = self.verdicts
            try:
                return verdicts.of(seq, moment, now_t, engine)
            except InspectError:
                if self._is_over or verdicts is self._verdicts:
                    raise
            return self.verdicts.of(seq, moment, now_t, engine)  # it was opened anew meanwhile

    def at_step(self, step: int) -> Moment:
        """As of `Source`."""
        with in_words():
            return self.history.at_step(step)

    def at_time(self, t: int) -> Moment:
        """As of `Source`."""
        with in_words():
            return self.history.at_time(t)

    def move(self, moment: Moment, steps: int) -> Moment:
        """As of `Source`."""
        with in_words():
            return self.history.move(moment, steps)

    def find(self, moment: Moment, predicate: Predicate | None, forward: bool) -> EventRow | None:
        """As of `Source`."""
        with in_words():
            return self.history.find(moment, predicate, forward)
