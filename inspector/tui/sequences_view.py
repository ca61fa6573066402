"""The Sequences view: each live sequence a row, sortable and filterable. Knows no source and no app."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

from ..describe import plural
from ..export import Table
from ..filters import RowFilter
from ..sequence_rows import FIELDS, STATES, SequenceRow, sequence_rows, sequence_table
from ..units import duration
from ..view import View
from .columns import ID_CELLS, Column, Tone
from .live_table import LiveTable
from .messages import SequenceChosen

STATE_TONES: dict[str, Tone] = {"RUNNING": "good", "WAITING": "warn", "PAUSED": "accent"}


def _state_tone(row: SequenceRow) -> Tone:
    return STATE_TONES.get(row.state, "bad")


def _reason_tone(row: SequenceRow) -> Tone:
    return "warn" if row.state == "WAITING" else "dim"


def _place_tone(row: SequenceRow) -> Tone:
    return "note" if row.residency in ("host", "disk") else "dim" if row.residency == "none" else ""


COLUMNS: list[Column[SequenceRow]] = [
    Column("id", lambda row: str(row.seq), 6, "right", key=lambda row: row.seq),
    Column("request", lambda row: row.request, 14, grow=1, most=ID_CELLS),
    Column("state", lambda row: row.state, 8, tone=_state_tone),
    Column("phase", lambda row: row.phase, 7),
    Column("wait reason", lambda row: row.reason, 15, tone=_reason_tone),
    Column("age", lambda row: duration(row.age_ns), 6, "right", key=lambda row: row.age_ns),
    Column("prio", lambda row: str(row.priority), 5, "right", key=lambda row: row.priority),
    Column("prompt", lambda row: str(row.prompt), 7, "right", key=lambda row: row.prompt),
    Column("cached", lambda row: str(row.cached), 7, "right", key=lambda row: row.cached),
    Column("computed", lambda row: str(row.computed), 9, "right", key=lambda row: row.computed),
    Column("output", lambda row: str(row.output), 7, "right", key=lambda row: row.output),
    Column("blocks", lambda row: str(row.blocks), 7, "right", key=lambda row: row.blocks),
    Column("residency", lambda row: row.residency, 9, tone=_place_tone),
    Column(
        "preempt", lambda row: str(row.preemptions), 8, "right",
        lambda row: "warn" if row.preemptions else "dim", lambda row: row.preemptions,
    ),
    Column("TTFT", lambda row: duration(row.ttft_ns), 6, "right", key=lambda row: row.ttft_ns),
    Column("ITL", lambda row: duration(row.itl_ns), 6, "right", key=lambda row: row.itl_ns),
]  # fmt: skip


class SequencesView(LiveTable[SequenceRow]):
    """All live sequences of a view."""

    HELP: ClassVar[list[tuple[str, str]]] = [  # type: ignore[assignment]
        ("enter", "open"),
        (", .", "sort column"),
        ("-", "reverse"),
        ("/", f"state:waiting blocks>10 reason:no_blocks age>2s !itl>50ms, words of request ids; {', '.join(FIELDS)}"),
    ]

    def __init__(self, id: str | None = None) -> None:
        super().__init__(COLUMNS, sort=0, caption=" ", empty="no live sequences", id=id)
        self._view: View | None = None
        self._filter: RowFilter[SequenceRow] = RowFilter(FIELDS, lambda row: row.request)

    def show(self, view: View) -> None:
        """Take a view; rows change in place."""
        self._view = view
        every = sequence_rows(view)
        rows = self._filter.kept(every)
        self.caption = self._caption_of(every, len(rows))
        self.empty = f"none of {plural(len(every), 'sequence')} meets the filter" if every else "no live sequences"
        self.set_rows([row.seq for row in rows], rows)

    def apply_filter(self, text: str) -> str:
        """Show only rows that meet a filter; "" shows all. What is wrong with it, in words, or ""."""
        error = self._filter.take(text)
        if not error and self._view is not None:
            self.show(self._view)
        return error

    def exported(self) -> Table:
        """The rows as shown."""
        return sequence_table(self.rows)

    @property
    def selected_seq(self) -> int | None:
        """The sequence under the cursor."""
        row = self.cursor_row
        return None if row is None else row.seq

    @property
    def selected_id(self) -> str:
        """Its request's id."""
        row = self.cursor_row
        return "" if row is None else row.request

    def on_live_table_chosen(self, event: LiveTable.Chosen) -> None:
        """Enter, or a second click."""
        event.stop()
        if isinstance(event.key, int):
            self.post_message(SequenceChosen(event.key))

    def _caption_of(self, rows: list[SequenceRow], shown: int) -> str:
        counts = Counter(row.state for row in rows)
        states = ", ".join(f"{counts[state]} {state.lower()}" for state in STATES if counts[state])
        words = plural(len(rows), "live sequence") + (f": {states}" if states else "")
        return f"{words} · {shown} shown: {self._filter.text}" if self._filter.text else words
