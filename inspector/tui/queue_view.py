"""The Queue view: who waits and why, in order, and who holds what the first one needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, fields
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Static

from ..export import Table, in_seconds
from ..filters import Field, RowFilter
from ..queue_rows import WORDS, Holder, QueueRow, head_wait, holders, queue_rows
from ..units import duration
from ..view import View
from .columns import ID_CELLS, Column, Tone
from .live_table import LiveTable
from .messages import SequenceChosen

FIELDS: dict[str, Field[QueueRow]] = {
    "seq": Field("number", lambda row: row.seq),
    "request": Field("text", lambda row: row.request),
    "reason": Field("text", lambda row: row.reason, tuple(filter(None, WORDS))),
    "waits": Field("duration", lambda row: row.waited_ns),
    "priority": Field("number", lambda row: row.priority),
    "compute": Field("number", lambda row: row.to_compute),
    "needs": Field("number", lambda row: row.needed),
    "blocks": Field("number", lambda row: row.blocks),
    "slots": Field("number", lambda row: row.slots),
    "residency": Field("text", lambda row: row.residency, ("none", "device", "host", "disk")),
    "preemptions": Field("number", lambda row: row.num_preemptions),
}


def _tone_of_reason(row: QueueRow) -> Tone:
    if row.reason == "no_blocks":
        return "bad"
    return "dim" if row.reason == "head_of_line" else "warn"


QUEUE_COLUMNS: list[Column[QueueRow]] = [
    Column("#", lambda row: str(row.place), 4, "right", key=lambda row: row.place),
    Column("seq", lambda row: str(row.seq), 6, "right", key=lambda row: row.seq),
    Column("request", lambda row: row.request, 12, grow=1, most=ID_CELLS),
    Column("wait reason", lambda row: row.reason or "not planned yet", 15, tone=_tone_of_reason),
    Column("waits", lambda row: duration(row.waited_ns), 6, "right", key=lambda row: row.waited_ns),
    Column("prio", lambda row: str(row.priority), 4, "right", key=lambda row: row.priority),
    Column("to compute", lambda row: f"{row.to_compute:,}", 10, "right", key=lambda row: row.to_compute),
    Column("needs", lambda row: f"{'' if row.blocks else '≤'}{row.needed:,}", 6, "right", key=lambda row: row.needed),
    Column("blocks", lambda row: f"{row.blocks:,}", 6, "right", key=lambda row: row.blocks),
    Column("slots", lambda row: f"{row.slots:,}", 5, "right", key=lambda row: row.slots),
    Column("residency", lambda row: row.residency, 9),
    Column("preemptions", lambda row: str(row.num_preemptions), 11, "right", key=lambda row: row.num_preemptions),
]
HOLDER_COLUMNS: list[Column[Holder]] = [
    Column("seq", lambda row: str(row.seq), 6, "right", key=lambda row: row.seq),
    Column("request", lambda row: row.request, 12, grow=1, most=ID_CELLS),
    Column("state", lambda row: row.status, 8),
    Column("phase", lambda row: row.phase, 7),
    Column("prio", lambda row: str(row.priority), 4, "right", key=lambda row: row.priority),
    Column("blocks", lambda row: f"{row.blocks:,}", 7, "right", key=lambda row: row.blocks),
    Column("not shared", lambda row: f"{row.own:,}", 10, "right", key=lambda row: row.own),
    Column("of pool", lambda row: f"{row.part:.1%}", 7, "right", key=lambda row: row.part),
    Column("age", lambda row: duration(row.age_ns), 6, "right", key=lambda row: row.age_ns),
]


class QueueView(Vertical):
    """The waiting queue above, those who hold blocks below."""

    HELP: ClassVar[list[tuple[str, str]]] = [  # type: ignore[assignment]
        ("enter", "detail"),
        ("w", "who holds"),
        ("up down", "move the cursor; w changes between the queue and those who hold blocks"),
        (", . -", "sort by another column, reverse; the queue's own order is that of #"),
        ("needs", "free blocks that it takes to run; ≤ where the prefix cache may have some of them"),
        ("not shared", "of a holder's blocks, those that become free when it gives them up"),
        ("/", "reason:no_blocks needs>10 waits>5s priority:0 residency:host, or words of the request"),
    ]
    BINDINGS: ClassVar[list[BindingType]] = [Binding("w", "other_table", "Holders/queue")]
    DEFAULT_CSS = """
    QueueView > .queue--head { height: auto; max-height: 4; background: $panel; }
    QueueView > #queue { height: 3fr; }
    QueueView > #holders { height: 2fr; min-height: 4; }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._queue: LiveTable[QueueRow] = LiveTable(QUEUE_COLUMNS, empty="nothing waits", id="queue")
        self._holders: LiveTable[Holder] = LiveTable(
            HOLDER_COLUMNS, caption="who holds blocks", empty="no block is held", id="holders"
        )
        self._view: View | None = None
        self._rows: Sequence[QueueRow] = []
        self._filter: RowFilter[QueueRow] = RowFilter(FIELDS, lambda row: row.request)

    def compose(self) -> ComposeResult:
        """What the queue waits for, the queue, the holders."""
        yield Static("", classes="queue--head", markup=False)
        yield self._queue
        yield self._holders

    def show(self, view: View) -> None:
        """Take a view."""
        self._view, self._rows = view, queue_rows(view)
        held_by = holders(view)
        self._fill()
        self._holders.set_rows([row.seq for row in held_by], held_by)
        head = head_wait(view, self._rows, held_by)
        words = head.words if head else "nothing waits"
        count = f"{len(self._rows):,} waiting, {view.keyframe.started.config.get('policy') or 'fcfs'}"
        sure = "" if view.is_order_sure else "; the order is as last seen: places of some are not in the journal"
        only = f"; only {self._filter.text}" if self._filter.text else ""
        self.query_one(".queue--head", Static).update(f"{words}\n{count}{sure}{only}")

    def apply_filter(self, text: str) -> str:
        """Show only what meets a filter; what is wrong with it, or ""."""
        error = self._filter.take(text)
        if not error and self._view is not None:
            self.show(self._view)
        return error

    def exported(self) -> Table:
        """The queue as it is shown."""
        names = [field.name for field in fields(QueueRow)]
        return in_seconds("queue", names, [astuple(row) for row in self._queue.rows])

    @property
    def selected_seq(self) -> int | None:
        """The sequence under the cursor of the table that has the keys."""
        row = self._row()
        return None if row is None else row.seq

    @property
    def selected_id(self) -> str:
        """Its request."""
        row = self._row()
        return "" if row is None else row.request

    def action_other_table(self) -> None:
        """Give the keys to the other table."""
        (self._queue if self._holders.has_focus else self._holders).focus()

    @on(LiveTable.Chosen)
    def _chosen(self, event: LiveTable.Chosen) -> None:
        event.stop()
        if isinstance(event.key, int):
            self.post_message(SequenceChosen(event.key))

    def _row(self) -> QueueRow | Holder | None:
        return self._holders.cursor_row if self._holders.has_focus else self._queue.cursor_row

    def _fill(self) -> None:
        shown = self._filter.kept(self._rows)
        self._queue.empty = "nothing that waits meets the filter" if self._rows else "nothing waits"
        self._queue.set_rows([row.seq for row in shown], shown)
