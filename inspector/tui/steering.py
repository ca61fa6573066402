"""Steering an engine from the screen: each act is asked for, done off the UI's thread, and told. Knows no views."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import NanolensError
from ..describe import plural
from ..sources.source import Control, Source
from ..view import View
from .dialogs import ConfirmScreen

if TYPE_CHECKING:
    from textual.screen import Screen

IDLE_ENGINE = "It plans no more steps until it is continued; clients wait."


@dataclass(frozen=True, slots=True)
class Act:
    """Something that changes a running engine.

    Attributes:
        title: of the dialog that asks.
        question: what is about to happen, in words.
        do: does it; may block.
        told: afterwards; "" for nothing.
        kind: acts of one kind may be agreed to once and for all; "" for none.
        shows_now: whether the screen goes live afterwards, to show what it did.
    """

    title: str
    question: str
    do: Callable[[], object]
    told: str = ""
    kind: str = ""
    shows_now: bool = False


class Steering:
    """Asks, does and tells. Its methods are coroutines for a worker of the screen.

    Args:
        screen: that shows the dialogs.
        source: whose engine it is.
        done: called after an act, with whether the screen is to go live.
    """

    def __init__(self, screen: Screen[None], source: Source, done: Callable[[bool], None]) -> None:
        self._screen, self._source, self._done = screen, source, done
        self._agreed: set[str] = set()

    async def pause_or_continue(self) -> None:
        """The engine: pause it, or let it go on."""
        found = await self._found()
        if found is None:
            return
        control, now = found
        if now.keyframe.engine_paused:
            words = f"The engine is paused ({now.keyframe.engine_paused}). Let it go on?"
            act = Act("Continue engine", words, control.continue_engine, "the engine goes on", shows_now=True)
        else:
            words = f"Pause the engine at step {now.keyframe.step:,}? {IDLE_ENGINE}"
            act = Act("Pause engine", words, control.pause_engine, "the engine is paused", shows_now=True)
        await self.perform(act)

    async def step(self, steps: int) -> None:
        """The engine: so many steps."""
        found = await self._found()
        if found is None:
            return
        control, now = found
        count = plural(steps, "step")
        if now.keyframe.engine_paused:
            words = f"Let the paused engine do {count} from step {now.keyframe.step:,} on?"
        else:
            words = f"Let the engine do {count} from about step {now.keyframe.step:,} on, and pause? {IDLE_ENGINE}"
        kind = "step" if now.keyframe.engine_paused else ""
        await self.perform(Act("Step engine", words, lambda: control.step_engine(steps), "", kind, True))

    async def pause_or_resume(self, seq: int | None) -> None:
        """A sequence: pause it, or let it go on."""
        found = await self._found(seq)
        if found is None or seq is None:
            return
        control, now = found
        name, status = self._named(now, seq)
        if status == "PAUSED":
            words = f"Resume {name}?"
            act = Act("Resume sequence", words, lambda: control.resume_sequence(seq), f"seq {seq} resumed")
        else:
            words = f"Pause {name}? It gives up its slot and keeps its blocks; its client waits."
            act = Act("Pause sequence", words, lambda: control.pause_sequence(seq), f"seq {seq} paused")
        await self.perform(act)

    async def abort(self, seq: int | None) -> None:
        """A sequence: end it, with its request."""
        found = await self._found(seq)
        if found is not None and seq is not None:
            control, now = found
            words = f"Abort {self._named(now, seq)[0]}? Its whole request ends, and its client is told."
            await self.perform(Act("Abort sequence", words, lambda: control.abort_sequence(seq), f"seq {seq} aborted"))

    async def set_priority(self, seq: int, priority: int) -> None:
        """A sequence: its priority."""
        found = await self._found(seq)
        if found is not None:
            control, now = found
            words = f"Give {self._named(now, seq)[0]} priority {priority}? Lower is more urgent."
            told = f"seq {seq} has priority {priority}"
            await self.perform(Act("Set priority", words, lambda: control.set_priority(seq, priority), told))

    async def perform(self, act: Act) -> bool:
        """Ask, do and tell.

        Returns:
            Whether it was done.
        """
        if act.kind not in self._agreed or not act.kind:
            dialog = ConfirmScreen(act.title, f"{act.question}\n\n{self._source.title}", bool(act.kind))
            answer = await self._screen.app.push_screen_wait(dialog)
            if answer == "no":
                return False
            if answer == "always":
                self._agreed.add(act.kind)
        try:
            await asyncio.to_thread(act.do)
        except NanolensError as error:
            self._screen.notify(str(error), title=act.title, severity="error", markup=False)
            return False
        if act.told:
            self._screen.notify(act.told, markup=False)
        self._done(act.shows_now)
        return True

    def control(self) -> Control | None:
        """What steers the engine; None, and words on the screen, where nothing does."""
        if self._source.control is None:
            words = f"{self._source.title} is a journal, which can only be looked at; attach to its server to steer it"
            self._screen.notify(words, severity="warning", markup=False)
        return self._source.control

    async def _found(self, seq: int | None = -1) -> tuple[Control, View] | None:
        """The control, and the engine now; None, and words on the screen, where there is none."""
        control = self.control()
        if control is None:
            return None
        if seq is None:
            self._screen.notify("choose a sequence first", severity="warning")
            return None
        try:
            return control, await asyncio.to_thread(self._source.view)
        except NanolensError as error:
            self._screen.notify(str(error), severity="error", markup=False)
            return None

    @staticmethod
    def _named(now: View, seq: int) -> tuple[str, str]:
        """A sequence in words, and its status now; "" where it does not live any more."""
        for each in now.keyframe.sequences:
            if each.seq == seq:
                return f"seq {seq} of request {each.request} ({each.status})", each.status
        return f"seq {seq} (which has ended)", ""
