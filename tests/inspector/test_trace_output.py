"""nano-trace where its output can't be written, or its reader goes: one line, and an exit code that tells it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from journals import busy_engine
from planted_causes import prompt, steps, written
from timed_engine import timed_engine

COMMAND = [sys.executable, "-P", "-m", "nanolens.inspector.trace_cli"]
ASKED = ["tail J", "tail J --json", "check J", "explain J", "explain J --json", "top J", "compare J J", "replay J",
         "export J --csv -", "top J --csv -"]  # fmt: skip


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("journal")
    busy_engine(path).core.close()
    return path


def run(line: str, journal: Path, redirection: str) -> subprocess.CompletedProcess[str]:
    words = [str(journal) if word == "J" else word for word in line.split()]
    script = f'"$@" {redirection}'
    return subprocess.run(["sh", "-c", script, "sh", *COMMAND, *words], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(("redirection", "why"), [(">/dev/full", "No space left on device"), (">&-", "it is closed")])
@pytest.mark.parametrize("line", ASKED)
def test_an_output_that_cannot_be_written_is_told_in_one_line(
    line: str, redirection: str, why: str, journal: Path
) -> None:
    done = run(line, journal, redirection)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == f"nano-trace: the output can't be written ({why})"
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr


def test_help_can_be_printed() -> None:
    done = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "what the slowest 1% spend their time on" in " ".join(done.stdout.split())


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8", "ascii:surrogateescape"])
@pytest.mark.parametrize("line", ["explain J", "top J", "compare J J", "top J --csv -"])
def test_what_an_encoding_does_not_have_is_replaced(line: str, encoding: str, tmp_path: Path) -> None:
    journal = busy(tmp_path, "n\N{CJK UNIFIED IDEOGRAPH-4E2D}\N{BLACK STAR}")
    words = [str(journal) if word == "J" else word for word in line.split()]
    done = subprocess.run([*COMMAND, *words], capture_output=True, timeout=120,
                          env=os.environ | {"PYTHONIOENCODING": encoding})  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    text = done.stdout.decode(encoding.partition(":")[0])
    if encoding != "utf-8":
        assert ("n??" in text) != line.startswith("compare")
    if line == "explain J":
        assert ("###" in text) == (encoding != "utf-8")


def test_an_encoding_with_a_rule_of_its_own_keeps_it(tmp_path: Path) -> None:
    done = subprocess.run([*COMMAND, "explain", busy(tmp_path, "n\N{BLACK STAR}")], capture_output=True, timeout=120,
                          env=os.environ | {"PYTHONIOENCODING": "ascii:backslashreplace"})  # fmt: skip
    assert done.returncode == 0 and rb"n\u2605" in done.stdout


def test_nano_inspect_prints_to_any_encoding_once(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "nanolens.inspector.inspect_cli", str(busy(tmp_path, "n\N{BLACK STAR}"))]
    for flag in ("--once", "--json"):
        done = subprocess.run([*command, flag], capture_output=True, timeout=120,
                              env=os.environ | {"PYTHONIOENCODING": "ascii"})  # fmt: skip
        assert (done.returncode, done.stderr) == (0, b"") and done.stdout.isascii()


def busy(path: Path, name: str) -> Path:
    """A journal in which the request of this name took longest."""
    engine, _ = timed_engine()
    engine.add_request(prompt(8), None, request_id=name)
    steps(engine, 8)
    engine.core.abort(name)
    return written(engine, path)


def test_a_path_with_a_line_end_makes_no_second_line(journal: Path) -> None:
    for command in (["tail"], ["export", "--csv", "-"]):
        done = subprocess.run([*COMMAND, command[0], "no\nsuch", *command[1:]], capture_output=True, text=True,
                              timeout=60)  # fmt: skip
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
