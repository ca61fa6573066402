"""The bottom line: the keys that apply now, as many as there is room for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from rich.text import Text

from .click_line import ClickLine


class Hint(NamedTuple):
    """A key, what it does, and the action of a click on it; "" for none."""

    key: str
    words: str
    action: str = ""


class FooterBar(ClickLine):
    """One line. Hints come in the order of their weight: those at the end are left out first."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"footer--key"}
    DEFAULT_CSS = """
    FooterBar { background: $surface; color: $text-muted; }
    FooterBar > .footer--key { color: $accent; text-style: bold; }
    """

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._hints: Sequence[Hint] = ()

    def show(self, hints: Sequence[Hint]) -> None:
        """Take the keys that apply."""
        if list(hints) != list(self._hints):
            self._hints = list(hints)
            self.refresh()

    def render(self) -> Text:
        """As many hints as there is room for."""
        line, key = self.begin(), self.get_component_rich_style("footer--key")
        for hint in self._hints:
            if line.cell_len + len(hint.key) + len(hint.words) + 3 > self.size.width:
                break
            action = f"screen.{hint.action}" if hint.action else ""
            self.put(line, " ")
            self.put(line, hint.key, key, action)
            self.put(line, f" {hint.words} ", "", action)
        return line
