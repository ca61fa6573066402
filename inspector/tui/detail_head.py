"""The lines above a sequence's tables: what it is, a bar of its statuses, and where its time went. Knows no source."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual.widget import Widget

from ...telemetry.events import SequenceSnapshot
from ..detail_rows import PARTS, shares_of
from ..sequence_rows import Intervals
from ..units import duration, share
from ..view import Story, View

LINES = 5
# A glyph each, so that the bars can be read without colours.
STATUS_GLYPHS = {"RUNNING": "█", "WAITING": "░", "PAUSED": "▒"}
PART_GLYPHS = {"queued": "░", "prefill": "▓", "decode": "█", "preempted": "╳", "paused": "▒"}


class DetailHead(Widget):
    """Two lines of facts, the bar of statuses, the bar of parts and what it means."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "head--running", "head--waiting", "head--paused", "head--queued", "head--prefill", "head--decode",
        "head--preempted", "head--dim", "head--title",
    }  # fmt: skip
    DEFAULT_CSS = f"""
    DetailHead {{
        height: {LINES};
        text-wrap: nowrap;
        text-overflow: ellipsis;
        & > .head--title {{ text-style: bold; color: $text-primary; }}
        & > .head--dim {{ color: $text-muted; }}
        & > .head--running, & > .head--decode {{ color: $success; }}
        & > .head--prefill {{ color: $primary; }}
        & > .head--waiting, & > .head--queued {{ color: $warning; }}
        & > .head--preempted {{ color: $error; }}
        & > .head--paused {{ color: $accent; }}
    }}
    """

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._words = ""
        self._view: View | None = None
        self._seq: SequenceSnapshot | None = None
        self._story: Story | None = None

    def say(self, words: str) -> None:
        """Show these words instead of a sequence."""
        self._words, self._seq, self._story = words, None, None
        self.refresh()

    def show(self, view: View, seq: SequenceSnapshot, story: Story | None) -> None:
        """Show a sequence."""
        self._view, self._seq, self._story = view, seq, story
        self.refresh()

    def render(self) -> Text:
        """All lines."""
        if self._seq is None or self._view is None:
            return Text(self._words, self._style("dim"))
        lines = [*self._facts(self._view, self._seq)]
        if self._story is not None:
            lines += [self._statuses(self._story), self._parts(self._story), self._legend(self._story)]
        return Text("\n").join(lines)

    def _facts(self, view: View, s: SequenceSnapshot) -> Iterable[Text]:
        reason = s.wait_reason or s.reason
        age = duration(max(0, view.now_t - s.status_t))
        yield Text.assemble(
            (f"seq {s.seq} ", self._style("title")), f"of {safe(s.request)} · ",
            (s.status, self._style(s.status.lower())), f" ({reason}) for {age} · {s.phase} · prio {s.priority}",
            f" · {s.num_preemptions}× preempted" if s.num_preemptions else "",
        )  # fmt: skip
        appended = f" · {s.num_appended_tokens} appended" if s.num_appended_tokens else ""
        ttft = duration(s.first_token_t - s.arrived_t if s.first_token_t else None)
        yield Text(
            f"prompt {s.num_prompt_tokens} ({s.num_cached_tokens} cached) · computed {s.num_computed_tokens}/"
            f"{max(s.prefill_target, s.num_computed_tokens)} · output {s.num_output_tokens}/{s.max_tokens}{appended}"
            f" · {s.residency} · TTFT {ttft} · ITL {duration(Intervals(view.steps).last(s))}",
            self._style("dim"),
        )

    def _statuses(self, story: Story) -> Text:
        label = "statuses  "
        cells = shares_of([stay.end_t - stay.begin_t for stay in story.stays], self.size.width - len(label))
        text = Text(label, self._style("dim"))
        for stay, count in zip(story.stays, cells, strict=True):
            text.append(STATUS_GLYPHS.get(stay.status, "?") * count, self._style(stay.status.lower()))
        return text

    def _parts(self, story: Story) -> Text:
        label = "its time  "
        names = [part for part in PARTS if story.parts.get(part)]
        cells = shares_of([story.parts[name] for name in names], self.size.width - len(label))
        text = Text(label, self._style("dim"))
        for name, count in zip(names, cells, strict=True):
            text.append(PART_GLYPHS[name] * count, self._style(name))
        return text

    def _legend(self, story: Story) -> Text:
        whole = sum(story.parts.values())
        text = Text(" " * 10)
        for name in PARTS:
            part = story.parts.get(name, 0)
            if part:
                text.append(PART_GLYPHS[name], self._style(name))
                text.append(f" {name} {duration(part)} {share(part, whole)}  ")
        return text.append("" if story.whole else "since the journal begins", self._style("dim"))

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"head--{name}", default=Style())


def safe(text: str) -> str:
    """A text that came from outside, without a terminal's commands."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
