"""The replicas of a fleet, a row each, sortable and filterable. Knows not how they are asked."""

from __future__ import annotations

from typing import ClassVar

from ..describe import plural
from ..export import Table
from ..filters import RowFilter
from ..fleet_rows import CELLS, FIELDS, Fleet, FleetRow, fleet_table
from .columns import Column, Tone
from .live_table import LiveTable


def _state_tone(row: FleetRow) -> Tone:
    tones: dict[str, Tone] = {"live": "good", "dead": "bad", "silent": "bad", "paused": "warn", "starting": "accent"}
    return tones.get(row.state, "dim")


_TEXTS = {name: text for name, _, text in CELLS}
COLUMNS: list[Column[FleetRow]] = [
    Column("replica", _TEXTS["replica"], 8, grow=1, most=24),
    Column("state", _TEXTS["state"], 8, tone=_state_tone),
    Column("queue", _TEXTS["queue"], 5, "right", key=lambda row: row.waiting),
    Column("running", _TEXTS["running"], 7, "right", key=lambda row: row.running),
    Column("paused", _TEXTS["paused"], 6, "right", key=lambda row: row.paused),
    Column("free", _TEXTS["free blocks"], 9, "right", key=lambda row: row.free_blocks, grow=1, most=15),
    Column("hit", _TEXTS["hit rate"], 4, "right", key=lambda row: row.hit_rate),
    Column("tok/s", _TEXTS["tokens/s"], 5, "right", key=lambda row: row.tokens_per_second),
    Column("preempt", _TEXTS["preemptions"], 7, "right", key=lambda row: row.preemptions),
    Column("skew", _TEXTS["skew"], 6, "right", key=lambda row: row.skew_ns),
    Column("sign", _TEXTS["last sign"], 5, "right", key=lambda row: row.sign_ns),
    Column("waits", _TEXTS["longest wait"], 6, "right", key=lambda row: row.queue_age_ns),
    Column("model", _TEXTS["model"], 12, grow=1, most=24),
    Column("run", _TEXTS["run"], 23),
]
WITHOUT_SKEW = [column for column in COLUMNS if column.name != "skew"]


class FleetView(LiveTable[FleetRow]):
    """The replicas, in the order of the front until they are sorted."""

    HELP: ClassVar[list[tuple[str, str]]] = [  # type: ignore[assignment]
        ("enter, esc", "open the replica; from it back here"),
        (", . -", "sort by the column left or right; reverse"),
        ("/", f"waiting>0 hit_rate<50 state:live waits>2s, words of replica ids; {', '.join(FIELDS)}"),
        ("esc", "all replicas; without a filter, choose another server or journal"),
        ("r", "look again now, not after the interval"),
        ("state", "paused: plans no steps; silent: no sign for 5 s; dead: its engine is gone; gone: not in the fleet"),
        ("hit", "tokens found in the prefix cache, of those looked up since its run began"),
        ("tok/s", "tokens sampled and kept, over the last 5 s"),
        ("skew", "how much longer the slowest rank of a step computed than the fastest, on average"),
        ("sign, waits", "since it last answered; how long the sequence that waits longest has waited"),
    ]

    def __init__(self, id: str | None = None) -> None:
        super().__init__(WITHOUT_SKEW, empty="no replica runs", id=id)
        self._fleet: Fleet | None = None
        self._filter: RowFilter[FleetRow] = RowFilter(FIELDS, lambda row: row.replica)

    def show(self, fleet: Fleet) -> None:
        """Take how they do; rows change in place."""
        self._fleet = fleet
        rows, count = self._filter.kept(fleet.rows), plural(len(fleet.rows), "replica")
        self.caption = f"{count} · {len(rows)} shown: {self._filter.text}" if self._filter.text else ""
        self.empty = f"none of {count} meets the filter" if fleet.rows else "no replica runs"
        columns = COLUMNS if any(row.skew_ns is not None for row in fleet.rows) else WITHOUT_SKEW
        if columns != self.columns:
            self.set_columns(columns)
        self.set_rows([row.replica for row in rows], rows)

    def apply_filter(self, text: str) -> str:
        """Show only replicas that meet a filter; "" shows all. What is wrong with it, in words, or ""."""
        error = self._filter.take(text)
        if not error and self._fleet is not None:
            self.show(self._fleet)
        return error

    def exported(self) -> Table:
        """The replicas as they are shown."""
        return fleet_table(self.rows)

    @property
    def selected_id(self) -> str:
        """Of the replica under the cursor."""
        row = self.cursor_row
        return "" if row is None else row.replica
