"""The keys that every screen of rows has: filter, help, export, copy, another source, quit. Knows not what it shows."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar, Protocol, cast

from textual.binding import Binding, BindingType
from textual.screen import Screen

from ..export import Shown, Table
from .dialogs import ChoiceScreen
from .export_file import FORMATS, write_export
from .help_screen import SECTIONS, HelpScreen, Keys
from .prompt_line import PromptLine

if TYPE_CHECKING:
    from .app import NanoInspectApp

LAID_OUT_S = 0.2  # in which the screen is drawn anew


class Habitual(Protocol):
    """What a screen shows, as far as these keys are about it."""

    HELP: ClassVar[list[tuple[str, str]]]  # its own keys, and what they do

    def apply_filter(self, text: str) -> str:
        """Show only what meets a filter; what is wrong with it, or ""."""

    def exported(self) -> Table:
        """What is shown, for an export."""

    @property
    def selected_id(self) -> str:
        """Id of what is under the cursor; "" for nothing."""


class HabitScreen(Screen[None]):
    """A screen with these keys. Subclasses place its prompt line, and say what they show."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "ask_filter", "Filter"),
        Binding("question_mark", "help", "Help"),
        Binding("E", "export", "Export"),
        Binding("y", "copy", "Copy id"),
        Binding("o", "open_another", "Open another"),
        Binding("q", "quit", "Quit"),
    ]
    KEYS: ClassVar[tuple[tuple[str, Keys], ...]] = SECTIONS  # that the help shows below those of what is shown

    def __init__(self) -> None:
        super().__init__()
        self._prompt = PromptLine()
        self._filters: dict[str, str] = {}  # by the name of what is shown

    # What it shows

    @property
    def active(self) -> Habitual:
        """What is shown."""
        raise NotImplementedError

    @property
    def active_name(self) -> str:
        """Its name."""
        raise NotImplementedError

    def shown_at(self) -> Shown | None:
        """Of which moment it is; None before there is anything."""
        raise NotImplementedError

    def _paint(self) -> None:
        """Show what surrounds it anew."""
        raise NotImplementedError

    @property
    def filtered(self) -> str:
        """What it is filtered by; "" where all is shown."""
        return self._filters.get(self.active_name, "")

    @property
    def nano_app(self) -> NanoInspectApp:
        """The app, by its own class."""
        return cast("NanoInspectApp", self.app)

    # Keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys that come between the asking for a line and its focus are meant for the line, and do nothing else."""
        return not self._prompt.is_asking or self._prompt.has_focus_within

    def action_ask_filter(self) -> None:
        """Ask for a filter of what is shown; it applies as it is typed."""
        self._prompt.ask("/", self.filtered, "", self._apply_filter, self._apply_filter)

    def _apply_filter(self, text: str) -> str:
        error = self.active.apply_filter(text)
        if not error:
            self._filters[self.active_name] = text.strip()
            self._paint()
        return error

    def action_help(self) -> None:
        """Show the keys."""
        self.app.push_screen(HelpScreen(self.active_name.capitalize(), self.active.HELP, self.KEYS))

    def action_export(self) -> None:
        """Write what is shown into a file."""
        if self.shown_at() is not None:
            self.run_worker(self._export(), group="export")

    async def _export(self) -> None:
        form = await self.app.push_screen_wait(ChoiceScreen("Export what is shown", FORMATS))
        shown = self.shown_at()
        if not form or shown is None:
            return
        table = self.active.exported()
        await self._clear_toasts()
        screenshot = self.app.export_screenshot(title=f"nano-inspect: {table.title}") if form == "svg" else ""
        try:
            path = write_export(self.nano_app.export_dir, form, table, shown, screenshot)
        except OSError as error:
            self.notify(f"can't be written: {error}", title="Export", severity="error", markup=False)
        else:
            self.notify(str(path), title="Exported", markup=False)

    async def _clear_toasts(self) -> None:
        """What an export before this one has told does not belong into a picture."""
        self.app.clear_notifications()
        for rack in self.query("ToastRack"):
            await rack.remove_children()
        self.refresh(layout=True)
        await asyncio.sleep(LAID_OUT_S)

    def action_copy(self) -> None:
        """Copy what is under the cursor by its id."""
        copied = self.active.selected_id
        if copied:
            self.app.copy_to_clipboard(copied)
            self.notify(f"copied {copied}", markup=False)
        else:
            self.notify("nothing to copy here", severity="warning")

    def action_open_another(self) -> None:
        """Choose another source."""
        self.nano_app.open_another()

    def action_quit(self) -> None:
        """End the program."""
        self.app.exit()
