"""nano-inspect's app: export, copy, help, palette, themes, NO_COLOR."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
from datetime import datetime
from pathlib import Path

import pytest
from textual import events
from textual.command import CommandPalette
from textual.widgets import Input, Static

from app_driver import Driver, drive
from fake_source import FakeSource
from nanolens.inspector.tui.app import DARK, LIGHT
from nanolens.inspector.tui.dialogs import ChoiceScreen, Dialog
from nanolens.inspector.tui.habits import HabitScreen
from nanolens.inspector.tui.help_screen import SECTIONS, HelpScreen
from nanolens.inspector.tui.inspect_screen import InspectScreen
from views import view_of_fake_run


def exported(tmp_path: Path, *keys: str) -> list[Path]:
    async def scenario(driver: Driver) -> None:
        await driver.press(*keys)
        await driver.until(lambda: driver.app.screen is driver.screen)
        await driver.until(lambda: driver.told or keys[-1] == "escape")

    drive(scenario, export_dir=tmp_path)
    return sorted(tmp_path.iterdir())


def test_what_is_shown_is_exported_as_csv(tmp_path: Path) -> None:
    (path,) = exported(tmp_path, "E", "enter")
    assert path.name == "nano-inspect-sequences-step28.csv"
    rows = list(csv.reader(path.open(newline="")))
    assert len(rows) == 10 and "twins" in rows[3]


def test_what_is_shown_is_exported_as_json(tmp_path: Path) -> None:
    (path,) = exported(tmp_path, "E", "j")
    told = json.loads(path.read_text())
    keyframe = view_of_fake_run().keyframe
    assert len(told["rows"]) == 9 and (told["run"], told["step"]) == (keyframe.started.run_id, keyframe.step)
    at = datetime.fromisoformat(told["shown_at"])
    assert at.tzinfo is not None
    assert abs(at.timestamp() - (keyframe.t + keyframe.started.wall_offset_ns) / 1e9) < 1e-5


def test_a_row_of_exported_events_is_found_on_the_screen_and_in_other_programs(tmp_path: Path) -> None:
    (path,) = exported(tmp_path, "6", "E", "j")
    rows = json.loads(path.read_text())["rows"]
    view = view_of_fake_run()
    started, shown = view.keyframe.started, view.events[-len(rows) :]
    assert [row["seconds"] for row in rows] == [(row.t - started.t) / 1e9 for row in shown]
    assert [round(datetime.fromisoformat(row["time"]).timestamp() * 1e6) for row in rows] == [
        (row.t + started.wall_offset_ns) // 1000 for row in shown
    ]


@pytest.mark.parametrize("key", "123456")
def test_no_view_exports_nanoseconds(tmp_path: Path, key: str) -> None:
    (path,) = exported(tmp_path, key, "E", "c")
    header = next(csv.reader(path.open(newline="")))
    assert header[-2:] == ["run", "shown_at"] and not [name for name in header if name == "t" or name.endswith("_ns")]
    assert ("time" in header and "seconds" in header) == (key in "56")


def test_the_screen_is_exported_as_svg_without_the_dialog(tmp_path: Path) -> None:
    (path,) = exported(tmp_path, "E", "down", "down", "enter")
    text = path.read_text()
    assert path.suffix == ".svg" and text.startswith("<svg") and "sleeper" in text and "Export" not in text


def test_only_the_first_key_of_a_dialog_counts(tmp_path: Path) -> None:
    async def scenario(driver: Driver) -> None:
        for key in ("E", "P", "question_mark"):
            await driver.press(key)
            dialog = driver.app.screen
            assert isinstance(dialog, Dialog)
            for _ in range(3):  # before it is gone
                dialog.end("" if key == "E" else "no")
            await driver.pilot.pause()
            assert driver.app.screen is driver.screen
        await driver.press("E")
        dialog = driver.app.screen
        assert isinstance(dialog, ChoiceScreen)
        for letter in "cjs":
            dialog.on_key(events.Key(letter, letter))
        await driver.until(lambda: any(tmp_path.iterdir()))
        assert driver.app.screen is driver.screen

    drive(scenario, export_dir=tmp_path)
    assert [path.suffix for path in tmp_path.iterdir()] == [".csv"]


def test_a_picture_shows_nothing_of_the_export_before_it(tmp_path: Path) -> None:
    async def scenario(driver: Driver) -> None:
        await driver.press("E", "c")
        await driver.until(lambda: driver.app.screen.query("Toast"), "told")
        await driver.pilot.pause()
        await driver.press("E", "s")
        await driver.until(lambda: len(list(tmp_path.iterdir())) == 2)
        await driver.pilot.pause()
        assert driver.app.screen is driver.screen  # the s of svg does no step

    drive(scenario, export_dir=tmp_path, toasts=True)
    (picture,) = tmp_path.glob("*.svg")
    assert "sleeper" in picture.read_text() and "Exported" not in picture.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_ends_it_in_order(number: signal.Signals) -> None:
    async def scenario(driver: Driver) -> None:
        assert signal.getsignal(number) is not signal.SIG_DFL
        os.kill(os.getpid(), number)
        await driver.until(lambda: driver.app.return_code == 128 + number)

    source = FakeSource()
    drive(scenario, source)
    assert source.closed


def test_a_filter_that_is_wrong_leaves_the_one_before(tmp_path: Path) -> None:
    async def scenario(driver: Driver) -> None:
        await driver.press("slash")
        await driver.type("twins")
        await driver.press("enter", "slash")
        field = driver.screen._prompt.query_one(Input)
        field.value = "foo"
        await driver.until(lambda: "/foo" in driver.text("tabs"))
        field.value = "foo:bar"
        await driver.until(lambda: "/twins" in driver.text("tabs"))
        assert len(driver.screen.active.exported().rows) == 2

    drive(scenario)


def test_an_export_can_be_given_up(tmp_path: Path) -> None:
    assert exported(tmp_path, "E", "escape") == []


def test_an_export_takes_no_other_files_place(tmp_path: Path) -> None:
    exported(tmp_path, "E", "c")
    names = [path.name for path in exported(tmp_path, "E", "c")]
    assert names == ["nano-inspect-sequences-step28-2.csv", "nano-inspect-sequences-step28.csv"]


def test_an_export_that_can_not_be_written_is_told(tmp_path: Path) -> None:
    async def scenario(driver: Driver) -> None:
        await driver.press("E", "c")
        await driver.until(lambda: driver.told)
        assert "can't be written" in driver.told[0]

    drive(scenario, export_dir=tmp_path / "missing")


def test_a_filter_holds_for_the_export(tmp_path: Path) -> None:
    async def scenario(driver: Driver) -> None:
        await driver.press("slash")
        await driver.type("twins")
        await driver.press("enter", "E")
        assert isinstance(driver.app.screen, ChoiceScreen)
        await driver.press("j")
        await driver.until(lambda: driver.told)

    drive(scenario, export_dir=tmp_path)
    (path,) = tmp_path.iterdir()
    assert len(json.loads(path.read_text())["rows"]) == 2


def test_y_copies_the_id_under_the_cursor() -> None:
    async def scenario(driver: Driver) -> None:
        await driver.press("home", "down", "down", "y")
        assert driver.app.clipboard == "twins" and "copied twins" in driver.told

    drive(scenario)


@pytest.mark.parametrize("size", [(80, 24), (160, 50)])
def test_help_names_every_key_of_the_screen(size: tuple[int, int]) -> None:
    async def scenario(driver: Driver) -> None:
        await driver.press("question_mark")
        assert isinstance(driver.app.screen, HelpScreen)
        assert driver.app.screen.query_one(Static).size.width <= size[0]
        await driver.press("escape")
        assert driver.app.screen is driver.screen

    drive(scenario, size=size)


def test_no_key_is_missing_in_the_help() -> None:
    shown = " ".join(key for _, keys in SECTIONS for key, _ in keys) + " 0 2 3 4 5 tab shift+tab escape"
    names = {"space": "space", "left_square_bracket": "[", "right_square_bracket": "]", "left_curly_bracket": "{",
             "right_curly_bracket": "}", "slash": "/", "question_mark": "?"}  # fmt: skip
    for binding in [*HabitScreen.BINDINGS, *InspectScreen.BINDINGS]:
        key = binding.key  # type: ignore[union-attr]
        assert key.isdigit() or names.get(key, key) in shown, key


def test_the_palette_holds_the_commands() -> None:
    async def scenario(driver: Driver) -> None:
        titles = {command.title for command in driver.app.get_system_commands(driver.screen)}
        assert {"Theme", "Quit", "Blocks", "Freeze", "Go to a time", "Breakpoints", "Export", "Help"} <= titles
        await driver.press("ctrl+p")
        await driver.until(lambda: isinstance(driver.app.screen, CommandPalette))
        await driver.type("events")
        await driver.pilot.pause(0.3)
        await driver.press("enter")
        await driver.until(lambda: driver.view == "events")

    drive(scenario)


@pytest.mark.parametrize("theme", [DARK.name, LIGHT.name, "ansi-dark", "gruvbox"])
def test_every_theme_shows_every_view(theme: str) -> None:
    async def scenario(driver: Driver) -> None:
        driver.app.theme = theme
        for name in ("sequences", "detail", "blocks", "queue", "steps", "events"):
            driver.screen.action_show_view(name)
            await driver.pilot.pause()
            assert "step 28" in driver.text("header")

    drive(scenario)


def test_no_color_leaves_greys_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def colours() -> set[str]:
        found: set[str] = set()

        async def scenario(driver: Driver) -> None:
            drawn = re.findall(r"-r[0-9]+ \{ fill: #([0-9a-f]{6})", driver.app.export_screenshot())
            found.update(each for each in drawn if len({each[:2], each[2:4], each[4:]}) > 1)

        drive(scenario)
        return found

    assert len(colours()) > 3
    monkeypatch.setenv("NO_COLOR", "1")
    assert colours() <= {"c5c8c6"}  # of the picture itself, without a style


def test_enter_after_a_filter_opens_the_sequence_that_it_left() -> None:
    async def scenario(driver: Driver) -> None:
        await driver.press("slash")
        await driver.type("alike")
        await driver.press("enter", "enter")
        await driver.until(lambda: ("story", 4) in driver.source.asked)

    drive(scenario)


def test_escape_after_a_count_that_showed_another_view_goes_where_it_would_have_gone() -> None:
    async def scenario(driver: Driver) -> None:
        await driver.press("enter")
        await driver.until(lambda: driver.view == "detail")
        await driver.press("3", "0", "left_square_bracket")
        await driver.until(lambda: ("move", -30) in driver.source.asked)
        await driver.press("escape")
        assert driver.view == "sequences"

    drive(scenario)
