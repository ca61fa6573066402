"""The main screen's keys: views, time, debugger. What it shows is look_screen.py's, what all screens do habits.py's."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, ClassVar

from textual import on
from textual.binding import Binding, BindingType

from ...errors import InspectError, InvalidRequest
from ...telemetry.predicate import parse as parse_predicate
from ..clock_words import WAYS_THERE, Jump, read_jump
from ..sources.source import Source
from .breakpoints_screen import BreakpointsScreen
from .look_screen import VIEWS, LookScreen
from .messages import MomentChosen, StepChosen
from .steering import Steering
from .time_bar import TimeBar
from .time_travel import Steps, To, ToEvent, Way

COUNT_S, LONG_COUNT_S = 0.6, 2.5  # that a count is waited for: one digit that is a view's key too, any other


class InspectScreen(LookScreen):
    """One source, seen and steered."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(digit, f"digit('{digit}')", show=False) for digit in "0123456789"),
        Binding("tab", "next_view(1)", "Next view"),
        Binding("shift+tab", "next_view(-1)", "View before"),
        Binding("space", "freeze", "Freeze"),
        Binding("left_square_bracket", "steps(-1)", "Step back"),
        Binding("right_square_bracket", "steps(1)", "Step on"),
        Binding("left_curly_bracket", "event(False)", "Event before"),
        Binding("right_curly_bracket", "event(True)", "Next event"),
        Binding("e", "ask_kind", "Kind of event"),
        Binding("t", "ask_jump", "Go to a time"),
        Binding("g", "live", "Live"),
        Binding("P", "pause_engine", "Pause engine"),
        Binding("s", "step_engine", "Step engine"),
        Binding("b", "breakpoints", "Breakpoints"),
        Binding("p", "pause_sequence", "Pause sequence"),
        Binding("x", "abort_sequence", "Abort sequence"),
        Binding("i", "ask_priority", "Priority"),
        Binding("escape", "back", "Back"),
    ]

    def __init__(self, source: Source, interval: float) -> None:
        super().__init__(source, interval)
        self._steering = Steering(self, source, self._steered)
        self._count_view, self._count_before = self._active, self._before  # that were shown when the count began

    # Views

    def action_digit(self, digit: str) -> None:
        """A view's key; or, with other digits and before a key that takes one, a count."""
        number, now, was = int(digit), self.now(), self._active
        goes_on = bool(self._count) and now < self._count_until
        is_key = not goes_on and 1 <= number <= len(VIEWS)
        self._count = (self._count + digit)[-6:] if goes_on else digit
        self._count_until = now + (COUNT_S if is_key else LONG_COUNT_S)
        if not goes_on:
            self._count_view, self._count_before = was, self._before
        if is_key:
            self.action_show_view(VIEWS[number - 1][0])
        else:
            self._take_view_back()
        self._paint()

    def _take_view_back(self) -> None:
        """Show what was shown before a digit of the count showed another view; esc leads where it led then."""
        if self._active != self._count_view:
            self._show_view(self._count_view)
            self._before = self._count_before

    def _take_count(self) -> int:
        """The count that was typed, or 1. Typing it may have shown another view: that is taken back."""
        count = 1
        if self._count and self.now() < self._count_until:
            count = max(1, int(self._count))
            self._take_view_back()
        self._count = ""
        return count

    def action_next_view(self, by: int) -> None:
        """Show the view after, or before, this one."""
        if not self._prompt.is_asking:
            names = [name for name, _ in VIEWS]
            self.action_show_view(names[(names.index(self._active) + by) % len(names)])

    def action_back(self) -> None:
        """Drill out: from a sequence to where it was chosen, a filter to everything, a replica to its fleet."""
        if self._active == "detail":
            self._show_view(self._before)
        elif self.filtered:
            self._apply_filter("")
        else:
            self.nano_app.back_to_fleet()

    # Time

    def go(self, way: Way) -> None:
        """Go somewhere in time, and stay there."""
        if self._view is not None:
            self._travel.add(way)
            self.look_now()

    @on(StepChosen)
    def _step_chosen(self, message: StepChosen) -> None:
        self.go(To(Jump(step=message.step)))

    @on(MomentChosen)
    def _moment_chosen(self, message: MomentChosen) -> None:
        self.go(To(message.moment))

    @on(TimeBar.Jumped)
    def _time_chosen(self, message: TimeBar.Jumped) -> None:
        self.go(To(Jump(t=message.t)))

    def action_freeze(self) -> None:
        """Stay at the moment on the screen, or go live again."""
        if self.is_frozen:
            self.action_live()
        elif self._view is not None:
            self._travel.freeze(self._view.moment)
            self._paint()

    def action_live(self) -> None:
        """Follow the engine."""
        self._travel.go_live()
        self.look_now()
        self._paint()

    def action_steps(self, by: int) -> None:
        """So many steps on, or back."""
        self.go(Steps(by * self._take_count()))

    def action_event(self, forward: bool) -> None:
        """To the next event of the kind, or to the one before."""
        for _ in range(min(self._take_count(), 100)):
            self.go(ToEvent(self._predicate, forward))

    def action_ask_jump(self) -> None:
        """Ask for a place in time."""
        self._prompt.ask("go to", "", WAYS_THERE.removeprefix("give "), self._jump)

    def _jump(self, text: str) -> str:
        if self._view is None or not text.strip():
            return ""
        try:
            self.go(To(read_jump(text, self._view)))
        except InspectError as error:
            return str(error)
        return ""

    def action_ask_kind(self) -> None:
        """Ask for the kind of event that { and } go to."""
        self._prompt.ask(
            "{ } go to", self._kind, "on=preempted, on=status to=PAUSED, seq=17; empty: any", self._set_kind
        )

    def _set_kind(self, text: str) -> str:
        try:
            self._predicate = parse_predicate(text) if text.strip() else None
        except InvalidRequest as error:
            return str(error).removeprefix("predicate: ")
        self._kind = text.strip()
        self._paint()
        return ""

    # Debugger

    def action_pause_engine(self) -> None:
        """Pause the engine, or let it go on."""
        self._steer(self._steering.pause_or_continue())

    def action_step_engine(self) -> None:
        """Let the engine do one step, or as many as the count says."""
        self._steer(self._steering.step(self._take_count()))

    def action_breakpoints(self) -> None:
        """Show the breakpoints."""
        control = self._steering.control()
        if control is not None:
            self.app.push_screen(BreakpointsScreen(control, self._steering))

    def action_pause_sequence(self) -> None:
        """Pause the sequence under the cursor, or let it go on."""
        self._steer(self._steering.pause_or_resume(self._under_cursor()))

    def action_abort_sequence(self) -> None:
        """Abort the sequence under the cursor."""
        self._steer(self._steering.abort(self._under_cursor()))

    def action_ask_priority(self) -> None:
        """Ask for a priority for the sequence under the cursor."""
        seq = self._under_cursor()

        def take(text: str) -> str:
            try:
                priority = int(text)
            except ValueError:
                return f"{text or 'nothing'}: give a whole number"
            if seq is not None:
                self._steer(self._steering.set_priority(seq, priority))
            return ""

        if seq is None:
            self.notify("choose a sequence first", severity="warning")
        else:
            self._prompt.ask(f"priority of seq {seq}", "", "a whole number; lower is more urgent", take)

    def _under_cursor(self) -> int | None:
        return self._seq if self._active == "detail" else self.active.selected_seq

    def _steer(self, act: Coroutine[Any, Any, object]) -> None:
        self.run_worker(act, group="steer")

    def _steered(self, shows_now: bool) -> None:
        if shows_now:
            self._travel.go_live()
        self.look_now()
