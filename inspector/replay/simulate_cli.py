"""The what-if side of `nano-trace replay`: `--set` and `--sweep`. Knows flags and files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from ...errors import InvalidConfig
from ..out_file import writing
from .recording import Recording
from .simulate import Simulated, WhatIf
from .simulate_report import as_json, sweep_lines, sweep_svg, what_if_lines
from .simulate_settings import Setting, parse_setting, parse_sweep


def run_what_if(
    recording: Recording, changes: list[str], sweeps: list[str], plot: str | None, json_wanted: bool
) -> list[str]:
    """Simulate a recorded run with other settings; the lines to print.

    Args:
        recording: the run.
        changes: `NAME=VALUE`, each.
        sweeps: `NAME=FROM..TO`, say; one at most.
        plot: an SVG file to write; None: none.
        json_wanted: one line of JSON instead of a table.

    Raises:
        InvalidConfig: a setting that can't be used, or a file that can't be written.
        JournalError: a run that can't be simulated.
    """
    started = recording.started
    if len(sweeps) > 1:
        raise InvalidConfig(f"--sweep {', --sweep '.join(sweeps)}: one at a time; give the other a value by --set")
    settings = [parse_setting(text, started) for text in changes]
    swept = [found for text in sweeps for found in parse_sweep(text, started)]
    if plot is not None and not swept:
        raise InvalidConfig("--plot draws a sweep: give --sweep too")
    what_if = WhatIf(recording)
    base = what_if.run()
    found, unfit = _swept(what_if, settings, swept) if swept else ([what_if.run(settings)], {})
    if plot is not None:
        _write(Path(plot), sweep_svg(what_if, found))
    if json_wanted:
        return [json.dumps(as_json(what_if, base, found) | {"unfit": unfit})]
    lines = _lines(what_if, base, found, swept=bool(swept))
    return lines + [f"{value} is left out: {why}" for value, why in unfit.items()]


def _swept(what_if: WhatIf, settings: list[Setting], swept: list[Setting]) -> tuple[list[Simulated], dict[str, str]]:
    """The simulations of a sweep; and the values that can't be, each with the reason.

    Raises:
        InvalidConfig: none can be.
    """
    found: list[Simulated] = []
    unfit: dict[str, str] = {}
    for value in swept:
        try:
            found.append(what_if.run([*settings, value]))
        except InvalidConfig as error:
            unfit[str(value)] = str(error)
            if len(unfit) == len(swept):
                raise
    return found, unfit


def _lines(what_if: WhatIf, base: Simulated, found: list[Simulated], swept: bool) -> list[str]:
    if swept:
        return sweep_lines(what_if, base, found, shutil.get_terminal_size((100, 24)).columns)
    return what_if_lines(what_if, base, found[0])


def _write(path: Path, text: str) -> None:
    if path.suffix != ".svg":
        raise InvalidConfig(f"--plot {path}: must be a file whose name ends in .svg")
    with writing(path, "--plot") as file:
        file.write(text.encode())
