"""What the main screen shows: looks at a source again and again, on another thread, and lets one of its views show it.

Knows no keys.
"""

from __future__ import annotations

import asyncio
import time
from typing import cast

from textual import on
from textual.app import ComposeResult
from textual.widgets import ContentSwitcher, Static

from ...errors import NanolensError
from ...telemetry.predicate import Predicate
from ...telemetry.predicate import parse as parse_predicate
from ..clock_words import iso
from ..export import Shown
from ..sources.http_stream import IsFleet
from ..sources.source import Source
from ..view import SourceStatus, View
from .blocks_view import BlocksView
from .detail_view import DetailView
from .events_view import EventsView
from .footer_bar import FooterBar
from .habits import HabitScreen
from .header_bar import HeaderBar
from .hints import hints
from .judge import Judge
from .messages import SequenceChosen
from .queue_view import QueueView
from .sequences_view import SequencesView
from .steps_view import StepsView
from .tab_bar import TabBar
from .time_bar import TimeBar
from .time_travel import Seen, TimeTravel

AnyView = SequencesView | DetailView | BlocksView | QueueView | StepsView | EventsView

VIEWS: tuple[tuple[str, str], ...] = (
    ("sequences", "Sequences"),
    ("detail", "Detail"),
    ("blocks", "Blocks"),
    ("queue", "Queue"),
    ("steps", "Steps"),
    ("events", "Events"),
)
KIND = "on=preempted"  # of events, for { and }, until another is given
GONE = "this moment is no longer on disk"
FROZEN_LOOKS = 4  # refreshes of a frozen screen, of which one looks how far the journal has come


