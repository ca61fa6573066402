"""What the keys do, in one screen. Knows no views but by the keys that they name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.console import Group
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Static

from .dialogs import Dialog

Keys = Sequence[tuple[str, str]]

HABITS: tuple[str, Keys] = ("Habits", (
    ("E", "export what is shown: csv, json, svg"),
    ("y", "copy the id under the cursor"),
    ("o", "open another server or journal"),
    ("ctrl+p", "all commands, and themes"),
    ("ctrl+z", "suspend to the shell; fg comes back"),
    ("?, q", "this help, quit"),
))  # fmt: skip
SECTIONS: tuple[tuple[str, Keys], ...] = (
    ("Views", (
        ("1 to 6, tab", "sequences, detail, blocks, queue, steps, events"),
        ("enter, esc", "drill in, drill out"),
        ("/", "filter this view"),
        (", . -", "sort by the column left or right; reverse"),
    )),
    ("Time", (
        ("space, g", "freeze the view while the engine runs; go live"),
        ("[ ]", "a step back, a step on; 10[ goes ten"),
        ("{ }", "to the event before, to the next event, of the kind that e sets"),
        ("e", "the kind of event: on=preempted, on=status to=PAUSED, seq=17"),
        ("t", "go to step 120, +10, -30s, 14:03:22, first, last"),
        ("time bar", "click or drag"),
    )),
    ("Debugger, with a server; each asks first", (
        ("P", "pause the engine, let it go on"),
        ("s", "let it do one step; 10s does ten"),
        ("b", "breakpoints"),
        ("p x i", "the sequence under the cursor: pause or resume, abort, priority"),
    )),
    HABITS,
)  # fmt: skip


class HelpScreen(Dialog[None]):
    """All keys.

    Args:
        view: name of what is shown.
        own: its keys, which come first.
        sections: of the screen's.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,enter", "close", "Close")]
    DEFAULT_CSS = """
    HelpScreen { align: center middle; background: $background 60%; }
    HelpScreen > VerticalScroll {
        width: 78; max-width: 98%; height: auto; max-height: 94%;
        background: $surface; border: round $accent; border-title-color: $accent; padding: 1 2;
    }
    HelpScreen > VerticalScroll { scrollbar-size-vertical: 1; }
    HelpScreen Static { height: auto; }
    """

    def __init__(self, view: str, own: Keys, sections: Sequence[tuple[str, Keys]] = SECTIONS) -> None:
        super().__init__()
        self._sections = ((view, own), *sections) if own else sections

    def compose(self) -> ComposeResult:
        """One table a section."""
        with VerticalScroll() as box:
            box.border_title = "Keys"
            box.border_subtitle = "esc closes"
            yield Static(Group(*(part for title, keys in self._sections for part in _section(title, keys))))

    def action_close(self) -> None:
        """Back to the screen below."""
        self.end(None)


def _section(title: str, keys: Keys) -> list[Text | Table]:
    table = Table.grid(padding=(0, 2))
    table.add_column(width=12, style="bold")
    table.add_column(ratio=1)
    for key, words in keys:
        table.add_row(Text(key), Text(words))
    return [Text(title, style="underline"), table, Text("")]
