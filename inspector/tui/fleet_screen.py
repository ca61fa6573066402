"""The replicas of a fleet, a row each: one is chosen to be looked at. Knows not how they are asked."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar, Protocol, cast

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Static

from ...errors import NanolensError
from ..fleet_rows import CELLS, Fleet, FleetRow, fleet_words, models
from ..sources.source import Source
from .columns import Column, Tone
from .footer_bar import FooterBar, Hint
from .live_table import LiveTable

if TYPE_CHECKING:
    from .app import NanoInspectApp

LOOK_S = 1.0  # between two looks, at least: each asks every replica


class FleetLike(Protocol):
    """A fleet that can be looked at; its methods but `open` may block."""

    url: str

    def look(self) -> Fleet:
        """How it does now. Errors: InspectError."""

    def open(self, replica: str) -> Source:
        """A replica's source, not started yet."""

    def close(self) -> None:
        """Let go of it."""


def _state_tone(row: FleetRow) -> Tone:
    tones: dict[str, Tone] = {"live": "good", "dead": "bad", "silent": "bad", "paused": "warn", "starting": "accent"}
    return tones.get(row.state, "dim")


_TEXTS = {name: text for name, _, text in CELLS}


def _hit_rate(row: FleetRow) -> float | None:
    return row.hit_tokens / row.queried_tokens if row.queried_tokens else None


COLUMNS: list[Column[FleetRow]] = [
    Column("replica", _TEXTS["replica"], 8, grow=1, most=24),
    Column("state", _TEXTS["state"], 8, tone=_state_tone),
    Column("queue", _TEXTS["queue"], 5, "right", key=lambda row: row.waiting),
    Column("running", _TEXTS["running"], 7, "right", key=lambda row: row.running),
    Column("paused", _TEXTS["paused"], 6, "right", key=lambda row: row.paused),
    Column("free", _TEXTS["free blocks"], 9, "right", key=lambda row: row.free_blocks, grow=1, most=15),
    Column("hit", _TEXTS["hit rate"], 4, "right", key=_hit_rate),
    Column("tok/s", _TEXTS["tokens/s"], 5, "right", key=lambda row: row.tokens_per_second),
    Column("preempt", _TEXTS["preemptions"], 7, "right", key=lambda row: row.preemptions),
    Column("skew", _TEXTS["skew"], 6, "right", key=lambda row: row.skew_ns),
    Column("sign", _TEXTS["last sign"], 5, "right", key=lambda row: row.sign_ns),
    Column("model", _TEXTS["model"], 12, grow=1),
]
WITHOUT_SKEW = [column for column in COLUMNS if column.name != "skew"]


class FleetScreen(Screen[None]):
    """A fleet. It is looked at for as long as it is on top.

    Args:
        fleet: what to look at; closed with the screen.
        interval: seconds between two looks.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("escape,o", "open_another", "Back"),
        Binding("r", "look", "Look again"),
    ]
    DEFAULT_CSS = """
    FleetScreen { layout: vertical; background: $surface; }
    FleetScreen #title { height: 1; padding: 0 1; color: $accent; text-style: bold; }
    FleetScreen #words { height: auto; padding: 0 1; color: $text-muted; margin-bottom: 1; }
    FleetScreen #trouble { height: auto; padding: 0 1; color: $error; display: none; }
    """

    def __init__(self, fleet: FleetLike, interval: float) -> None:
        super().__init__()
        self._fleet, self._interval = fleet, max(interval, LOOK_S)
        self._wake = asyncio.Event()
        self._title = Static(fleet.url, id="title", markup=False)
        self._words = Static("looking…", id="words", markup=False)
        self._trouble = Static("", id="trouble", markup=False)
        self._table: LiveTable[FleetRow] = LiveTable(WITHOUT_SKEW, empty="no replica runs")
        self._footer = FooterBar()

    def compose(self) -> ComposeResult:
        """What it is, what is wrong, the replicas, the keys."""
        yield self._title
        yield self._words
        yield self._trouble
        yield self._table
        yield self._footer

    def on_mount(self) -> None:
        """Begin to look."""
        self._footer.show(
            [Hint("q", "quit", "quit"), Hint("enter", "open"), Hint(", .", "sort by"), Hint("-", "reverse"),
             Hint("r", "look again", "look"), Hint("esc", "another", "open_another"), Hint("^p", "palette")]
        )  # fmt: skip
        self._table.focus()
        self.run_worker(self._watch(), group="watch")

    async def on_unmount(self) -> None:
        """Let go of the fleet."""
        await asyncio.to_thread(self._fleet.close)

    def on_screen_resume(self) -> None:
        """Back from a replica."""
        self._wake.set()

    @property
    def nano_app(self) -> NanoInspectApp:
        """The app, by its own class."""
        return cast("NanoInspectApp", self.app)

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
        served = models(fleet)
        self._title.update(f"{fleet.url} · {served}" if served else fleet.url)
        self._words.update(fleet_words(fleet))
        troubles = [f"STALE {fleet.trouble}"] if fleet.trouble else []
        troubles += [f"{row.replica}: {row.trouble}" for row in fleet.rows if row.trouble and row.state != "gone"]
        self._trouble.update("\n".join(troubles))
        self._trouble.display = bool(troubles)
        columns = COLUMNS if any(row.skew_ns is not None for row in fleet.rows) else WITHOUT_SKEW
        if columns != self._table.columns:
            self._table.set_columns(columns)
        self._table.set_rows([row.replica for row in fleet.rows], fleet.rows)

    @on(LiveTable.Chosen)
    def _row_chosen(self, message: LiveTable.Chosen) -> None:
        row = cast("FleetRow | None", message.table.cursor_row)
        if row is None:
            return
        if row.state == "gone":
            self.notify(f"replica {row.replica} is gone", severity="warning", markup=False)
            return
        self.nano_app.open_replica(self._fleet.open(row.replica))

    def action_look(self) -> None:
        """Look now."""
        self._wake.set()

    def action_open_another(self) -> None:
        """Back to what there is to choose."""
        self.nano_app.open_another()

    def action_quit(self) -> None:
        """End the program."""
        self.app.exit()
