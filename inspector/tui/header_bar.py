"""The top of the screen: what is looked at, how it does, and its figures with their short histories."""

from __future__ import annotations

import time
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual.widget import Widget

from ..clock_words import clock
from ..figures import Figure, figures
from ..units import duration
from ..view import SourceStatus, View
from .columns import fitted

WIDE = 21  # cells of a figure from which on it has its full name


class HeaderBar(Widget):
    """Three lines: what and when, figures, histories."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "header--brand",
        "header--strong",
        "header--label",
        "header--spark",
        "header--worry",
        "badge--good",
        "badge--note",
        "badge--warn",
        "badge--bad",
    }
    DEFAULT_CSS = """
    HeaderBar { height: 3; background: $surface; color: $foreground; }
    HeaderBar > .header--brand { color: $accent; text-style: bold; }
    HeaderBar > .header--strong { color: $foreground; text-style: bold; }
    HeaderBar > .header--label { color: $text-muted; }
    HeaderBar > .header--spark { color: $primary; }
    HeaderBar > .header--worry { color: $warning; text-style: bold; }
    HeaderBar > .badge--good { background: $success; color: $background; text-style: bold; }
    HeaderBar > .badge--note { background: $primary; color: $background; text-style: bold; }
    HeaderBar > .badge--warn { background: $warning; color: $background; text-style: bold; }
    HeaderBar > .badge--bad { background: $error; color: $background; text-style: bold; }
    """

    def __init__(self, title: str, id: str | None = None) -> None:
        super().__init__(id=id)
        self._title = title
        self._view: View | None = None
        self._status = SourceStatus("connecting", time.time())
        self._frozen = self._gone = False

    def show(self, view: View | None, status: SourceStatus, frozen: bool, gone: bool = False) -> None:
        """Take what there is.

        Args:
            view: None while there is nothing yet.
            status: of the source now.
            frozen: whether the moment stays.
            gone: whether it has been deleted meanwhile.
        """
        self._view, self._status, self._frozen, self._gone = view, status, frozen, gone
        self.refresh()

    @property
    def badges(self) -> list[tuple[str, str]]:
        """What has to be seen at a glance: words and kind (good, note, warn, bad)."""
        found: list[tuple[str, str]] = []
        view, state = self._view, self._status.state
        if view is not None and view.keyframe.engine_paused:
            cause = view.keyframe.engine_paused
            found.append(("PAUSED" if cause == "operator" else f"PAUSED {cause}", "warn"))
        if self._frozen:
            found.append(("FROZEN", "note"))
        if self._gone:
            found.append(("GONE", "bad"))
        if state == "stale":
            found.append((f"STALE {duration(round(max(0.0, time.time() - self._status.since) * 1e9))}", "bad"))
        elif state == "dead":
            found.append(("DEAD", "bad"))
        elif state == "ended":
            found.append(("ENDED", "note"))
        elif state == "replaced":
            found.append(("OLD RUN", "bad"))
        elif state == "connecting":
            found.append(("CONNECTING", "warn"))
        elif not self._frozen:
            found.append(("LIVE", "good"))
        return found

    def render(self) -> Text:
        """Three lines, as wide as there is room."""
        width = self.size.width
        lines = [self._first(width)]
        if self._view is not None:
            shown = figures(self._view)
            cell = max(8, (width - 2) // len(shown))
            lines += self._figures(shown, cell)
        elif self._status.message:
            lines.append(Text(" " + fitted(self._status.message, width - 2), self._style("header--worry")))
        return Text("\n", no_wrap=True, end="").join(lines)

    def _first(self, width: int) -> Text:
        badges = Text()
        for words, kind in self.badges:
            badges.append(" ").append(f" {words} ", self._style(f"badge--{kind}"))
        badges.append(" ")
        line = Text(" nano-inspect", self._style("header--brand"), no_wrap=True)
        room = width - badges.cell_len - line.cell_len
        for label, value in self._places():
            size = 2 + (len(label) + 1 if label else 0) + len(value)
            if size > room:
                continue
            line.append("  ")
            if label:
                line.append(label + " ", self._style("header--label"))
            line.append(value, self._style("header--strong"))
            room -= size
        return line.append(" " * max(0, room)).append(badges)

    def _places(self) -> list[tuple[str, str]]:
        """Label and value, the more important first."""
        view = self._view
        if view is None:
            return [("", self._title)]
        keyframe, offset = view.keyframe, view.keyframe.started.wall_offset_ns
        model = keyframe.started.model.rstrip("/").rpartition("/")[2]
        return [
            ("", fitted(model, 24).rstrip()),
            ("step", f"{keyframe.step:,}"),
            ("", clock(view.now_t, offset, 3)),
            ("run", keyframe.started.run_id.rpartition("-")[2][:12]),
            ("up", duration(view.now_t - keyframe.started.t)),
            ("", self._title),
        ]

    def _figures(self, shown: list[Figure], cell: int) -> list[Text]:
        values, histories = Text(" "), Text(" ")
        steps = self._view.steps if self._view else ()
        for figure in shown:
            label = figure.name if cell >= WIDE else figure.short
            value = figure.value if len(label) + len(figure.value) + 3 <= cell else figure.brief
            values.append(f"{label} ", self._style("header--label"))
            values.append(value, self._style("header--worry" if figure.worry else "header--strong"))
            values.append(" " * max(2, cell - len(label) - 1 - len(value)))
            spark = figure.history(steps, cell - 2).rjust(cell - 2)
            histories.append(spark, self._style("header--worry" if figure.worry else "header--spark")).append("  ")
        return [values, histories]

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(name)
