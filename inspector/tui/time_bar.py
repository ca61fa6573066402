"""The time bar: where in the journal the screen stands. A click or a drag asks for another moment."""

from __future__ import annotations

from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual import events
from textual.message import Message
from textual.widget import Widget

from ..clock_words import clock
from ..units import duration
from ..view import View

GONE = "no longer on disk: g live, [ ] oldest kept"


class TimeBar(Widget):
    """One line: state, the bar from the journal's beginning to its end, the step and the kind of event for { }."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"time--live", "time--frozen", "time--past", "time--rest", "time--words"}
    DEFAULT_CSS = """
    TimeBar { height: 1; background: $panel; color: $foreground; }
    TimeBar > .time--live { color: $success; text-style: bold; }
    TimeBar > .time--frozen { color: $primary; text-style: bold; }
    TimeBar > .time--past { color: $primary; }
    TimeBar > .time--rest { color: $foreground 30%; }
    TimeBar > .time--words { color: $text-muted; }
    """

    class Jumped(Message):
        """A time was pointed at.

        Attributes:
            t: clock nanoseconds.
        """

        def __init__(self, t: int) -> None:
            super().__init__()
            self.t = t

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._view: View | None = None
        self._frozen = self._gone = False
        self._kind = ""
        self._count = ""
        self._bar = (0, 0)  # first cell and number of cells
        self._dragging = False

    def show(self, view: View | None, frozen: bool, kind: str, count: str, gone: bool = False) -> None:
        """Take what there is.

        Args:
            view: None while there is nothing yet.
            frozen: whether the moment stays.
            kind: predicate of the events that { and } go to.
            count: what was typed of a count.
            gone: whether the moment has been deleted meanwhile.
        """
        self._view, self._frozen, self._kind, self._count, self._gone = view, frozen, kind, count, gone
        self.refresh()

    def render(self) -> Text:
        """The line."""
        line, view, width = Text(no_wrap=True), self._view, self.size.width
        if view is None:
            return line
        t, first, last = view.keyframe.t, view.first, view.last
        behind = max(0, last.t - t)
        follows = "end" if view.status.state in ("ended", "dead") else "live"
        state = f" ∥ {'-' + duration(behind) if behind else 'now':<6} " if self._frozen else f" ▶ {follows:<7}"
        line.append(state, self._style("time--frozen" if self._frozen else "time--live"))
        ends = self._ends(view) if width >= 100 else ("", "")
        right = self._right(view, width)
        line.append(ends[0], self._style("time--words"))
        room = width - line.cell_len - len(ends[1]) - len(right) - 2
        self._bar = (line.cell_len, max(0, room))
        if room > 0:
            share = (t - first.t) / (last.t - first.t) if last.t > first.t else 1.0
            at = min(room - 1, max(0, round(share * (room - 1))))
            line.append("━" * at, self._style("time--past"))
            line.append("●", self._style("time--frozen" if self._frozen else "time--live"))
            line.append("─" * (room - at - 1), self._style("time--rest"))
        return line.append(f"{ends[1]} {right} ", self._style("time--words"))

    def _ends(self, view: View) -> tuple[str, str]:
        offset = view.keyframe.started.wall_offset_ns
        return f"{clock(view.first.t, offset)} ", f" {clock(view.last.t, offset)} "

    def _right(self, view: View, width: int) -> str:
        if self._count:
            return f"count {self._count}"
        if self._gone:
            return GONE
        step = f"step {view.keyframe.step:,}"
        if view.keyframe.step < view.last.step:
            step += f" of {view.last.step:,}"
        return f"{step}  {{ }} {self._kind or 'any event'}" if width >= 100 else step

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(name)

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """A time is pointed at, perhaps the first of a drag."""
        if self._point(event.x):
            self._dragging = True
            self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Another time, in a drag."""
        if self._dragging:
            self._point(event.x)

    def on_mouse_up(self, event: events.MouseUp) -> None:
        """The end of a drag."""
        self._dragging = False
        self.release_mouse()

    def _point(self, x: int) -> bool:
        begin, size = self._bar
        if self._view is None or size < 2 or (not self._dragging and not begin <= x < begin + size):
            return False
        share = min(1.0, max(0.0, (x - begin) / (size - 1)))
        first, last = self._view.first.t, self._view.last.t
        self.post_message(self.Jumped(first + round(share * (last - first))))
        return True
