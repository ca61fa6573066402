"""The breakpoints of an engine: list, add, remove. Asks a control on other threads; knows no views."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from ...errors import InvalidRequest, NanolensError
from ...telemetry.predicate import parse
from ..sources.source import Control
from .dialogs import DIALOG_CSS, Dialog
from .prompt_line import PromptLine
from .steering import Act, Steering

EXAMPLES = "on=preempted, free<10, on=status to=PAUSED seq=17"
KEYS = "a pause engine at …  A pause sequence at …  d delete  esc close"


class BreakpointsScreen(Dialog[None]):
    """A list that is read again after each change."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "ask('engine')", "Add"),
        Binding("A", "ask('sequence')", "Add for the sequence"),
        Binding("d,delete", "remove", "Delete"),
        Binding("escape,q,b", "close", "Close"),
    ]
    DEFAULT_CSS = (
        DIALOG_CSS.format(name="BreakpointsScreen")
        + """
    BreakpointsScreen > Vertical { width: 84; }
    BreakpointsScreen OptionList { height: auto; max-height: 14; border: none; background: $surface; padding: 0; }
    BreakpointsScreen OptionList:focus { border: none; background-tint: $foreground 0%; }
    BreakpointsScreen PromptLine { margin-top: 1; }
    """
    )

    def __init__(self, control: Control, steering: Steering) -> None:
        super().__init__()
        self._control, self._steering = control, steering
        self._numbers: list[int] = []

    def compose(self) -> ComposeResult:
        """The list, and a line to add one."""
        with Vertical() as box:
            box.border_title = "Breakpoints"
            yield OptionList(markup=False)
            yield Static("looking…", id="state", markup=False)
            yield PromptLine()
            yield Static(KEYS, classes="dialog--keys", markup=False)

    def on_mount(self) -> None:
        """Read them."""
        self.run_worker(self._read())

    async def _read(self) -> None:
        state, listed = self.query_one("#state", Static), self.query_one(OptionList)
        try:
            found = await asyncio.to_thread(self._control.breakpoints)
        except NanolensError as error:
            state.update(str(error))
            return
        self._numbers = list(found)
        listed.clear_options()
        listed.add_options(Option(f"{number:>3}  {text}") for number, text in found.items())
        if found:
            listed.highlighted = len(found) - 1
        listed.display = bool(found)
        state.update("" if found else "None. The engine pauses before the step after an event that meets one.")
        state.display = not found
        if found and not self.query_one(PromptLine).is_asking:
            listed.focus()

    def action_ask(self, action: str) -> None:
        """Ask for a predicate."""
        what = "pause the engine at" if action == "engine" else "pause the sequence at"
        self.query_one(PromptLine).ask(what, "", EXAMPLES, lambda text: self._add(text, action))

    def _add(self, text: str, action: str) -> str:
        try:
            predicate = parse(text)
        except InvalidRequest as error:
            return str(error).removeprefix("predicate: ")
        whom = "engine" if action == "engine" else "sequence that it names"
        question = f"Pause the {whom} at each event that meets\n{predicate.text}?"
        self._change(Act("Add breakpoint", question, lambda: self._control.add_breakpoint(predicate.text, action)))
        return ""

    def action_remove(self) -> None:
        """Remove the one under the cursor."""
        at = self.query_one(OptionList).highlighted
        if at is not None and at < len(self._numbers):
            number = self._numbers[at]
            question = f"Remove breakpoint {number}?"
            self._change(Act("Remove breakpoint", question, lambda: self._control.remove_breakpoint(number)))

    def _change(self, act: Act) -> None:
        async def change() -> None:
            await self._steering.perform(act)
            await self._read()

        self.run_worker(change())

    def action_close(self) -> None:
        """Back to the screen below."""
        self.end(None)
