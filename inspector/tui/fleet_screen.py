"""The screen of a fleet: how it does, and its replicas, of which one is chosen. Knows not how they are asked."""

from __future__ import annotations

import asyncio
import time
from typing import ClassVar, Protocol

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Static

from ...errors import NanolensError
from ..clock_words import iso
from ..export import Shown
from ..fleet_rows import Fleet, fleet_words, models
from ..sources.source import Source
from .fleet_view import FleetView
from .footer_bar import FooterBar, Hint
from .habits import HabitScreen
from .help_screen import HABITS, Keys
from .live_table import LiveTable

LOOK_S = 1.0  # between two looks, at least: each asks every replica
TROUBLES = 4  # that are told above the table


class FleetLike(Protocol):
    """A fleet that can be looked at; its methods but `open` may block."""

    url: str

    def look(self) -> Fleet:
        """How it does now. Errors: InspectError."""

    def open(self, replica: str) -> Source:
        """A replica's source, not started yet."""

    def close(self) -> None:
        """Let go of it."""


class FleetScreen(HabitScreen):
    """A fleet. It is looked at for as long as it is on top.

    Args:
        fleet: what to look at; closed with the screen.
        interval: seconds between two looks.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back"),
        Binding("r", "look", "Look again"),
    ]
    KEYS: ClassVar[tuple[tuple[str, Keys], ...]] = (HABITS,)
    DEFAULT_CSS = """
    FleetScreen { layout: vertical; background: $surface; }
    FleetScreen #title { height: 1; padding: 0 1; color: $accent; text-style: bold; }
    FleetScreen #words { height: auto; max-height: 3; padding: 0 1; color: $text-muted; margin-bottom: 1; }
    FleetScreen #trouble { height: auto; max-height: 8; padding: 0 1; color: $error; display: none; }
    """

    def __init__(self, fleet: FleetLike, interval: float) -> None:
        super().__init__()
        self._fleet, self._interval = fleet, max(interval, LOOK_S)
        self._wake = asyncio.Event()
        self._looked_at = ""  # when, ISO 8601; "" before the first look
        self._title = Static(fleet.url, id="title", markup=False)
        self._words = Static("looking…", id="words", markup=False)
        self._trouble = Static("", id="trouble", markup=False)
        self._view = FleetView()
        self._footer = FooterBar()

    def compose(self) -> ComposeResult:
        """What it is, what is wrong, the replicas, prompt, footer."""
        yield self._title
        yield self._words
        yield self._trouble
        yield self._view
        yield self._prompt
        yield self._footer

    def on_mount(self) -> None:
        """Begin to look."""
        self._paint()
        self._view.focus()
        self.run_worker(self._watch(), group="watch")

    async def on_unmount(self) -> None:
        """Let go of the fleet."""
        await asyncio.to_thread(self._fleet.close)

    def on_screen_resume(self) -> None:
        """Back from a replica."""
        self._wake.set()

    @property
    def active(self) -> FleetView:
        """The replicas."""
        return self._view

    @property
    def active_name(self) -> str:
        """Of what is shown."""
        return "fleet"

    def shown_at(self) -> Shown | None:
        """When it was looked at; None before that."""
        return Shown("", None, self._looked_at, self._fleet.url) if self._looked_at else None

    async def _watch(self) -> None:
        has_looked = False
        while True:
            if self.is_current or not has_looked:
                try:
                    fleet = await asyncio.to_thread(self._fleet.look)
                except NanolensError as error:
                    self.nano_app.target_failed(str(error))
                    return
                has_looked = True
                if not self.is_attached:
                    return
                self._show(fleet)
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), self._interval)
            except TimeoutError:
                continue

    def _show(self, fleet: Fleet) -> None:
        if not fleet.trouble or not self._looked_at:
            self._looked_at = iso(time.time_ns(), 0)
        served = models(fleet)
        self._title.update(f"{fleet.url} · {served}" if served else fleet.url)
        self._words.update(fleet_words(fleet))
        troubles = [f"STALE {fleet.trouble}"] if fleet.trouble else []
        troubles += [f"{row.replica}: {row.trouble}" for row in fleet.rows if row.trouble and row.state != "gone"]
        more = [f"and {len(troubles) - TROUBLES} more"] if len(troubles) > TROUBLES else []
        self._trouble.update("\n".join(troubles[:TROUBLES] + more))
        self._trouble.display = bool(troubles)
        self._view.show(fleet)

    def _paint(self) -> None:
        """The keys that apply."""
        found = [Hint("q", "quit", "quit"), Hint("?", "help", "help")]
        if self.filtered:
            found.append(Hint("esc", "all", "back"))
        elif self.nano_app.has_choices:
            found.append(Hint("esc", "another", "back"))
        found += [
            Hint("/", "filter", "ask_filter"), Hint("enter", "open"), Hint(", .", "sort"), Hint("-", "reverse"),
            Hint("E", "export", "export"), Hint("y", "copy id", "copy"), Hint("r", "look again", "look"),
            Hint("^p", "palette"),
        ]  # fmt: skip
        self._footer.show(found)

    @on(LiveTable.Chosen)
    def _row_chosen(self) -> None:
        row = self._view.cursor_row
        if row is None:
            return
        if row.state == "gone":
            self.notify(f"replica {row.replica} is gone", severity="warning", markup=False)
            return
        self.nano_app.open_replica(self._fleet.open(row.replica))

    def action_look(self) -> None:
        """Look now."""
        self._wake.set()

    def action_back(self) -> None:
        """From a filter to all replicas, from them to what else there is to choose."""
        if self.filtered:
            self._apply_filter("")
        else:
            self.action_open_another()
