"""Steering an engine from the screen: each act is asked for, done off the UI's thread, and told. Knows no views."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import NanolensError
from ..describe import plural
from ..sources.source import Control, Source
from ..view import View
from .dialogs import ConfirmScreen

if TYPE_CHECKING:
    from .look_screen import LookScreen

AGREED_STEPS = 100  # at once, that can be agreed to once and for all
SEEN_S = 1.0  # in which the screen sees the pause after steps that it asked for
IDLE_ENGINE = "It plans no more steps until it is continued; clients wait."


@dataclass(frozen=True, slots=True)
class Act:
    """Something that changes a running engine.

    Attributes:
        title: of the dialog that asks.
        question: what is about to happen, in words.
        do: does it; may block.
        told: afterwards; "" for nothing.
        always: acts with the same words here may be agreed to once and for all, by a key with these words; "" for none.
        shows_now: whether the screen goes live afterwards, to show what it did.
    """

    title: str
    question: str
    do: Callable[[], object]
    told: str = ""
    always: str = ""
    shows_now: bool = False


class Steering:
    """Asks, does and tells. Its methods are coroutines for a worker of the screen.

    Args:
        screen: that shows the dialogs.
        source: whose engine it is.
        done: called after an act, with whether the screen is to go live.
    """

    def __init__(self, screen: LookScreen, source: Source, done: Callable[[bool], None]) -> None:
        self._screen, self._source, self._done = screen, source, done
        self._agreed: set[str] = set()
        self._stepping = asyncio.Lock()
        self._stepped = -SEEN_S  # when steps were done that were asked for here; monotonic seconds

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
        """The engine: so many steps, after those that were asked for before."""
        async with self._stepping:
            await self._step(steps)

    async def _step(self, steps: int) -> None:
        found = await self._found()
        while found is not None and not found[1].keyframe.engine_paused:
            if time.monotonic() - self._stepped >= SEEN_S:
                break
            await asyncio.sleep(SEEN_S / 50)
            found = await self._found()
        if found is None:
            return
        control, now = found
        count = plural(steps, "step")
        if now.keyframe.engine_paused:
            words = f"Let the paused engine do {count} from step {now.keyframe.step:,} on?"
        else:
            words = f"Let the engine do {count} from about step {now.keyframe.step:,} on, and pause? {IDLE_ENGINE}"
        always = ""
        if now.keyframe.engine_paused and steps <= AGREED_STEPS:
            always = f"yes, do not ask again up to {AGREED_STEPS} steps"
        if await self.perform(Act("Step engine", words, lambda: control.step_engine(steps), "", always, True)):
            self._stepped = time.monotonic()

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
        if act.always not in self._agreed:
            dialog = ConfirmScreen(act.title, f"{act.question}\n\n{self._source.title}", act.always)
            answer = await self._screen.app.push_screen_wait(dialog)
            if answer == "no":
                return False
            if answer == "always":
                self._agreed.add(act.always)
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
        """What steers the engine of the run on the screen; None, and words there, where nothing does."""
        control, shown, status = self._source.control, self._screen.shown, self._screen.shown_status
        if control is None:
            words = f"{self._source.title} is a journal, which can only be looked at; attach to its server to steer it"
        elif shown is None:
            words = "there is nothing to steer yet"
        elif status.state == "replaced":
            words = status.message
        else:
            return control.of_run(shown.keyframe.started.run_id)
        self._screen.notify(words, severity="warning", markup=False)
        return None

    async def _found(self, seq: int | None = -1) -> tuple[Control, View] | None:
        """The control, and the engine now; None, and words on the screen, where there is none, or another run's."""
        control, shown = self.control(), self._screen.shown
        if control is None or shown is None:
            return None
        if seq is None:
            self._screen.notify("choose a sequence first", severity="warning")
            return None
        try:
            now = await asyncio.to_thread(self._source.view)
        except NanolensError as error:
            self._screen.notify(str(error), severity="error", markup=False)
            return None
        own, other = shown.keyframe.started.run_id, now.keyframe.started.run_id
        if own != other:
            words = f"run {own} on the screen is over, the server runs {other} now: press g to see it"
            self._screen.notify(words, severity="warning", markup=False)
            return None
        return control, now

    @staticmethod
    def _named(now: View, seq: int) -> tuple[str, str]:
        """A sequence in words, and its status now; "" where it does not live any more."""
        for each in now.keyframe.sequences:
            if each.seq == seq:
                return f"seq {seq} of request {each.request} ({each.status})", each.status
        return f"seq {seq} (which has ended)", ""
