"""The Steps view: the last few hundred steps, where the time of each went, what it computed and for whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Static

from ..export import Table
from ..figures import sparkline
from ..filters import Field, RowFilter
from ..step_rows import StepLine, bar, members, step_lines, step_table
from ..view import StepRow, View
from .columns import Column, Tone
from .live_table import LiveTable
from .messages import SequenceChosen, StepChosen
from .rank_columns import rank_columns, rank_words

MS = 1e6
BAR = 14  # characters of the longest step's bar
GLYPHS = {"plan": "▒", "launch": "▓", "device": "█", "read": "░", "gap": "·"}
DETAIL_LINES = 4
FIELDS: dict[str, Field[StepLine]] = {
    "step": Field("number", lambda line: line.step),
    "kind": Field("text", lambda line: line.kind, ("decode", "prefill", "mixed", "moves")),
    "state": Field("text", lambda line: line.state, ("done", "in flight", "failed")),
    "interval": Field("duration", lambda line: line.interval_ns),
    "plan": Field("duration", lambda line: line.plan_ns),
    "launch": Field("duration", lambda line: line.launch_ns),
    "device": Field("duration", lambda line: line.device_ns),
    "read": Field("duration", lambda line: line.read_ns),
    "gap": Field("duration", lambda line: line.gap_ns),
    "tokens": Field("number", lambda line: line.tokens),
    "decodes": Field("number", lambda line: line.decodes),
    "prefill": Field("number", lambda line: line.prefill_tokens),
    "sampled": Field("number", lambda line: line.sampled),
    "wasted": Field("number", lambda line: line.wasted),
    "skew": Field("duration", lambda line: line.skew_ns),
    "straggler": Field("number", lambda line: line.straggler if line.skew_ns else -1),
    "preemptions": Field("number", lambda line: line.preemptions),
    "running": Field("number", lambda line: line.running),
    "waiting": Field("number", lambda line: line.waiting),
    "free": Field("number", lambda line: line.free),
}


def _ms(ns: int) -> str:
    value = ns / MS
    return "-" if not ns else f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def _tone_of_kind(line: StepLine) -> Tone:
    return {"failed": "bad", "in flight": "note"}.get(line.state, "")  # type: ignore[return-value]


def _duration(name: str, value: str, width: int) -> Column[StepLine]:
    return Column(name, lambda line: _ms(getattr(line, value)), width, "right", key=lambda line: getattr(line, value))


def _number(name: str, value: str, width: int, tone: Tone = "") -> Column[StepLine]:
    def tone_of(line: StepLine) -> Tone:
        return tone if getattr(line, value) else ""

    return Column(
        name, lambda line: f"{getattr(line, value):,}", width, "right", tone_of, lambda line: getattr(line, value)
    )


class StepsView(Vertical):
    """The steps, oldest first; the cursor on the newest stays on the newest."""

    HELP: ClassVar[list[tuple[str, str]]] = [  # type: ignore[assignment]
        ("enter", "go to step"),
        ("f", "its first seq"),
        ("up down", "move the cursor: below the table, who is in the step"),
        (", . -", "sort by another column, reverse"),
        ("split", "plan, launch, device, reading of the tokens, and the gap when nobody worked, to one scale"),
        ("/", "interval>5ms gap>1ms kind:prefill preemptions>0 state:flight"),
    ]
    BINDINGS: ClassVar[list[BindingType]] = [Binding("f", "first_sequence", "First sequence", show=False)]
    DEFAULT_CSS = f"""
    StepsView > Static {{ text-wrap: nowrap; text-overflow: ellipsis; }}
    StepsView > .steps--sparks {{ height: 2; background: $surface; }}
    StepsView > .steps--detail {{ height: {DETAIL_LINES}; background: $panel; }}
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._longest = 0
        self._has_ranks = False  # whether the columns of the ranks are shown
        self._table: LiveTable[StepLine] = LiveTable(
            self._columns(), follow_end=True, empty="no step yet",
            caption="split, in ms: " + "  ".join(f"{glyph} {part}" for part, glyph in GLYPHS.items()),
        )  # fmt: skip
        self._view: View | None = None
        self._lines: Sequence[StepLine] = []
        self._filter: RowFilter[StepLine] = RowFilter(FIELDS, lambda line: f"{line.kind} {line.state}")

    def compose(self) -> ComposeResult:
        """Two sparklines, the steps, the one under the cursor."""
        yield Static("", classes="steps--sparks", markup=False)
        yield self._table
        yield Static("", classes="steps--detail", markup=False)

    def show(self, view: View) -> None:
        """Take a view."""
        self._view, self._lines = view, step_lines(view)
        self._longest = max((line.total_ns for line in self._lines), default=0)
        shown = self._filter.kept(self._lines)
        self._show_ranks()
        self._table.empty = "no step meets the filter" if self._lines else "no step yet"
        self._table.set_rows([line.step for line in shown], shown)
        self._draw_sparks()
        self._draw_detail()

    def apply_filter(self, text: str) -> str:
        """Show only what meets a filter; what is wrong with it, or ""."""
        error = self._filter.take(text)
        if not error and self._view is not None:
            self.show(self._view)
        return error

    def exported(self) -> Table:
        """The steps as they are shown; when they were planned, in seconds since the engine's start and as a date."""
        return step_table(self._table.rows, self._view)

    @property
    def selected_seq(self) -> int | None:
        """The first sequence that the step under the cursor is about, where that is known."""
        line = self._table.cursor_row
        row = self._row(line)
        if row is None:
            return None
        return next((seq for seq, _, _ in row.planned.chunks), next(iter(row.planned.idle), None))

    @property
    def selected_id(self) -> str:
        """The number of the step under the cursor."""
        line = self._table.cursor_row
        return "" if line is None else str(line.step)

    def action_first_sequence(self) -> None:
        """Show the first sequence of the step."""
        if self.selected_seq is not None:
            self.post_message(SequenceChosen(self.selected_seq))

    @on(LiveTable.Chosen)
    def _chosen(self, event: LiveTable.Chosen) -> None:
        event.stop()
        if isinstance(event.key, int):
            self.post_message(StepChosen(event.key))

    @on(LiveTable.CursorMoved)
    def _cursor_moved(self) -> None:
        self._draw_detail()

    def on_resize(self) -> None:
        """A wider screen shows more of the history."""
        self._draw_sparks()

    def _row(self, line: StepLine | None) -> StepRow | None:
        if line is None or self._view is None:
            return None
        return next((row for row in reversed(self._view.steps) if row.planned.step == line.step), None)

    def _show_ranks(self) -> None:
        """Add the columns of the ranks once a step tells of several."""
        shown = any(line.straggler >= 0 for line in self._lines)
        if shown == self._has_ranks:
            return
        self._has_ranks = shown
        self._table.set_columns(self._columns())

    def _draw_sparks(self) -> None:
        done = [line for line in self._lines if line.state == "done"]
        width = max(0, self.size.width - 34)
        text = Text()
        intervals = [line.interval_ns / MS for line in done]
        text.append("interval ").append(sparkline(intervals[-width:]), "bold")
        if done:
            mean = sum(intervals) / len(intervals)
            text.append(f" mean {mean:.2f}, max {max(intervals):.2f} ms")
        text.append("\ntokens   ").append(sparkline([line.tokens for line in done][-width:]), "bold")
        if done:
            text.append(f" mean {sum(line.tokens for line in done) / len(done):,.1f} a step")
        self.query_one(".steps--sparks", Static).update(text)

    def _draw_detail(self) -> None:
        line, view = self._table.cursor_row, self._view
        row = self._row(line)
        text = Text()
        if line is not None and view is not None and row is not None:
            extra = f", CUDA graph, {line.padding} rows of padding" if line.graph else ""
            found = f", {line.hit_tokens} of {line.queried_tokens} prompt tokens cached" if line.queried_tokens else ""
            text.append(f"step {line.step}", "bold")
            text.append(f" {line.state}: {line.tokens:,} tokens, {line.sampled:,} sampled{found}{extra}")
            text.append(f"{rank_words(row)}\n")
            text.append("\n".join(members(row, view)))
        self.query_one(".steps--detail", Static).update(text)

    def _columns(self) -> list[Column[StepLine]]:
        return [
            Column("step", lambda line: str(line.step), 7, "right", key=lambda line: line.step),
            Column("kind", lambda line: line.kind, 7, tone=_tone_of_kind),
            _duration("interval", "interval_ns", 8),
            _duration("plan", "plan_ns", 6),
            _duration("launch", "launch_ns", 6),
            _duration("device", "device_ns", 6),
            _duration("gap", "gap_ns", 6),
            *(rank_columns() if self._has_ranks else ()),
            Column("split", self._split, BAR, key=lambda line: line.total_ns),
            _number("tokens", "tokens", 6),
            _number("decodes", "decodes", 7),
            _number("prefill", "prefill_tokens", 7),
            _number("sampled", "sampled", 7),
            _number("wasted", "wasted", 6, "warn"),
            _number("preempted", "preemptions", 9, "bad"),
            _number("running", "running", 7),
            _number("waiting", "waiting", 7),
            _number("free", "free", 7),
            _duration("read", "read_ns", 6),
        ]

    def _split(self, line: StepLine) -> str:
        return "".join(GLYPHS[part] * length for part, length in bar(line, self._longest, BAR))
