"""A line of texts, some of which are an action when they are clicked."""

from __future__ import annotations

from rich.style import Style
from rich.text import Text
from textual import events
from textual.widget import Widget


class ClickLine(Widget):
    """One line. Subclasses begin it with `begin` and put texts in with `put`."""

    DEFAULT_CSS = """
    ClickLine { height: 1; }
    """

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._targets: list[tuple[int, int, str]] = []

    def begin(self) -> Text:
        """An empty line without targets."""
        self._targets = []
        return Text(no_wrap=True, end="")

    def put(self, line: Text, text: str, style: Style | str = "", action: str = "") -> None:
        """Put a text at the end.

        Args:
            line: from `begin`.
            text: plain.
            style: of it.
            action: of a click on it, such as `screen.live`; "" for none.
        """
        begin = line.cell_len
        line.append(text, style)
        if action:
            self._targets.append((begin, line.cell_len, action))

    async def on_click(self, event: events.Click) -> None:
        """Do what stands there."""
        for begin, end, action in self._targets:
            if begin <= event.x < end:
                event.stop()
                await self.run_action(action)
                return
