"""Writes the dashboards as JSON: `python -m nanolens.grafana.generate`; with `--check` it only says what differs."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from .boards import BOARDS, SLOS
from .dashboard import dashboard_json

FOLDER = Path(__file__).parent / "dashboards"


def files() -> dict[str, str]:
    """Name and content of each dashboard's file."""
    return {
        f"{board.name}.json": json.dumps(dashboard_json(board, SLOS), indent=1, ensure_ascii=False) + "\n"
        for board in BOARDS
    }


def differences(folder: Path) -> list[str]:
    """What stands in a folder of dashboards and should not, or the other way round; a line each."""
    wanted = files()
    found = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.json"))}
    both = [name for name in wanted if name in found]
    return (
        [f"{folder / name}: missing" for name in wanted if name not in found]
        + [f"{folder / name}: differs from its builder" for name in both if found[name] != wanted[name]]
        + [f"{folder / name}: no builder makes it" for name in found if name not in wanted]
    )


def write(folder: Path) -> list[str]:
    """Make a folder hold the dashboards and no other JSON; returns what has changed."""
    changed = differences(folder)
    folder.mkdir(parents=True, exist_ok=True)
    wanted = files()
    for path in folder.glob("*.json"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text, encoding="utf-8")
    return changed


def main(argv: list[str] | None = None) -> int:
    """The command; returns its exit status, 1 for a difference found by `--check`."""
    parser = argparse.ArgumentParser(prog="nanolens.grafana.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a file is out of date")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the dashboards lie (default: %(default)s)")
    arguments = parser.parse_args(argv)
    if not arguments.check:
        for line in write(arguments.folder):
            print("written:", line)
        return 0
    found = differences(arguments.folder)
    for line in found:
        print(line, file=sys.stderr)
    if found:
        print("run `python -m nanolens.grafana.generate`", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
