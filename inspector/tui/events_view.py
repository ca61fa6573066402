"""The Events view: the journal as it comes, filtered by the predicates of the core."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical

from ...errors import InvalidRequest
from ...telemetry.event_fields import RequestNames, tag_of
from ...telemetry.events import (
    EngineError,
    EngineStopped,
    JournalDropped,
    RequestFinished,
    RequestRefused,
    StatusChanged,
    SwapFinished,
)
from ...telemetry.predicate import Predicate, parse
from ..clock_words import iso
from ..describe import describe, sequences_of
from ..export import Table
from ..view import EventRow, Moment, View
from .columns import Column, Tone
from .live_table import LiveTable
from .messages import MomentChosen, SequenceChosen

NS = 1_000_000_000
EXPORTED = ("seconds", "step", "event", "sequences", "what", "time")
MAX_NAMES = 50_000  # sequences whose request is known, before those that have ended are forgotten
WIDE = 110  # characters from which on the events' tags are shown too
WARNINGS = frozenset({
    "sequence.preempted", "engine.paused", "breakpoint.hit", "step.retried", "callback.failed", "mark",
})  # fmt: skip
QUIET = frozenset({"step.planned", "step.finished", "keyframe", "blocks.cached"})


def tone_of(row: EventRow) -> Tone:
    """How much an event deserves attention."""
    event = row.event
    if isinstance(event, EngineError | JournalDropped | RequestRefused):
        return "bad"
    if isinstance(event, RequestFinished):
        return "bad" if event.finish_reason == "error" else "good"
    if isinstance(event, StatusChanged):
        return "bad" if event.new == "ERROR" else ""
    if isinstance(event, SwapFinished) and event.error:
        return "bad"
    if isinstance(event, EngineStopped):
        return "warn"
    tag = tag_of(event.__class__)
    return "warn" if tag in WARNINGS else "dim" if tag in QUIET else ""


class EventsView(Vertical):
    """The last events, oldest first; the cursor on the newest stays on the newest."""

    HELP: ClassVar[list[tuple[str, str]]] = [  # type: ignore[assignment]
        ("m", "go to moment"),
        ("enter", "sequence"),
        ("up down", "move the cursor; on the last event it follows. Times count from the engine's start"),
        ("m", "go to the moment just after the event; enter: the sequence that it names, or its moment without one"),
        ("/", "a predicate: on=preempted, on=blocks.allocated free<10, on=status to=PAUSED, seq=17, request=ID"),
    ]
    BINDINGS: ClassVar[list[BindingType]] = [Binding("m", "moment", "Go there")]

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._table: LiveTable[EventRow] = LiveTable(
            self._columns(False), sortable=False, follow_end=True, caption="events", empty="no event yet"
        )
        self._view: View | None = None
        self._predicate: Predicate | None = None
        self._names = RequestNames()
        self._learned = Moment(-1, 0, 0)  # the last event that `_names` has taken in

    def compose(self) -> ComposeResult:
        """The table alone."""
        yield self._table

    @property
    def predicate(self) -> Predicate | None:
        """What events are filtered by; None: all are shown."""
        return self._predicate

    def show(self, view: View) -> None:
        """Take a view."""
        self._view = view
        self._learn(view)
        shown = [row for row in view.events if self._passes(row)]
        total = len(view.events)
        if self._predicate is None:
            self._table.caption, self._table.empty = f"the last {total:,} events", "no event yet"
        else:
            self._table.caption = f"{len(shown):,} of the last {total:,} events: {self._predicate.text}"
            self._table.empty = f"none of the last {total:,} events; {{ and }} look for it in the whole journal"
        self._table.set_rows([row.moment for row in shown], shown)

    def apply_filter(self, text: str) -> str:
        """Show only events that a predicate holds for; what is wrong with it, or ""."""
        try:
            self._predicate = parse(text) if text.strip() else None
        except InvalidRequest as error:
            return str(error).removeprefix("predicate: ")
        if self._view is not None:
            self.show(self._view)
        return ""

    def exported(self) -> Table:
        """The events as they are shown."""
        if self._view is None:
            return Table("events", EXPORTED, [])
        started = self._view.keyframe.started
        rows = [
            ((row.t - started.t) / NS, row.step, tag_of(row.event.__class__),
             " ".join(map(str, sequences_of(row.event))), describe(row.event), iso(row.t, started.wall_offset_ns))
            for row in self._table.rows
        ]  # fmt: skip
        return Table("events", EXPORTED, rows)

    @property
    def selected_seq(self) -> int | None:
        """The first sequence that the event under the cursor names."""
        row = self._table.cursor_row
        return None if row is None else next(iter(sequences_of(row.event)), None)

    @property
    def selected_id(self) -> str:
        """The request that the event under the cursor is about, "" for none."""
        row = self._table.cursor_row
        if row is None:
            return ""
        request = getattr(row.event, "request", "")
        seq = self.selected_seq
        return request or ("" if seq is None else self._names.names.get(seq, ""))

    def action_moment(self) -> None:
        """Go to the moment of the event under the cursor."""
        if isinstance(self._table.cursor_key, Moment):
            self.post_message(MomentChosen(self._table.cursor_key))

    @on(LiveTable.Chosen)
    def _chosen(self, event: LiveTable.Chosen) -> None:
        event.stop()
        key: Hashable = event.key
        if self.selected_seq is not None:
            self.post_message(SequenceChosen(self.selected_seq))
        elif isinstance(key, Moment):
            self.post_message(MomentChosen(key))

    def on_resize(self, event: events.Resize) -> None:
        """The tag is what there is room for last."""
        self._table.set_columns(self._columns(event.size.width >= WIDE))

    def _columns(self, wide: bool) -> list[Column[EventRow]]:
        columns: list[Column[EventRow]] = [
            Column("seconds", self._time, 11, "right"),
            Column("step", lambda row: str(row.step), 7, "right"),
            Column("what happened", lambda row: describe(row.event), 50, tone=tone_of, grow=1),
        ]
        tag: Column[EventRow] = Column("event", lambda row: tag_of(row.event.__class__), 18, tone=lambda row: "dim")
        return [*columns, tag] if wide else columns

    def _learn(self, view: View) -> None:
        """Keep up with whose sequence is whose; of those whose end was never seen, not more than MAX_NAMES."""
        if len(self._names.names) > MAX_NAMES:
            self._names = RequestNames()
        self._names.names.update((seq.seq, seq.request) for seq in view.keyframe.sequences)
        for row in view.events:
            if row.moment > self._learned:
                self._learned = row.moment
                self._names.learn(row.event)

    def _passes(self, row: EventRow) -> bool:
        return self._predicate is None or self._predicate.matches(row.event, self._names.names)

    def _time(self, row: EventRow) -> str:
        """Seconds since the engine started."""
        start = self._view.keyframe.started.t if self._view else 0
        return f"{(row.t - start) / NS:.4f}"
