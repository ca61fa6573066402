"""The verdict on a sequence above its tables: the first sentence, and a bar of what its time was spent on."""

from __future__ import annotations

from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual.widget import Widget

from ..detail_rows import shares_of
from ..units import duration, share
from ..verdict_rows import part_words, top_parts
from ..view import Judgement
from .detail_head import safe

LINES = 4
GLYPHS = "█▓▒░·"  # of the parts that took most, and of all others, so that the bar can be read without colours
_KINDS = ("first", "second", "third", "fourth", "others")


class DetailVerdict(Widget):
    """Two lines of words, the bar, and what it means."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {*(f"verdict--{kind}" for kind in _KINDS), "verdict--dim"}
    DEFAULT_CSS = f"""
    DetailVerdict {{
        height: {LINES};
        text-overflow: ellipsis;
        & > .verdict--first {{ color: $error; }}
        & > .verdict--second {{ color: $warning; }}
        & > .verdict--third {{ color: $accent; }}
        & > .verdict--fourth {{ color: $primary; }}
        & > .verdict--others, & > .verdict--dim {{ color: $text-muted; }}
    }}
    """

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._words = ""
        self._verdict: Judgement | None = None

    def show(self, verdict: Judgement | None, words: str = "") -> None:
        """Show a verdict; without one, these words."""
        if (verdict, words) != (self._verdict, self._words):
            self._verdict, self._words = verdict, words
            self.refresh()

    def render(self) -> Text:
        """All lines."""
        if self._verdict is None:
            return Text(self._words, self._style("dim"))
        width = self.size.width
        return Text("\n").join([*_folded(safe(self._verdict.headline), width), self._bar(width), self._legend()])

    def _bar(self, width: int) -> Text:
        label = "spent on  "
        parts = top_parts(self._verdict, len(GLYPHS) - 1) if self._verdict else []
        text = Text(label, self._style("dim"))
        for index, count in enumerate(shares_of([ns for _, ns in parts], width - len(label))):
            text.append(GLYPHS[index] * count, self._style(_KINDS[index]))
        return text

    def _legend(self) -> Text:
        parts = top_parts(self._verdict, len(GLYPHS) - 1) if self._verdict else []
        whole, text = sum(ns for _, ns in parts), Text(" " * 10, no_wrap=True, overflow="ellipsis")
        for index, (part, ns) in enumerate(parts):
            text.append(GLYPHS[index], self._style(_KINDS[index]))
            text.append(f" {part_words(part)} {duration(ns)} {share(ns, whole)}  ")
        return text

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"verdict--{name}", default=Style())


def _folded(words: str, width: int) -> list[Text]:
    """Two lines of a sentence; what does not fit is left out."""
    lines = ["", ""]
    at = 0
    for word in words.split():
        if lines[at] and len(lines[at]) + 1 + len(word) > width:
            if at:
                lines[1] = lines[1][: width - 1] + "…"
                break
            at = 1
        lines[at] += (" " if lines[at] else "") + word
    return [Text(line) for line in lines]
