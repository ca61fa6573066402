"""What the screens ask of a source: views, stories, moments, and control where it has any. Knows no terminal."""

from __future__ import annotations

from typing import Protocol

from ...telemetry.predicate import Predicate
from ..view import EventRow, Judgement, Kept, Moment, SourceStatus, Story, View


class Control(Protocol):
    """Steers the engine behind a source. Each call blocks until it is answered, and puts a mark with its origin into
    the journal first.

    Raises (all of them):
        InspectError: in words: refused, unknown sequence, no connection, no right.
    """

    def of_run(self, run: str) -> Control:
        """The same for one run alone: where the server runs another one by now, nothing is done."""

    def pause_engine(self) -> None:
        """Plan no more steps."""

    def continue_engine(self) -> None:
        """Plan steps again."""

    def step_engine(self, steps: int) -> None:
        """Do so many steps, and pause again."""

    def breakpoints(self) -> dict[int, str]:
        """Predicates and actions by number."""

    def add_breakpoint(self, predicate: str, action: str = "engine") -> int:
        """Pause the engine, or (`sequence`) the sequence, at events that meet a predicate: its number."""

    def remove_breakpoint(self, number: int) -> None:
        """Forget a breakpoint."""

    def pause_sequence(self, seq: int) -> None:
        """Pause one sequence; its KV is kept."""

    def resume_sequence(self, seq: int) -> None:
        """Let a paused sequence go on."""

    def abort_sequence(self, seq: int) -> None:
        """End the request that a sequence belongs to."""

    def set_priority(self, seq: int, priority: int) -> None:
        """Of the request that a sequence belongs to; lower is more urgent."""


class Source(Protocol):
    """Where views come from. All but `status`, `title` and `control` may read files: call them off the UI's thread;
    they may be called from several threads.

    Attributes:
        title: what was opened, for the header.
        control: None where the engine can't be steered (a journal alone).
    """

    title: str
    control: Control | None

    @property
    def status(self) -> SourceStatus:
        """How it does."""

    def start(self) -> None:
        """Begin to follow. Errors: InspectError: there is nothing to follow; in words."""

    def close(self) -> None:
        """Let go of it. May be called again."""

    def view(self, moment: Moment | None = None) -> View:
        """The engine at a moment; None: now.

        Raises:
            InspectError: there is nothing to show yet, or the journal is damaged there.
        """

    def kept(self, moment: Moment) -> Kept:
        """What is left of a moment's run: of what was written, the oldest may have been deleted to make room.

        Raises:
            InspectError: nothing is.
        """

    def story(self, seq: int, moment: Moment, now_t: int = 0) -> Story | None:
        """A sequence up to a moment, or, where nothing happens after it until `now_t`, up to that; None where it does
        not live then."""

    def verdict(self, seq: int, moment: Moment, now_t: int = 0) -> Judgement | None:
        """Why a sequence has taken as long as it has: as `story`, but it may take seconds for a long life.

        Raises:
            InspectError: the journal does not tell, or the source was closed.
        """

    def at_step(self, step: int, near: Moment | None = None) -> Moment:
        """The end of the frame in which a step was planned; the nearest where there is no such step.

        Args:
            step: its number.
            near: a moment of the run that is meant; None: the newest run.
        """

    def at_time(self, t: int, near: Moment | None = None) -> Moment:
        """The last moment at or before clock nanoseconds `t`, of `near`'s run; the first one where that is before the
        journal.
        """

    def move(self, moment: Moment, steps: int) -> Moment:
        """So many steps on, or back where negative; the journal's ends where that is beyond them."""

    def find(self, moment: Moment, predicate: Predicate | None, forward: bool) -> EventRow | None:
        """The next event after a moment, or the last one before it, that meets a predicate (None: any event)."""
