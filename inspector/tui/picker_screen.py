"""What there is to look at on this machine: one is chosen. Knows not how it is found and opened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Static

from ...errors import NanolensError
from .columns import Column, Tone
from .footer_bar import FooterBar, Hint
from .live_table import LiveTable

NONE_FOUND = (
    "No server and no journal was found on this machine.\n\n"
    "nano-inspect http://HOST:PORT   attaches to a server\n"
    "nano-inspect DIRECTORY          opens a journal\n"
    "nano-inspect --demo             starts a small engine under load"
)
LOOK_S = 2.0


@dataclass(frozen=True, slots=True)
class Choice:
    """Something that can be opened.

    Attributes:
        target: as the command line takes it: a URL, or a directory.
        run: of a journal that holds several; None: the newest.
        kind: server or journal.
        state: live, ended, dead.
        model: that it serves or served.
        note: what else helps to choose.
    """

    target: str
    run: str | None
    kind: str
    state: str
    model: str
    note: str


def _short(target: str) -> str:
    """A path below the home directory by `~`."""
    home = f"{Path.home()}/"
    return f"~/{target[len(home) :]}" if len(home) > 2 and target.startswith(home) else target


def _tone(choice: Choice) -> Tone:
    return {"live": "good", "dead": "bad"}.get(choice.state, "dim")  # type: ignore[return-value]


COLUMNS: list[Column[Choice]] = [
    Column("target", lambda choice: _short(choice.target), 21, grow=3),
    Column("kind", lambda choice: choice.kind, 7),
    Column("state", lambda choice: choice.state, 5, tone=_tone),
    Column("model", lambda choice: choice.model, 12, grow=1),
    Column("", lambda choice: choice.note, 29, tone=lambda choice: "dim", grow=1),
]


class PickerScreen(Screen[None]):
    """Servers and journals; the list is made again every few seconds.

    Args:
        find: lists them; may block.
        choose: gets the one that was chosen.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,escape", "quit", "Quit"),
        Binding("r", "find", "Look again"),
    ]
    DEFAULT_CSS = """
    PickerScreen { layout: vertical; background: $surface; }
    PickerScreen #title { height: 3; padding: 1; background: $surface; color: $accent; text-style: bold; }
    PickerScreen #none { height: 1fr; content-align: center middle; color: $text-muted; display: none; }
    """

    def __init__(self, find: Callable[[], Sequence[Choice]], choose: Callable[[Choice], None]) -> None:
        super().__init__()
        self._find, self._choose = find, choose

    def compose(self) -> ComposeResult:
        """Title, list, keys."""
        yield Static("nano-inspect: what to look at?", id="title", markup=False)
        yield Static(NONE_FOUND, id="none", markup=False)
        yield LiveTable(COLUMNS, empty="looking…")
        yield FooterBar()

    def on_mount(self) -> None:
        """Look for them, and again every few seconds."""
        self.query_one(FooterBar).show(
            [Hint("q", "quit", "quit"), Hint("enter", "open"), Hint("r", "look again", "find")]
        )
        self.query_one(LiveTable).focus()
        self.action_find()
        self.set_interval(LOOK_S, self.action_find)

    def action_find(self) -> None:
        """Look for them."""
        if self.is_current:
            self.run_worker(self._look(), exclusive=True)

    async def _look(self) -> None:
        try:
            found = await asyncio.to_thread(self._find)
        except NanolensError as error:
            self.notify(str(error), severity="error", markup=False)
            return
        table: LiveTable[Choice] = self.query_one(LiveTable)
        table.set_rows([(choice.target, choice.run) for choice in found], list(found))
        table.display = bool(found)
        self.query_one("#none").display = not found

    @on(LiveTable.Chosen)
    def _row_chosen(self, message: LiveTable.Chosen) -> None:
        table: LiveTable[Choice] = message.table
        if table.cursor_row is not None:
            self._choose(table.cursor_row)

    def action_quit(self) -> None:
        """End the program."""
        self.app.exit()
