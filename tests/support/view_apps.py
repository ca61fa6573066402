"""An app around one view of nano-inspect, which keeps what the view says to the app."""

from __future__ import annotations

from typing import Any

from textual.app import App, ComposeResult
from textual.widget import Widget

from nanolens.inspector.tui.messages import MomentChosen, SequenceChosen, StepChosen
from nanolens.inspector.view import View


class ViewApp(App[None]):
    """Shows one widget, with the first view and the focus in it.

    Attributes:
        widget: the view's widget.
        said: what it chose, in order.
    """

    def __init__(self, widget: Any, view: View) -> None:
        super().__init__()
        self.widget, self._first = widget, view
        self.said: list[int | tuple[int, ...]] = []

    def compose(self) -> ComposeResult:
        """The widget alone."""
        yield self.widget

    def on_mount(self) -> None:
        """Show the first view."""
        self.widget.show(self._first)
        inner: list[Widget] = [each for each in self.widget.query("*") if each.can_focus]
        self.set_focus(self.widget if self.widget.can_focus else inner[0])

    def on_sequence_chosen(self, message: SequenceChosen) -> None:
        """A sequence was chosen."""
        self.said.append(message.seq)

    def on_step_chosen(self, message: StepChosen) -> None:
        """A step was chosen."""
        self.said.append(message.step)

    def on_moment_chosen(self, message: MomentChosen) -> None:
        """A moment was chosen."""
        self.said.append(tuple(message.moment))


def screen_text(app: App[Any]) -> str:
    """What the terminal shows, a line each."""
    lines = app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in lines)