class LookScreen(HabitScreen):
    """One source, seen."""

    DEFAULT_CSS = """
    LookScreen { layout: vertical; background: $surface; }
    LookScreen > ContentSwitcher { height: 1fr; }
    LookScreen #waiting { height: 1fr; content-align: center middle; color: $text-muted; }
    """

    def __init__(self, source: Source, interval: float) -> None:
        super().__init__()
        self._source, self._interval = source, interval
        self._travel, self._judge = TimeTravel(source), Judge(source)
        self._header, self._tabs = HeaderBar(source.title), TabBar(VIEWS)
        self._time, self._footer = TimeBar(), FooterBar()
        self._waiting = Static("looking…", id="waiting", markup=False)
        self._switcher = ContentSwitcher(initial="waiting")
        self._views: dict[str, AnyView] = {
            "sequences": SequencesView(id="sequences"),
            "detail": DetailView(id="detail"),
            "blocks": BlocksView(id="blocks"),
            "queue": QueueView(id="queue"),
            "steps": StepsView(id="steps"),
            "events": EventsView(id="events"),
        }
        self._wake = asyncio.Event()
        self._view: View | None = None
        self._active, self._before = "sequences", "sequences"
        self._seq: int | None = None  # of the detail view
        self._kind, self._predicate = KIND, cast("Predicate | None", parse_predicate(KIND))
        self.now = time.monotonic  # seconds, by which counts end
        self._count, self._count_until = "", 0.0  # typed before a key, and until when it holds
        self._trouble, self._is_gone = "", False  # is_gone: what is shown can't be read again
        self._passed = 0  # refreshes since the last look

    def compose(self) -> ComposeResult:
        """Header, tabs, the views, time bar, prompt, footer."""
        yield self._header
        yield self._tabs
        with self._switcher:
            yield self._waiting
            yield from self._views.values()
        yield self._time
        yield self._prompt
        yield self._footer

    def on_mount(self) -> None:
        """Begin to look."""
        self._paint()
        self.run_worker(self._watch(), group="watch")

    async def on_unmount(self) -> None:
        """Let go of the source."""
        await asyncio.to_thread(self._source.close)

    @property
    def active(self) -> AnyView:
        """The view that is shown."""
        return self._views[self._active]

    @property
    def active_name(self) -> str:
        """Its name."""
        return self._active

    def shown_at(self) -> Shown | None:
        """The step that is shown, and its time; None before there is anything."""
        if self._view is None:
            return None
        keyframe = self._view.keyframe
        return Shown(keyframe.started.run_id, keyframe.step, iso(self._view.now_t, keyframe.started.wall_offset_ns))

    @property
    def is_frozen(self) -> bool:
        """Whether the moment on the screen stays."""
        return self._travel.moment is not None

    @property
    def shown(self) -> View | None:
        """What is on the screen; None before there is anything."""
        return self._view

    @property
    def shown_status(self) -> SourceStatus:
        """How the source does; or that it has gone on to another run than the one on the screen."""
        view = self._view
        is_old = self.is_frozen and view is not None and view.status.state == "replaced"
        return view.status if is_old and view is not None else self._source.status

    # Looking

    async def _watch(self) -> None:
        try:
            await asyncio.to_thread(self._source.start)
        except IsFleet as error:
            self.nano_app.open_fleet(error)
            return
        except NanolensError as error:
            self.nano_app.source_failed(str(error))
            return
        while True:
            await self._look()
            try:
                await asyncio.wait_for(self._wake.wait(), self._interval)
            except TimeoutError:
                self._passed += 1
            else:
                self._passed = FROZEN_LOOKS
            self._wake.clear()

    async def _look(self) -> None:
        if self.is_frozen and self._view is not None and self._passed < FROZEN_LOOKS:
            self._paint()
            return
        self._passed = 0
        asked = self._travel.has_ways
        try:
            seen = await asyncio.to_thread(self._travel.look, self._view, self._detailed())
        except NanolensError as error:
            self._trouble_with(str(error), asked)
        else:
            self._trouble = ""
            self._take(seen)
        self._paint()

    def _detailed(self) -> int | None:
        return self._seq if self._active == "detail" else None

    def _trouble_with(self, words: str, asked: bool) -> None:
        """Say it once, or whenever it was asked for; and for as long as there is nothing else to show."""
        if self._view is None:
            self._waiting.update(words)
        elif asked or words != self._trouble:
            self.notify(words, severity="warning", markup=False)
        self._trouble = words

    def _take(self, seen: Seen) -> None:
        was, self._view = self._view, seen.view
        self._is_gone = seen.is_gone
        if was is None:
            self._show_view(self._active)
        elif seen.is_gone:
            self._show_gone()
        elif (was.moment, was.now_t) != (seen.view.moment, seen.view.now_t) or self._active == "detail":
            self._show_on(self.active, seen)
        if isinstance(self.active, DetailView) and seen.story is not None:
            if self._judge.is_due(seen.story.seq, seen.view):
                self._judge.begin(seen.story.seq, seen.view)
                self.run_worker(self._judged(self.active), group="verdict")
            self.active.show_verdict(*self._judge.said_of(seen.story.seq, seen.view))

    def _show_gone(self) -> None:
        """What is on the screen stays; what is not there can't be looked for."""
        detail, view = self.active, self._view
        if isinstance(detail, DetailView) and detail.selected_seq is not None and view is not None:
            verdict, _ = self._judge.said_of(detail.selected_seq, view)
            detail.show_verdict(verdict, "" if verdict else GONE)

    async def _judged(self, detail: DetailView) -> None:
        await asyncio.to_thread(self._judge.ask)
        if self._view is not None and detail.selected_seq is not None:
            detail.show_verdict(*self._judge.said_of(detail.selected_seq, self._view))

    def _show_on(self, view: AnyView, seen: Seen) -> None:
        view.show(seen.view)
        if isinstance(view, DetailView):
            view.show_story(seen.view, seen.story)

    def _paint(self) -> None:
        """What surrounds the view."""
        if self._count and self.now() > self._count_until:
            self._count = ""
        status = self.shown_status
        is_gone = self._is_gone and self.is_frozen
        self._header.show(self._view, status, self.is_frozen, is_gone)
        self._time.show(self._view, self.is_frozen, self._kind, self._count, is_gone)
        self._tabs.show(self._active, f"/{self.filtered}" if self.filtered else status.message)
        can_steer = self._source.control is not None and status.state in ("live", "stale")
        self._footer.show(hints(
            self._active, self.is_frozen, can_steer, bool(self.filtered), self.active.HELP, self.nano_app.has_fleet
        ))

    def look_now(self) -> None:
        """Look again without waiting for the next refresh."""
        self._wake.set()

    # Views

    def action_show_view(self, name: str) -> None:
        """Show a view."""
        if name == "detail":
            self._seq = self._chosen() if self._active != "detail" else self._seq
        self._show_view(name)

    def _show_view(self, name: str) -> None:
        if name != self._active and self._active != "detail":
            self._before = self._active
        self._active = name
        if self._view is not None:
            view = self.active
            if isinstance(view, DetailView):
                view.choose(self._seq)
            view.show(self._view)
            self._switcher.current = name
            focus = view if view.can_focus else next((each for each in view.query("*") if each.can_focus), None)
            self.set_focus(focus)
            if name == "detail":
                self.look_now()
        self._paint()

    def _chosen(self) -> int | None:
        """The sequence under the cursor, or the one that was chosen last, or the first that runs."""
        if self.active.selected_seq is not None:
            return self.active.selected_seq
        if self._seq is not None or self._view is None:
            return self._seq
        keyframe = self._view.keyframe
        return next(iter([*keyframe.running, *keyframe.waiting, *(seq.seq for seq in keyframe.sequences)]), None)

    @on(SequenceChosen)
    def _sequence_chosen(self, message: SequenceChosen) -> None:
        self._seq = message.seq
        self._show_view("detail")
