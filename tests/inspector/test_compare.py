"""`nano-trace compare`: no change between runs of one kind, the planted part where there is one, clear errors."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from journals import stopped, writer_of
from nanolens.inspector.trace_cli import main
from planted_runs import MS, Planted, jittered, planted_journal

BASE = Planted()
COUNT = 150


def journal(path: Path, seed: int, base: Planted = BASE, **config: str | int) -> Path:
    return planted_journal(path / f"j{seed}", jittered(COUNT, base, seed), f"run{seed}", **config)


def compared(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main(["compare", *map(str, arguments), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_two_runs_of_one_kind_show_no_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = journal(tmp_path, 1), journal(tmp_path, 2)
    found = compared(capsys, a, b)
    assert found["changed"] == []
    for group in ("measures", "parts"):
        assert not any(d["changed"] for named in found[group].values() for d in named.values())
    assert main(["compare", str(a), str(b)]) == 0
    out = capsys.readouterr().out
    assert "No change of e2e can be told from chance" in out
    assert "No part changed." in " ".join(out.split())


def test_a_run_beside_itself_has_differences_of_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = journal(tmp_path, 1)
    found = compared(capsys, a, a)
    assert {d["delta_ns"] for named in found["parts"].values() for d in named.values()} == {0.0}


@pytest.mark.parametrize(
    ("part", "planted", "delta", "also"),
    [
        ("queue_no_blocks", replace(BASE, wait=40 * MS), 30 * MS, []),
        ("queue_sequence_cap", replace(BASE, reason="sequence_cap"), 10 * MS, ["queue_no_blocks"]),
        ("host_gap", replace(BASE, host=8 * MS), 35 * MS, []),
        ("own_decode", replace(BASE, device=40 * MS), 80 * MS, ["own_prefill"]),
        ("queue_no_blocks", replace(BASE, wait=2 * MS), -8 * MS, []),
    ],
)
def test_the_planted_part_is_the_one_that_changed_most(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], part: str, planted: Planted, delta: int, also: list[str]
) -> None:
    found = compared(capsys, journal(tmp_path, 1), journal(tmp_path, 2, planted))
    mean = found["parts"][part]["mean"]
    assert mean["delta_ns"] == pytest.approx(delta, rel=0.1)
    assert mean["low_ns"] < mean["delta_ns"] < mean["high_ns"]
    assert set(found["changed"]) == {part, *also}
    assert abs(mean["delta_ns"]) == pytest.approx(
        max(abs(named["mean"]["delta_ns"]) for named in found["parts"].values()), rel=0.05
    )


def test_the_words_name_the_part_and_its_interval(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = journal(tmp_path, 1), journal(tmp_path, 2, replace(BASE, wait=100 * MS), policy="sjf")
    assert main(["compare", str(a), str(b)]) == 0
    out = capsys.readouterr().out
    words = " ".join(out.split())
    assert "B was started with other settings: policy fcfs -> sjf" in words
    assert re.search("B's requests take 7[78]% longer: 116ms -> 20[0-9]ms in the mean", words)
    assert "What changed: queue_no_blocks +" in words
    row = next(line for line in out.splitlines() if line.startswith("queue_no_blocks"))
    assert row.endswith("changed")
    assert max(map(len, out.splitlines())) <= 80
    assert "\x1b" not in out


def test_the_parts_may_be_those_of_the_time_to_the_first_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = compared(capsys, journal(tmp_path, 1), journal(tmp_path, 2, replace(BASE, device=40 * MS)), "--by", "ttft")
    assert "own_decode" not in found["parts"]
    assert found["changed"] == ["own_prefill"]


def test_means_of_the_parts_add_up_to_that_of_the_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = compared(capsys, journal(tmp_path, 1), journal(tmp_path, 2))
    for value in ("a_ns", "b_ns"):
        assert sum(named["mean"][value] for named in found["parts"].values()) == pytest.approx(
            found["measures"]["e2e"]["mean"][value]
        )


def test_requests_without_a_token_have_no_part_in_the_time_to_the_first_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    requests = [*jittered(10, seed=1), *[replace(BASE, outputs=0)] * 10]
    a = planted_journal(tmp_path / "a", requests)
    found = compared(capsys, a, a, "--by", "ttft")
    assert found["a"]["requests"] == 20
    assert sum(named["mean"]["a_ns"] for named in found["parts"].values()) == pytest.approx(
        found["measures"]["ttft"]["mean"]["a_ns"]
    )


def test_two_runs_of_one_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (1, 2):
        planted_journal(tmp_path / "j", jittered(20, seed=seed), f"run{seed}")
    found = compared(capsys, tmp_path / "j", tmp_path / "j", "--run-a", "run1", "--run-b", "run2")
    assert (found["a"]["run"], found["b"]["run"]) == ("run1", "run2")


def test_only_settings_that_differ_are_told_of_and_not_where_the_journals_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = journal(tmp_path, 1, journal="here", policy="fcfs", max_num_seqs=8)
    b = journal(tmp_path, 2, journal="there", policy="fcfs", max_num_seqs=16)
    assert compared(capsys, a, b)["settings"] == {"max_num_seqs": {"a": 8, "b": 16}}


def test_other_work_is_pointed_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = journal(tmp_path, 1), journal(tmp_path, 2, replace(BASE, outputs=9))
    assert main(["compare", str(a), str(b)]) == 0
    assert "The requests are not alike in number or length" in capsys.readouterr().out


def test_a_few_requests_are_not_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = planted_journal(tmp_path / "a", jittered(3, seed=1), "a")
    b = planted_journal(tmp_path / "b", jittered(3, replace(BASE, wait=500 * MS), seed=2), "b")
    assert main(["compare", str(a), str(b)]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "There are too few requests, or they are too much alike, to tell whether e2e changed: 11" in words
    assert "No part changed" not in words


def test_nonsense_is_told_of_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = journal(tmp_path, 1)
    idle = tmp_path / "idle"
    writer = writer_of(idle)
    writer.append([stopped()])
    writer.close()
    (tmp_path / "empty").mkdir()
    cases: list[tuple[list[object], str]] = [
        ([good, tmp_path / "gone"], "no such file or directory"),
        ([tmp_path / "empty", good], "holds no journal"),
        ([good, idle], "holds no request"),
        ([good, good, "--run-b", "other"], "holds no run 'other'"),
    ]
    for arguments, words in cases:
        assert main(["compare", *map(str, arguments)]) == 2
        captured = capsys.readouterr()
        assert (captured.out, words in captured.err, captured.err.count("\n")) == ("", True, 1), captured.err


def test_an_impossible_seed_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["compare", "a", "b", "--seed", "-1"])
    assert error.value.code == 2
