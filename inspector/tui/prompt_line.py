"""A line to type into: a filter, a place in time, a priority. Knows not what for."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widget import Widget
from textual.widgets import Input, Static

Take = Callable[[str], str]


class PromptLine(Vertical):
    """Hidden until it asks; what is wrong stands below the line.

    Attributes:
        is_asking: whether it is shown.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "give_up", "Cancel", show=False, priority=True)]
    DEFAULT_CSS = """
    PromptLine { height: auto; display: none; background: $boost; }
    PromptLine.-asking { display: block; }
    PromptLine > Horizontal { height: 1; }
    PromptLine .prompt--label { width: auto; color: $accent; text-style: bold; padding: 0 1; }
    PromptLine Input { width: 1fr; height: 1; border: none; padding: 0; background: $boost; }
    PromptLine Input:focus { border: none; }
    PromptLine > .prompt--error { height: auto; max-height: 10; color: $error; padding: 0 1; }
    """

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._take: Take = lambda text: ""
        self._change: Take | None = None
        self._was = ""
        self._focused: Widget | None = None  # before the question
        self.is_asking = False

    def compose(self) -> ComposeResult:
        """Label, input, what is wrong."""
        with Horizontal():
            yield Static("", classes="prompt--label", markup=False)
            yield Input(select_on_focus=False)
        yield Static("", classes="prompt--error", markup=False)

    def ask(self, label: str, text: str, hint: str, take: Take, change: Take | None = None) -> None:
        """Ask for a line.

        Args:
            label: what for.
            text: to begin with.
            hint: shown while there is nothing.
            take: gets the line on enter; what it answers is wrong with it, and "" ends the question.
            change: gets the line whenever it changes, and the first text again where that is wrong, or the question
                is given up.
        """
        if not self.is_asking:
            self._focused = self.screen.focused
        self._take, self._change, self._was, self.is_asking = take, change, text, True
        self.add_class("-asking")
        self.query_one(".prompt--label", Static).update(label)
        field = self.query_one(Input)
        field.placeholder = hint
        with field.prevent(Input.Changed):
            field.value = text
        field.cursor_position = len(text)
        self._say("")
        field.focus()

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        event.stop()
        if self.is_asking:
            error = self._change(event.value) if self._change else ""
            if error and self._change:
                self._change(self._was)  # not what the line was on its way here
            self._say(error)

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if self.is_asking:
            error = self._take(event.value)
            self._say(error)
            if not error:
                self._end()

    def action_give_up(self) -> None:
        """End the question as if it had not been asked."""
        if self._change:
            self._change(self._was)
        self._end()

    def _say(self, error: str) -> None:
        shown = self.query_one(".prompt--error", Static)
        shown.update(error)
        shown.display = bool(error)

    def _end(self) -> None:
        self.is_asking = False
        self.remove_class("-asking")
        if self.query_one(Input).has_focus:
            back = self._focused
            self.screen.set_focus(back if back is not None and back.is_attached and back.focusable else None)
