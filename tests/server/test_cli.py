"""`nano-serve` as a command: its help, and what it says and returns where it can't start."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from nanolens.server.cli import GROUPS, SHORT_FLAGS, main, make_parser
from nanolens.server.settings import OPTIONS


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "nanolens.server.cli", *arguments],
        capture_output=True, text=True, timeout=120, env=os.environ | environment, check=False,
    )  # fmt: skip


def test_every_option_is_in_one_group_of_the_help() -> None:
    named = Counter(name for names in GROUPS.values() for name in names)
    assert set(named) == OPTIONS.keys() - {"model"} and set(named.values()) == {1}


def test_the_help_shows_each_group_and_each_flag_with_its_default() -> None:
    text = make_parser().format_help()
    assert all(f"{title}:" in text for title in GROUPS)
    for option in OPTIONS.values():
        assert option.name == "model" or option.flag in text
    assert "[8000]" in text and "[off]" in text and SHORT_FLAGS["preemption_mode"] in text


def test_a_flag_that_is_not_given_sets_nothing() -> None:
    assert vars(make_parser().parse_args([])) == {}


def test_flags_become_settings_of_their_types() -> None:
    given = ["m", "--no-audit", "--preemption", "swap", "--api-key", "a,b", "--api-key", "c", "--max-queue", "none"]
    found = vars(make_parser().parse_args(given))
    assert found == {
        "model": "m", "audit": False, "preemption_mode": "swap", "api_key": ["a", "b", "c"], "max_queue": None,
    }  # fmt: skip


@pytest.mark.parametrize("flags", [["--port", "http"], ["--policy", "lifo"], ["--num-blokcs", "3"]])
def test_a_wrong_flag_ends_with_2_and_is_named(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(flags)
    assert caught.value.code == 2
    assert flags[0] in capsys.readouterr().err


def test_a_setting_that_can_not_work_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--block-size", "0"]) == 2
    assert "block_size=0: must be" in capsys.readouterr().err


def test_a_model_that_does_not_exist_ends_with_1_and_its_name() -> None:
    ran = run("dummy:nothing", "--port", "0")
    assert ran.returncode == 1 and "dummy:nothing" in ran.stderr and "Traceback" not in ran.stderr


def test_a_port_that_is_taken_is_told_before_anything_is_loaded() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ran = run("smollm2", "--port", str(taken.getsockname()[1]))
    assert ran.returncode == 1 and "can't listen there" in ran.stderr and "smollm2" not in ran.stderr


def test_a_setting_that_only_the_engine_can_judge_ends_with_1_and_its_words(tmp_path: Path) -> None:
    ran = run("dummy:llama-tiny", "--port", "0", "--device", "cpu", "--max-model-len", "999999", "--no-metrics")
    assert ran.returncode == 1 and "max_model_len=999999" in ran.stderr and "Traceback" not in ran.stderr
