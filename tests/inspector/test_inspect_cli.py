"""nano-inspect's command line: flags, --once, --json, exit codes, and errors in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fake_source import FakeSource
from journals import busy_engine
from nanolens.errors import InspectError
from nanolens.inspector import inspect_cli
from nanolens.inspector.inspect_cli import EXIT_FAILED, EXIT_OK, EXIT_USAGE, first_view, main
from nanolens.inspector.tui.app import NanoInspectApp
from nanolens.inspector.tui.picker_screen import Choice
from nanolens.inspector.view import Moment, View


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What was opened; each gives a fake source, kept behind its arguments."""
    calls: list[tuple[Any, ...]] = []

    def open_source(*arguments: Any) -> FakeSource:
        calls.append((*arguments, source := FakeSource()))
        return source

    monkeypatch.setattr(inspect_cli, "open_source", open_source)
    monkeypatch.delenv("NANOLENS_API_KEY", raising=False)
    return calls


@pytest.fixture
def apps(monkeypatch: pytest.MonkeyPatch) -> list[NanoInspectApp]:
    """Apps that would have run, on a terminal."""
    ran: list[NanoInspectApp] = []
    monkeypatch.setattr(NanoInspectApp, "run", lambda app: ran.append(app))
    monkeypatch.setattr(inspect_cli, "_has_screen", lambda: True)
    return ran


def test_once_prints_what_is_there_as_text(opened: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["http://127.0.0.1:8000", "--once"]) == EXIT_OK
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0] == "http://127.0.0.1:8000: live"
    assert "model fake, run test, step 28" in lines[1]
    assert "free blocks 1/24, running 3 +4 paused, waiting 2" in lines[2]
    assert lines[4].split()[:4] == ["id", "request", "state", "phase"]
    assert len(lines) == 5 + 9 and lines[10].split()[:3] == ["5", "low", "WAITING"]
    assert opened[0][:3] == ("http://127.0.0.1:8000", None, None) and opened[0][-1].closed == 1


def test_json_prints_what_is_there_as_json(opened: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["/runs/journal", "--json", "--run", "r1"]) == EXIT_OK
    said = json.loads(capsys.readouterr().out)
    assert said["step"] == 28 and said["counts"] == {"PAUSED": 4, "RUNNING": 3, "WAITING": 2}
    assert said["blocks"] | {"free": 1, "total": 24, "shared": 2} == said["blocks"]
    low = said["sequences"][5]
    assert low["request"] == "low" and low["residency"] == "host" and all(entry < 0 for entry in low["block_table"])
    assert set(said["waiting"]) == {5, 8}
    assert said["source"]["state"] == "live" and said["steps"][-1]["step"] == 28
    assert opened[0][:3] == ("/runs/journal", None, "r1")


def test_what_a_terminal_would_act_on_is_not_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = FakeSource()
    source.title = "\x1b[31mred"
    monkeypatch.setattr(inspect_cli, "open_source", lambda *_: source)
    main(["x", "--once"])
    assert "\x1b" not in capsys.readouterr().out


