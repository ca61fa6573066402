"""The dashboards against Grafana's own types (@grafana/schema), panel options and links included, by TypeScript."""

from __future__ import annotations

import copy
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from nanolens.grafana.generate import FOLDER
from npm_packages import installed

PACKAGES = ("@grafana/schema@13.2.3", "typescript@7.0.2")
TYPES = Path(__file__).parent / "dashboard_types.ts"
OPTIONS = (
    "--noEmit", "--strict", "--skipLibCheck", "--module", "esnext", "--moduleResolution", "bundler",
    "--target", "es2022", "--types", "",
)  # fmt: skip
Check = Callable[[list[Any]], str]


@pytest.fixture(scope="session")
def check(
    require: Callable[[str], str], lacks: Callable[[str], NoReturn], tmp_path_factory: pytest.TempPathFactory
) -> Check:
    """`check(boards)` gives what the compiler says of them: "" for valid ones."""
    node = require("node")
    packages = installed(PACKAGES, require("npm"), lacks)
    folder = tmp_path_factory.mktemp("schema")
    (folder / "node_modules").symlink_to(packages / "node_modules")

    def compile_all(boards: list[Any]) -> str:
        literals = [f"const board{i} = {json.dumps(b)} satisfies Literal<Dashboard>;" for i, b in enumerate(boards)]
        (folder / "boards.ts").write_text("\n".join([TYPES.read_text().rstrip(), *literals]) + "\n")
        command = [node, str(packages / "node_modules" / ".bin" / "tsc"), *OPTIONS, "boards.ts"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
        assert (done.returncode == 0) == (done.stdout == ""), done
        return done.stdout + done.stderr

    return compile_all


def boards() -> list[Any]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))]


def test_all_boards_fit_the_schema(check: Check) -> None:
    assert len(boards()) == 7
    assert check(boards()) == ""


def panel_of(board: Any, kind: str) -> Any:
    return next(panel for panel in board["panels"] if panel["type"] == kind)


def defaults_of(board: Any, kind: str) -> Any:
    return panel_of(board, kind)["fieldConfig"]["defaults"]


DAMAGE: dict[str, Callable[[Any], Any]] = {
    "a version that is a text": lambda b: b.update(schemaVersion="41"),
    "an unknown key": lambda b: b.update(style="dark"),
    "a place without a height": lambda b: panel_of(b, "stat")["gridPos"].pop("h"),
    "an unknown variable type": lambda b: b["templating"]["list"][0].update(type="list"),
    "an unknown panel type": lambda b: panel_of(b, "stat").update(type="statistic"),
    "an unknown threshold mode": lambda b: defaults_of(b, "stat")["thresholds"].update(mode="abs"),
    "a legend in no place": lambda b: panel_of(b, "timeseries")["options"]["legend"].update(placement="left"),
    "a time series without a tooltip": lambda b: panel_of(b, "timeseries")["options"].pop("tooltip"),
    "an unknown way to draw": lambda b: defaults_of(b, "timeseries")["custom"].update(drawStyle="x"),
    "a target key that Grafana does not know": lambda b: panel_of(b, "stat")["targets"][0].update(legend="x"),
    "a target without an expression": lambda b: panel_of(b, "stat")["targets"][0].pop("expr"),
    "a link without an address": lambda b: defaults_of(b, "stat")["links"][0].pop("url"),
    "a stat in an unknown colour mode": lambda b: panel_of(b, "stat")["options"].update(colorMode="rainbow"),
    "a table with a wrong cell height": lambda b: panel_of(b, "table")["options"].update(cellHeight="huge"),
}


def test_the_schema_check_finds_each_kind_of_damage(check: Check) -> None:
    good = json.loads((FOLDER / "overview.json").read_text(encoding="utf-8"))
    damaged = []
    for damage in DAMAGE.values():
        board = copy.deepcopy(good)
        damage(board)
        damaged.append(board)
    told = check(damaged)
    first_line = len(TYPES.read_text().splitlines()) + 1
    lines = {int(line.split("(")[1].split(",")[0]) for line in told.splitlines() if line.startswith("boards.ts(")}
    missed = [name for i, name in enumerate(DAMAGE) if first_line + i not in lines]
    assert missed == []


def test_the_schema_check_looks_into_heatmaps(check: Check) -> None:
    board = json.loads((FOLDER / "queue.json").read_text(encoding="utf-8"))
    panel_of(board, "heatmap")["options"]["color"]["mode"] = "plain"
    assert "boards.ts" in check([board])
