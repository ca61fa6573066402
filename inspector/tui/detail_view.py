"""The Sequence detail view: block table, statuses, events of one sequence. Knows no source and no app."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical

from ...telemetry.events import SequenceSnapshot
from ..describe import plural
from ..detail_rows import (
    EVENT_FIELDS,
    BlockRow,
    StayRow,
    StoryEvent,
    block_rows_of,
    block_table_of,
    event_table,
    sequence_of,
    stay_rows,
    stay_table,
    story_events,
)
from ..export import Table
from ..filters import RowFilter
from ..units import duration
from ..verdict_rows import BlamedRow, blamed_rows, blamed_table
from ..view import Judgement, Moment, Story, View
from .columns import Column, Tone
from .detail_head import DetailHead
from .detail_verdict import DetailVerdict
from .live_table import LiveTable
from .messages import MomentChosen, SequenceChosen, StepChosen

WIDE = 110  # cells from which on all tables stand side by side
PANES = ("blocks", "states", "events", "blamed")
SHOWN_SHARERS = 6


def _sharers(row: BlockRow) -> str:
    more = len(row.sharers) - SHOWN_SHARERS
    return " ".join(map(str, row.sharers[:SHOWN_SHARERS])) + (f" +{more}" if more > 0 else "")


def _place_tone(row: BlockRow) -> Tone:
    return "note" if row.entry < 0 else "accent" if row.sharers else ""


def _status_tone(row: StayRow) -> Tone:
    tones: dict[str, Tone] = {"RUNNING": "good", "WAITING": "warn", "PAUSED": "accent"}
    return tones.get(row.status, "bad")


BLOCK_COLUMNS: list[Column[BlockRow]] = [
    Column("logical", lambda row: str(row.logical), 8, "right", key=lambda row: row.logical),
    Column("place", lambda row: row.residency, 6, tone=_place_tone),
    Column("physical", lambda row: str(row.place), 8, "right", _place_tone, lambda row: row.place),
    Column("computed", lambda row: f"{row.computed}/{row.size}", 8, "right", key=lambda row: row.computed),
    Column("refs", lambda row: str(row.references), 5, "right", _place_tone, lambda row: row.references),
    Column("filled by", lambda row: "-" if row.filled_by is None else str(row.filled_by), 9, "right",
           key=lambda row: row.filled_by),
    Column("shared with", _sharers, 11, grow=1),
    Column("hash", lambda row: row.hash or "-", 16, tone=lambda row: "dim"),
]  # fmt: skip
STAY_COLUMNS: list[Column[StayRow]] = [
    Column("status", lambda row: row.status, 8, tone=_status_tone),
    Column("reason", lambda row: row.reason, 16, grow=1),
    Column("since", lambda row: duration(row.since_ns), 7, "right"),
    Column("lasted", lambda row: duration(row.lasted_ns), 7, "right"),
    Column("step", lambda row: str(row.step), 7, "right"),
]
EVENT_COLUMNS: list[Column[StoryEvent]] = [
    Column("since", lambda row: duration(row.since_ns), 7, "right"),
    Column("step", lambda row: str(row.step), 7, "right"),
    Column("event", lambda row: row.words, 40, grow=1),
]


BLAMED_COLUMNS: list[Column[BlamedRow]] = [
    Column("spent", lambda row: duration(row.weight_ns), 7, "right", key=lambda row: row.weight_ns),
    Column("share", lambda row: f"{row.of_life:.0%}", 5, "right", key=lambda row: row.of_life),
    Column("on", lambda row: row.part, 20),
    Column("seq", lambda row: "-" if row.seq < 0 else str(row.seq), 6, "right", key=lambda row: row.seq),
    Column("request", lambda row: row.request or "-", 12),
    Column("what it did", lambda row: row.words, 20, grow=1),
]


class DetailView(Container):
    """One sequence."""

    DEFAULT_CSS = """
    DetailView { layout: vertical; background: $surface; }
    DetailView > #panes { layout: horizontal; height: 1fr; }
    DetailView #held { width: 1fr; }
    DetailView #blocks { height: 3fr; }
    DetailView #blamed { height: 2fr; }
    DetailView #story { width: 1fr; }
    DetailView.-wide #story { margin-left: 1; }
    DetailView #states { height: 2fr; }
    DetailView #events { height: 3fr; }
    DetailView.-narrow LiveTable { height: 1fr; }
    DetailView.-narrow.-blocks #story, DetailView.-narrow.-blocks #blamed { display: none; }
    DetailView.-narrow.-states #held, DetailView.-narrow.-states #events { display: none; }
    DetailView.-narrow.-events #held, DetailView.-narrow.-events #states { display: none; }
    DetailView.-narrow.-blamed #story, DetailView.-narrow.-blamed #blocks { display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("w", "next_pane", "Next table", show=False)]
    HELP: ClassVar[list[tuple[str, str]]] = [  # type: ignore[assignment]
        ("w", "next table"),
        ("enter", "go to the moment, or to who is to blame"),
        ("/", f"of its events: words, {', '.join(EVENT_FIELDS)}"),
    ]

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._head = DetailHead(id="head")
        self._blocks = LiveTable(BLOCK_COLUMNS, sort=0, caption="block table", empty="no blocks", id="blocks")
        self._states = LiveTable(STAY_COLUMNS, sortable=False, follow_end=True, caption="statuses", id="states")
        self._events = LiveTable(EVENT_COLUMNS, sortable=False, follow_end=True, caption="events", id="events")
        self._blamed = LiveTable(BLAMED_COLUMNS, sortable=False, caption="spent on", empty="nobody", id="blamed")
        self._said = DetailVerdict(id="verdict")
        self._verdict: Judgement | None = None
        self._pane = 0
        self._view: View | None = None
        self._seq: int | None = None
        self._request = ""
        self._story: Story | None = None
        self._filter: RowFilter[StoryEvent] = RowFilter(EVENT_FIELDS, lambda row: row.words)

    def compose(self) -> ComposeResult:
        """The lines above, and the tables."""
        yield self._head
        yield self._said
        with Container(id="panes"):
            with Vertical(id="held"):
                yield self._blocks
                yield self._blamed
            with Vertical(id="story"):
                yield self._states
                yield self._events

    # What is shown

    def choose(self, seq: int | None) -> None:
        """Show this sequence from now on; its story comes later."""
        if seq != self._seq:
            self._seq, self._request, self._story = seq, "", None
            self.show_verdict(None)
            if self._view is not None:
                self.show(self._view)

    def show(self, view: View) -> None:
        """Take a view: the facts and the block table."""
        self._view = view
        seq = None if self._seq is None else sequence_of(view.keyframe, self._seq)
        if seq is None:
            self._show_nothing(view)
            return
        self._request = seq.request
        self._head.show(view, seq, self._story)
        rows = block_rows_of(view, seq)
        self._blocks.caption = self._table_words(view, seq, rows)
        self._blocks.set_rows([row.logical for row in rows], rows)
        self._show_events()

    def show_story(self, view: View, story: Story | None) -> None:
        """Take a view, and the story of the sequence that is to be shown up to its moment."""
        if story is not None:
            self._seq = story.seq
        self._story = story
        self.show(view)

    def show_verdict(self, verdict: Judgement | None, words: str = "") -> None:
        """Take a verdict on the sequence that is shown; without one, words that say why there is none."""
        self._verdict = verdict
        rows = blamed_rows(verdict) if verdict else []
        self._said.show(verdict, words)
        self._blamed.caption = f"its time was spent on {plural(len(rows), 'culprit')}"
        self._blamed.set_rows([(row.part, row.request, row.seq, row.words) for row in rows], rows)

    def _show_nothing(self, view: View) -> None:
        self._story = None
        self.show_verdict(None)
        chosen = f"seq {self._seq} does not live at step {view.keyframe.step}"
        self._head.say("choose a sequence: enter in Sequences" if self._seq is None else chosen)
        self._blocks.caption = "block table"
        self._blocks.set_rows([], [])
        self._show_events()

    def _show_events(self) -> None:
        stays = stay_rows(self._story) if self._story else []
        every = story_events(self._story) if self._story else []
        events = self._filter.kept(every)
        self._states.caption = "1 status" if len(stays) == 1 else f"{len(stays)} statuses"
        found = f", {len(events)} shown: {self._filter.text}" if self._filter.text else ""
        self._events.caption = f"{plural(len(every), 'event')}{found}"
        self._states.set_rows(list(range(len(stays))), stays)
        self._events.set_rows([row.moment for row in events], events)

    def _table_words(self, view: View, seq: SequenceSnapshot, rows: Sequence[BlockRow]) -> str:
        size, shared = view.keyframe.started.block_size, sum(1 for row in rows if row.sharers)
        words = f"block table: {plural(len(rows), 'block')} of {plural(size, 'token')}"
        return words + (f", {shared} shared" if shared else "")

    # Contract with the app

    def apply_filter(self, text: str) -> str:
        """Show only events that meet a filter; "" shows all. What is wrong with it, in words, or ""."""
        error = self._filter.take(text)
        if not error:
            self._show_events()
        return error

    def exported(self) -> Table:
        """The table with the focus."""
        seq = -1 if self._seq is None else self._seq
        if self._pane == 0:
            return block_table_of(seq, self._blocks.rows)
        if self._pane == 1:
            return stay_table(seq, self._states.rows)
        return event_table(seq, self._events.rows) if self._pane == 2 else blamed_table(seq, self._blamed.rows)

    @property
    def selected_seq(self) -> int | None:
        """The sequence that is shown."""
        return self._seq

    @property
    def selected_id(self) -> str:
        """Its request's id."""
        return self._request

    # Keys and events

    @property
    def _tables(self) -> tuple[LiveTable[Any], ...]:
        return self._blocks, self._states, self._events, self._blamed

    def action_next_pane(self) -> None:
        """Put the focus on the next table; on a narrow screen, show it instead."""
        self._show_pane((self._pane + 1) % len(PANES))

    def on_resize(self, event: events.Resize) -> None:
        """All tables, or one at a time."""
        wide = event.size.width >= WIDE
        self.set_class(wide, "-wide")
        self.set_class(not wide, "-narrow")

    def on_mount(self) -> None:
        """Begin with the block table."""
        self._mark_pane()

    def on_show(self) -> None:
        """The table that was looked at last has the focus."""
        self._tables[self._pane].focus()

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """A click takes the focus to another table."""
        for index, table in enumerate(self._tables):
            if table is event.widget and index != self._pane:
                self._pane = index
                self._mark_pane()

    def on_live_table_chosen(self, event: LiveTable.Chosen) -> None:
        """Enter on a status or an event: its moment is to be shown; on a culprit: that sequence, while it lived."""
        event.stop()
        row = event.table.cursor_row
        if isinstance(row, StayRow):
            self.post_message(StepChosen(row.step))
        elif isinstance(row, BlamedRow):
            self._show_blamed(row)
        elif isinstance(event.key, Moment):
            self.post_message(MomentChosen(event.key))

    def _show_blamed(self, row: BlamedRow) -> None:
        if row.seq >= 0 and row.seq != self._seq:
            self.post_message(SequenceChosen(row.seq))
        if row.step >= 0 and (self._view is None or sequence_of(self._view.keyframe, row.seq) is None):
            self.post_message(StepChosen(row.step))

    def _show_pane(self, index: int) -> None:
        self._pane = index
        self._mark_pane()
        self._tables[index].focus()

    def _mark_pane(self) -> None:
        for index, name in enumerate(PANES):
            self.set_class(index == self._pane, f"-{name}")
