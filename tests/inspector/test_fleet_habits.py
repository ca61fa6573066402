"""The keys of a fleet's screen: filter, sort, help, export, copy, and the footer that names them."""

from __future__ import annotations

import csv
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from textual.widgets import Static

from fake_fleet import URL, FakeFleet
from fleet_driver import SIZES, Scene, play
from nanolens.inspector.fleet_rows import FIELDS, fleet_json
from nanolens.inspector.tui import fleet_screen
from nanolens.inspector.tui.fleet_screen import FleetScreen
from nanolens.inspector.tui.fleet_view import FleetView
from nanolens.inspector.tui.habits import HabitScreen
from nanolens.inspector.tui.help_screen import HABITS, HelpScreen
from nanolens.inspector.tui.picker_screen import PickerScreen

NAMES = {"slash": "/", "question_mark": "?", "escape": "esc"}


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_screen, "LOOK_S", 0.05)


def test_a_filter_holds_as_it_is_typed_and_for_what_comes_until_esc() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.until_fleet()
        await scene.press("slash", *"waiting", "greater_than_sign", "3")
        assert scene.table.keys == ["bbb", "ccc"] and scene.table.caption == "3 replicas · 2 shown: waiting>3"
        await scene.press("enter")
        assert scene.table.has_focus and "esc all" in scene.footer
        fleet.waiting |= {"aaa": 7, "ccc": 0}
        await scene.until(lambda: scene.table.keys == ["aaa", "bbb"])
        assert "3 replicas, waiting 16" in scene.words("#words")  # of all
        await scene.press("escape")
        assert scene.table.keys == ["aaa", "bbb", "ccc"] and "esc all" not in scene.footer

    fleet = FakeFleet()
    play(scenario, fleet)


def test_a_word_is_looked_for_in_ids_and_none_that_meets_it_is_said() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.until_fleet()
        await scene.press("slash", *"BB")
        assert scene.table.keys == ["bbb"]
        await scene.press(*"x")
        assert scene.table.keys == [] and scene.table.empty == "none of 3 replicas meets the filter"
        await scene.press("enter", "enter", "y")
        assert scene.told == ["nothing to copy here"]

    play(scenario, FakeFleet())


def test_a_filter_that_is_wrong_says_so_and_changes_nothing() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.until_fleet()
        await scene.press("slash", *"hit", "equals_sign", "5")
        assert "there is no field hit" in "\n".join(scene.lines())
        assert "did you mean hit_rate?" in " ".join("\n".join(scene.lines()).split())
        await scene.press("enter")
        assert scene.table.keys == ["aaa", "bbb", "ccc"] and not scene.table.has_focus
        await scene.press("escape")
        assert scene.table.has_focus and not scene.table.caption

    play(scenario, FakeFleet())


def test_comma_full_stop_and_minus_sort_and_the_cursor_stays_with_its_row() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.until_fleet()
        await scene.press("down", "full_stop", "full_stop", "full_stop")
        assert scene.columns[scene.table.sort or 0] == "queue"
        assert scene.table.keys == ["aaa", "ccc", "bbb"] and scene.table.cursor_key == "bbb"
        await scene.press("minus")
        assert scene.table.keys == ["bbb", "ccc", "aaa"]
        fleet.waiting["bbb"] = 0
        await scene.until(lambda: scene.table.keys == ["ccc", "aaa", "bbb"])
        await scene.press("comma")
        assert scene.columns[scene.table.sort or 0] == "state" and scene.table.cursor_key == "bbb"

    fleet = FakeFleet()
    play(scenario, fleet)


def test_what_is_shown_is_exported_with_the_values_of_json(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.until_fleet()
        await scene.press("slash", *"waiting", "greater_than_sign", "3", "enter", "full_stop", "minus")
        for number, form in enumerate("csj", 1):
            await scene.press("E", form)
            await scene.until(lambda number=number: len(list(tmp_path.iterdir())) == number)
            await scene.until_fleet()

    fleet = FakeFleet()
    begin = datetime.now(UTC)
    play(scenario, fleet, export_dir=tmp_path)
    files = {path.suffix: path for path in tmp_path.iterdir()}
    told = json.loads(files[".json"].read_text())
    told_by_json = {each["id"]: each for each in fleet_json(fleet.look())["replicas"]}
    assert told["rows"] == [told_by_json["ccc"], told_by_json["bbb"]]
    assert (told["title"], told["fleet"]) == ("fleet", URL) and not {"run", "step"} & set(told)
    at = datetime.fromisoformat(told["shown_at"])
    assert begin < at < datetime.now(UTC)
    assert files[".json"].name == f"nano-inspect-fleet-{at:%Y%m%dT%H%M%S}.json"
    rows = list(csv.DictReader(files[".csv"].open(newline="")))
    assert [(row["id"], row["run"], row["hit_rate"], row["fleet"]) for row in rows] == [
        ("ccc", "r", "0.0", URL), ("bbb", "r", "0.0", URL),
    ]  # fmt: skip
    picture = files[".svg"].read_text()
    assert "ccc" in picture and "aaa" not in picture and "Export" not in picture


def test_y_copies_the_id_of_the_replica() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.until_fleet()
        await scene.press("down", "y")
        assert scene.app.clipboard == "bbb" and scene.told == ["copied bbb"]

    play(scenario, FakeFleet())


@pytest.mark.parametrize("size", SIZES)
def test_help_shows_the_keys_of_a_fleet_and_no_others(size: str) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.until_fleet()
        await scene.press("question_mark")
        assert isinstance(scene.app.screen, HelpScreen)
        assert scene.app.screen.query_one(Static).size.width <= SIZES[size][0]
        words = " ".join("".join(scene.lines()).replace("│", " ").split())
        assert "waiting>0 hit_rate<50" in words and "Debugger" not in words
        await scene.press("question_mark")
        assert isinstance(scene.app.screen, FleetScreen)
        titles = {command.title for command in scene.app.get_system_commands(scene.app.screen)}
        assert titles == {"Theme", "Quit", "Look again", "Filter", "Export", "Copy", "Open another", "Help"}

    play(scenario, FakeFleet(), SIZES[size])


def test_no_key_and_no_field_is_missing_in_the_help() -> None:
    keys = " ".join(key for key, _ in [*FleetView.HELP, *HABITS[1]])
    for binding in [*HabitScreen.BINDINGS, *FleetScreen.BINDINGS]:
        assert NAMES.get(binding.key, binding.key) in keys, binding.key  # type: ignore[union-attr]
    words = " ".join(words for key, words in FleetView.HELP if key == "/")
    assert all(field in words for field in FIELDS)


@pytest.mark.parametrize(("size", "shown"), [("80x24", "- reverse  E export"), ("160x50", "r look again  ^p palette")])
def test_the_footer_names_the_keys_that_apply(size: str, shown: str) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.until_fleet()
        assert scene.footer.startswith(" q quit  ? help  / filter  enter open  , . sort") and shown in scene.footer

    play(scenario, FakeFleet(), SIZES[size])


def test_esc_leads_from_a_filter_to_all_and_then_to_the_list() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.until(lambda: isinstance(scene.app.screen, PickerScreen) and scene.table.keys)
        await scene.press("enter")
        await scene.until_fleet()
        assert "esc another" in scene.footer
        await scene.press("slash", *"bbb", "enter", "escape")
        assert scene.table.keys == ["aaa", "bbb", "ccc"]
        await scene.press("escape")
        await scene.until(lambda: isinstance(scene.app.screen, PickerScreen))

    play(scenario, FakeFleet(), picks=True)