def test_a_key_comes_from_the_flag_or_the_environment(opened: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANOLENS_API_KEY", "from-environment")
    main(["http://h:1", "--once"])
    main(["http://h:1", "--once", "--api-key", "from-flag"])
    assert [call[1] for call in opened] == ["from-environment", "from-flag"]


def test_what_can_not_be_opened_is_one_line_and_a_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = FakeSource()
    source.fail_start = "nothing answers at http://127.0.0.1:1"
    monkeypatch.setattr(inspect_cli, "open_source", lambda *_: source)
    assert main(["http://127.0.0.1:1", "--once"]) == EXIT_FAILED
    err = capsys.readouterr().err
    assert err == "nano-inspect: nothing answers at http://127.0.0.1:1\n" and source.closed == 1


def test_a_directory_that_is_no_journal_is_said_to_be_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--once"]) == EXIT_FAILED
    err = capsys.readouterr().err
    assert err.startswith("nano-inspect: ") and str(tmp_path) in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--once"], "need a TARGET"),
        (["--json"], "need a TARGET"),
        (["--demo", "http://h:1"], "--demo starts its own engine"),
        (["--run", "r1"], "--run needs the directory"),
        (["x", "--web", "--once"], "--web shows a screen"),
        (["x", "--interval", "0"], "0.05 to 60"),
        (["x", "--interval", "nan"], "0.05 to 60"),
        (["x", "--interval", "soon"], "0.05 to 60"),
        (["x", "--web", "0"], "give a port"),
        (["x", "--web", "70000"], "give a port"),
        (["x", "y"], "unrecognized arguments"),
    ],
)
def test_wrong_usage_is_said(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == EXIT_USAGE and words in capsys.readouterr().err


def test_without_a_terminal_nothing_is_drawn(
    opened: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TEXTUAL_DRIVER", raising=False)
    assert main(["http://h:1"]) == EXIT_FAILED
    assert "no terminal" in capsys.readouterr().err and not opened


def test_a_dumb_terminal_is_no_screen(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("TEXTUAL_DRIVER", raising=False)
    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("sys.stdout", Terminal())
    for term, has in (("dumb", False), ("xterm-256color", True)):
        monkeypatch.setenv("TERM", term)
        assert inspect_cli._has_screen() is has


class Terminal:
    def isatty(self) -> bool:
        return True


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("flag", ["--once", "--json"])
def test_output_that_can_not_be_written_is_one_line(flag: str, tmp_path: Path) -> None:
    busy_engine(tmp_path).close()
    command = [sys.executable, "-P", "-m", "nanolens.inspector.inspect_cli", str(tmp_path), flag]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "nano-inspect: the output can't be written (No space left on device)\n"


def test_the_app_gets_source_and_interval(opened: list[Any], apps: list[NanoInspectApp]) -> None:
    assert main(["http://h:1", "--interval", "2"]) == EXIT_OK
    (app,) = apps
    assert app._source is opened[0][-1] and app._interval == 2


def test_without_a_target_the_app_finds_and_opens(opened: list[Any], apps: list[NanoInspectApp]) -> None:
    assert main(["--api-key", "k"]) == EXIT_OK
    (app,) = apps
    assert app._source is None and app._find is not None and app._open is not None
    app._open(Choice("/j", "r1", "journal", "dead", "m", ""))
    assert opened[0][:3] == ("/j", "k", "r1")


def test_the_words_that_the_app_ends_with_are_printed(
    opened: list[Any], apps: list[NanoInspectApp], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(NanoInspectApp, "run", lambda app: "no right: give --api-key")
    assert main(["http://h:1"]) == EXIT_FAILED
    assert capsys.readouterr().err == "nano-inspect: no right: give --api-key\n"


def test_demo_opens_its_own_source(apps: list[NanoInspectApp], monkeypatch: pytest.MonkeyPatch) -> None:
    source = FakeSource()
    monkeypatch.setattr("nanolens.inspector.sources.demo.DemoSource", lambda: source)
    assert main(["--demo"]) == EXIT_OK
    assert apps[0]._source is source


def test_a_first_view_is_waited_for_while_there_may_be_one() -> None:
    class Late(FakeSource):
        def view(self, moment: Moment | None = None) -> View:
            self.asked.append(("view",))
            if len(self.asked) < 3:
                raise InspectError("nothing yet")
            return super().view(moment)

    assert first_view(Late()).keyframe.step == 28


def test_a_first_view_that_never_comes_is_an_error() -> None:
    source = FakeSource()
    source.trouble = "damaged"
    source.status_now = replace(source.status_now, state="dead")
    with pytest.raises(InspectError, match="damaged"):
        first_view(source)


def test_web_passes_the_flags_on_and_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Any] = []
    monkeypatch.setattr(inspect_cli, "serve", lambda *arguments: served.append(arguments))
    monkeypatch.setenv("NANOLENS_API_KEY", "")
    assert main(["http://h:1", "--api-key", "secret", "--web", "9000"]) == EXIT_OK
    assert served == [(["http://h:1", "--interval", "0.5"], 9000)]
    assert os.environ["NANOLENS_API_KEY"] == "secret"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out.startswith("nano-inspect 0.")
