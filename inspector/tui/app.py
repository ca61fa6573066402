"""nano-inspect on a terminal: the app, its themes and commands. What it opens is the caller's to know."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import ClassVar

from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.theme import Theme

from ...errors import NanolensError
from ..sources.http_stream import IsFleet
from ..sources.source import Source
from .fleet_screen import FleetLike, FleetScreen
from .habits import HabitScreen
from .inspect_screen import InspectScreen
from .look_screen import VIEWS
from .picker_screen import Choice, PickerScreen

INTERVAL_S = 0.5
BY_SIGNAL = 128  # plus its number: the return code of an app that a signal has ended
_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
DARK = Theme(
    name="nanolens-dark",
    dark=True,
    primary="#5aa9e6",
    secondary="#b294d6",
    accent="#56c7b8",
    success="#7cc47f",
    warning="#e5b567",
    error="#e8706a",
    foreground="#d5dbe3",
    background="#0f1318",
    surface="#141a21",
    panel="#1e262f",
    boost="#26303b",
    variables={
        "scrollbar": "#36424f", "scrollbar-hover": "#46545f", "scrollbar-active": "#5aa9e6",
        "scrollbar-background": "#141a21", "scrollbar-background-hover": "#141a21",
        "scrollbar-background-active": "#141a21", "scrollbar-corner-color": "#141a21",
    },
)  # fmt: skip
LIGHT = Theme(
    name="nanolens-light",
    dark=False,
    primary="#1f6fb2",
    secondary="#7a4fa3",
    accent="#0b7f75",
    success="#2c7a34",
    warning="#9a6200",
    error="#b3261e",
    foreground="#1d232b",
    background="#ffffff",
    surface="#f7f9fb",
    panel="#e6ebf0",
    boost="#dde4eb",
    variables={
        "scrollbar": "#b8c2cc", "scrollbar-hover": "#9aa7b4", "scrollbar-active": "#1f6fb2",
        "scrollbar-background": "#f7f9fb", "scrollbar-background-hover": "#f7f9fb",
        "scrollbar-background-active": "#f7f9fb", "scrollbar-corner-color": "#f7f9fb",
    },
)  # fmt: skip


class NanoInspectApp(App[str]):
    """Looks at one source at a time.

    Args:
        source: what to look at; None: the user chooses.
        interval: seconds between two looks.
        find: lists what there is to choose.
        open_choice: makes a source of one; must not block.
        find_fleet: makes a fleet of its front's URL; must not block.
        export_dir: where exports go; None: the current directory.
    """

    TITLE = "nano-inspect"
    ENABLE_COMMAND_PALETTE = True

    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+z", "suspend_process", "Suspend", show=False)]
    CSS: ClassVar[str] = """
    Toast { max-width: 70; }
    ToastRack { margin-bottom: 2; }
    """

    def __init__(
        self,
        source: Source | None = None,
        interval: float = INTERVAL_S,
        *,
        find: Callable[[], Sequence[Choice]] | None = None,
        open_choice: Callable[[Choice], Source] | None = None,
        find_fleet: Callable[[str], FleetLike] | None = None,
        export_dir: Path | None = None,
    ) -> None:
        super().__init__()
        self._source, self._interval = source, interval
        self._find, self._open, self._find_fleet = find, open_choice, find_fleet
        self.export_dir = export_dir or Path.cwd()

    def on_mount(self) -> None:
        """Show the source, or ask for one; signals that end the program give the terminal back first."""
        for number in _ENDING:
            asyncio.get_running_loop().add_signal_handler(number, lambda code: self.exit(return_code=code),
                                                          BY_SIGNAL + number)  # fmt: skip
        for theme in (DARK, LIGHT):
            self.register_theme(theme)
        self.theme = DARK.name
        if self._find is not None:
            self.push_screen(PickerScreen(self._find, self._chosen))
        if self._source is not None:
            self.push_screen(InspectScreen(self._source, self._interval))

    def _chosen(self, choice: Choice) -> None:
        if self._open is None:
            return
        try:
            source = self._open(choice)
        except NanolensError as error:
            self.notify(str(error), severity="error", markup=False)
            return
        self.push_screen(InspectScreen(source, self._interval))

    def source_failed(self, words: str) -> None:
        """A source can't be looked at: back to the fleet that it is of; otherwise choose another one, or end."""
        if self.back_to_fleet():
            self.notify(words, severity="error", timeout=10, markup=False)
            return
        self.target_failed(words)

    def target_failed(self, words: str) -> None:
        """A server, a journal or a fleet can't be looked at: choose another one, or end."""
        if self._find is None or self._source is not None:
            self.exit(words, return_code=1)
            return
        self.pop_screen()
        self.notify(words, severity="error", timeout=10, markup=False)

    @property
    def has_choices(self) -> bool:
        """Whether there is a list to choose another source from."""
        return self._find is not None

    # Fleets

    @property
    def has_fleet(self) -> bool:
        """Whether what is looked at is a fleet, or one of its replicas."""
        return any(isinstance(screen, FleetScreen) for screen in self.screen_stack)

    def open_fleet(self, found: IsFleet) -> None:
        """What was opened as a server is several: show them instead."""
        if self._find_fleet is None:
            self.source_failed(str(found))
        else:
            self.switch_screen(FleetScreen(self._find_fleet(found.url), self._interval))

    def open_replica(self, source: Source) -> None:
        """Look at one of them."""
        self.push_screen(InspectScreen(source, self._interval))

    def back_to_fleet(self) -> bool:
        """From a replica to all of them; False where there is no fleet."""
        if not self.has_fleet:
            return False
        while not isinstance(self.screen, FleetScreen):
            self.pop_screen()
        return True

    def open_another(self) -> None:
        """Back to what there is to choose."""
        if self._find is None:
            self.notify("start nano-inspect without a target to choose among servers and journals", markup=False)
        elif isinstance(self.screen, InspectScreen | FleetScreen):
            self._source = None
            while isinstance(self.screen, InspectScreen | FleetScreen):
                self.pop_screen()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """What the palette offers: themes, views, time, debugger, habits."""
        for command in super().get_system_commands(screen):
            if command.title in ("Theme", "Quit"):
                yield command
        if isinstance(screen, InspectScreen):
            yield from self._inspect_commands(screen)
        if isinstance(screen, FleetScreen):
            yield SystemCommand("Look again", "Now, not after the interval (r)", screen.action_look)
        if isinstance(screen, HabitScreen):
            yield SystemCommand("Filter", "What is shown (/)", screen.action_ask_filter)
            yield SystemCommand("Export", "What is shown, as csv, json or svg (E)", screen.action_export)
            yield SystemCommand("Copy", "The id under the cursor (y)", screen.action_copy)
            yield SystemCommand("Open another", "Server or journal (o)", screen.action_open_another)
            yield SystemCommand("Help", "All keys (?)", screen.action_help)

    def _inspect_commands(self, screen: InspectScreen) -> Iterable[SystemCommand]:
        for number, (name, title) in enumerate(VIEWS, 1):
            yield SystemCommand(title, f"Show this view (key {number})", _bound(screen.action_show_view, name))
        yield SystemCommand("Freeze", "Stay at this moment, or go live again (space)", screen.action_freeze)
        yield SystemCommand("Live", "Follow the engine (g)", screen.action_live)
        yield SystemCommand("Go to a time", "Step, time of day, or so far back (t)", screen.action_ask_jump)
        yield SystemCommand("Kind of event", "That { and } go to (e)", screen.action_ask_kind)
        yield SystemCommand("Pause or continue the engine", "Asks first (P)", screen.action_pause_engine)
        yield SystemCommand("Step the engine", "Asks first (s)", screen.action_step_engine)
        yield SystemCommand("Breakpoints", "List, add, remove (b)", screen.action_breakpoints)


def _bound(action: Callable[[str], None], name: str) -> Callable[[], None]:
    return lambda: action(name)
