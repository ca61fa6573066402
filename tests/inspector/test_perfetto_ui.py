"""A trace in Perfetto's own UI, in headless Chromium: it opens, shows the tracks in their order, without a fault."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from journals import busy_engine
from npm_packages import installed
from perfetto_checks import arrows, write_trace
from trace_processor import web_dist

PACKAGES = ("playwright-core@1.65.1",)
SCRIPT = Path(__file__).parents[1] / "support" / "perfetto_ui.cjs"


def test_the_ui_opens_a_trace(
    require: Callable[[str], str], lacks: Callable[[str], NoReturn], tmp_path: Path
) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or lacks("chromium")
    node, packages = require("node"), installed(PACKAGES, require("npm"), lacks)
    engine = busy_engine(policy="priority")
    engine.core.close()
    writer = write_trace(engine.events, tmp_path / "trace").writer
    picture = tmp_path / "page.png"
    done = subprocess.run(
        [node, str(SCRIPT), chromium, str(web_dist()), str(tmp_path / "trace"), str(picture)],
        capture_output=True, text=True, timeout=180,
        env={**os.environ, "NODE_PATH": str(packages / "node_modules"), "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert writer is not None
    assert (seen["faults"], seen["errors"]) == ([], 0)
    assert (seen["slices"], seen["values"]) == (writer.slices + writer.instants, writer.values)
    assert seen["flows"] == len(arrows(engine.events)) > 3
    (run,) = (children for name, children in seen["tree"] if name == "nanolens 0: fake, run test 1")
    (engine_name, of_engine), (requests_name, requests) = run
    assert (engine_name, requests_name) == ("Engine", "Requests")
    assert [name for name, _ in of_engine] == [
        "Steps", "free blocks", "waiting", "running", "paused", "tokens/s", "output tokens/s",
    ]  # fmt: skip
    assert len(requests) == 24
    assert requests[5] == ["req-5", [["seq 5", []], ["seq 6", []]]]
    assert picture.stat().st_size > 20_000  # not an empty page
