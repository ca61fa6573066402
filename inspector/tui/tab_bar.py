"""The views by name, with their keys; and the filter of the one that is shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text

from .click_line import ClickLine
from .columns import fitted


class TabBar(ClickLine):
    """One line. A click on a name is the action `screen.show_view(NAME)`."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"tab--key", "tab--active", "tab--filter"}
    DEFAULT_CSS = """
    TabBar { background: $panel; color: $text-muted; }
    TabBar > .tab--key { color: $accent; }
    TabBar > .tab--active { background: $primary; color: $background; text-style: bold; }
    TabBar > .tab--filter { color: $warning; }
    """

    def __init__(self, names: Sequence[tuple[str, str]], id: str | None = None) -> None:
        """Take (name of the view, title) in the order of the keys."""
        super().__init__(id=id)
        self._names = names
        self._active = ""
        self._note = ""

    def show(self, active: str, note: str) -> None:
        """Take the name of the view that is shown, and what stands at the right."""
        if (active, note) != (self._active, self._note):
            self._active, self._note = active, note
            self.refresh()

    def render(self) -> Text:
        """The names, then the note."""
        line = self.begin()
        for number, (name, title) in enumerate(self._names, 1):
            action = f"screen.show_view({name!r})"
            if name == self._active:
                self.put(line, f" {number} {title} ", self.get_component_rich_style("tab--active"), action)
            else:
                self.put(line, f" {number}", self.get_component_rich_style("tab--key"), action)
                self.put(line, f" {title} ", "", action)
        room = self.size.width - line.cell_len - 2
        if self._note and room > 8:
            note = fitted(self._note, min(room, len(self._note)))
            line.append(" " * (room - len(note) + 1))
            line.append(note, self.get_component_rich_style("tab--filter"))
        return line
