"""nano-trace takes its flags before, between and behind the names, and says what is wrong as it did."""

from __future__ import annotations

import argparse
import json
from itertools import permutations
from pathlib import Path

import pytest

from nanolens.inspector.free_order import FreeOrderParser
from nanolens.inspector.trace_cli import main
from planted_runs import Planted, planted_journal

Output = pytest.CaptureFixture[str]


@pytest.fixture
def journals(tmp_path: Path) -> list[str]:
    return [str(planted_journal(tmp_path / name, [Planted()] * 2, f"run-{name}")) for name in "ab"]


@pytest.mark.parametrize("flags", [["--json"], ["--json", "--by", "ttft"]])
def test_a_flag_may_stand_anywhere(journals: list[str], capsys: Output, flags: list[str]) -> None:
    for names in (["explain", journals[0], "req-1"], ["explain", *journals, "req-1@b"], ["top", *journals],
                  ["compare", *journals]):  # fmt: skip
        found = set()
        for place in range(1, len(names) + 1):
            assert main([*names[:place], *flags, *names[place:]]) == 0
            found.add(capsys.readouterr().out)
        assert len(found) == 1 and isinstance(json.loads(found.pop()), dict)


def test_flags_may_stand_apart(journals: list[str], capsys: Output) -> None:
    assert main(["compare", "--json", journals[0], "--also-a", journals[1], journals[1], "--by", "ttft"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["by"], found["b"]["journal"]) == ("ttft", journals[1])
    assert [one["journal"] for one in found["a"]["also"]] == [journals[1]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["explain", "J", "--bad", "req-1"], "unrecognized arguments: --bad"),
        (["explain", "J", "--slowest"], "--slowest: expected one argument"),
        (["top", "--json"], "required: JOURNAL"),
        (["compare", "J", "--json"], "required: B"),
        (["check", "J", "more"], "unrecognized arguments: more"),
        (["explain", "J", "--slowest", "2", "--p99"], "not allowed with argument"),
    ],
)
def test_wrong_usage_is_said_as_before(journals: list[str], capsys: Output, words: list[str], said: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main([journals[0] if word == "J" else word for word in words])
    assert ended.value.code == 2 and said in capsys.readouterr().err


def test_behind_two_dashes_all_are_names(journals: list[str], capsys: Output) -> None:
    assert main(["explain", "--json", journals[0], "--", "--by"]) == 2
    assert "holds no request '--by'" in capsys.readouterr().err


def test_what_is_repeated_is_kept_in_its_order() -> None:
    parser = argparse.ArgumentParser()
    command = parser.add_subparsers(parser_class=FreeOrderParser).add_parser("do")
    command.add_argument("names", nargs="*")
    command.add_argument("--also", action="append", default=[])
    for words in permutations([["--also", "1"], ["a"], ["b"]]):
        found = parser.parse_args(["do", *(word for pair in words for word in pair), "--also", "2"])
        assert found.also == ["1", "2"] and sorted(found.names) == ["a", "b"]
