"""Journals of several real engines read as one: parts, clock, order, tries, culprits, and nonsense in one line."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nanolens.inspector.fleet_reading import NS, Fleet, read_fleet
from nanolens.inspector.latency_reading import read_latency
from nanolens.inspector.trace_cli import main
from nanolens.telemetry.clock import boot_id, wall_offset_ns
from real_engine import greedy, prompt_of, tiny_llm

Output = pytest.CaptureFixture[str]
REPLICAS = ("a", "b", "c")
ROUTED = "00-" + "5" * 32 + "-" + "7" * 16 + "-01"  # the router's span of the request that two replicas got
SHARED = "00-" + "6" * 32 + "-" + "8" * 16 + "-01"  # a span that asked one replica for two requests


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Three runs at the same time, with ids of their own and one id (`both`) that a and b have as tries of one request,
    one (`same`) that b and c have by chance, and a pool so short that requests wait for blocks."""
    root = tmp_path_factory.mktemp("fleet")
    engines = {name: tiny_llm(num_blocks=12, journal=str(root / name)).engine for name in REPLICAS}

    def add(name: str, request: str, length: int = 20, outputs: int = 8, traceparent: str | None = None) -> None:
        prompt = prompt_of(length, sum(map(ord, name + request)))
        engines[name].add_request(prompt, greedy(outputs), request_id=request, traceparent=traceparent)

    for number in range(4):
        for name in REPLICAS:
            add(name, f"{name}-{number}")
            engines[name].step()
    add("a", "both", traceparent=ROUTED)
    engines["a"].step()
    engines["a"].abort("both")
    add("b", "both", traceparent=ROUTED)
    add("b", "same")
    add("c", "same")
    add("c", "c-5", traceparent=SHARED)
    add("c", "c-6", traceparent=SHARED)
    for engine in engines.values():
        while engine.has_work:
            engine.step()
        engine.close()
    return [str(root / name) for name in REPLICAS]


@pytest.fixture(scope="module")
def read(fleet: list[str]) -> Fleet:
    return read_fleet(fleet)


def said(capsys: Output, *arguments: object) -> str:
    assert main([str(argument) for argument in arguments]) == 0
    return capsys.readouterr().out


def as_json(capsys: Output, *arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said(capsys, *arguments, "--json"))
    return found


def refused(capsys: Output, *arguments: object) -> str:
    assert main([str(argument) for argument in arguments]) == 2
    out = capsys.readouterr()
    (line,) = out.err.splitlines()
    assert out.out == ""
    return line


def culprits(one: dict[str, Any]) -> Iterator[str]:
    return (c["request"] for found in one["culprits"].values() for c in found if c["request"])


@pytest.mark.parametrize("by", ["e2e", "ttft"])
def test_parts_of_every_request_add_up_and_are_those_of_its_own_journal(
    fleet: list[str], capsys: Output, by: str
) -> None:
    found = as_json(capsys, "explain", *fleet, "--slowest", 99, "--by", by)["requests"]
    assert len(found) == (18 if by == "e2e" else 17)  # the one that was aborted waited for its first token
    alone = {name: as_json(capsys, "explain", path, "--slowest", 99, "--by", by)["requests"]
             for name, path in zip(REPLICAS, fleet, strict=True)}  # fmt: skip
    for one in found:
        assert sum(one["parts"].values()) == one["total_ns"]
        assert {key: one[key] for key in alone["a"][0]} in alone[one["replica"]]
    assert sum(map(len, alone.values())) == len(found)
    totals = [one["total_ns"] for one in found]
    assert totals == sorted(totals, reverse=True)


def test_culprits_are_never_of_another_journal(fleet: list[str], read: Fleet, capsys: Output) -> None:
    held = {one.name: set(one.reading.latency.tracks.requests) for one in read.replicas}
    found = as_json(capsys, "explain", *fleet, "--slowest", 99)["requests"]
    assert sum(len(list(culprits(one))) for one in found) > 10
    for one in found:
        assert set(culprits(one)) <= held[one["replica"]]
    for culprit in as_json(capsys, "top", *fleet)["culprits"]:
        assert culprit["request"] in held[culprit["replica"]] | {""}


def test_the_clocks_agree_within_what_was_measured(fleet: list[str], read: Fleet, capsys: Output) -> None:
    offsets = [read_latency(path).started.wall_offset_ns for path in fleet]
    assert read.clocks == 1 and len({one.offset_ns for one in read.replicas}) == 1
    assert read.disagreement_ns == max(offsets) - min(offsets)
    for asked in read.asked:
        by_its_own = asked.request.arrived_t + asked.replica.reading.started.wall_offset_ns
        assert abs(asked.arrived - by_its_own) <= read.disagreement_ns
    assert abs(read.replicas[0].offset_ns - wall_offset_ns()) < NS
    assert "wall offsets measured on one clock disagree by" in " ".join(said(capsys, "explain", *fleet).split())


def test_requests_come_in_the_order_in_which_they_arrived(fleet: list[str], read: Fleet, capsys: Output) -> None:
    expected = [f"{name}-{number}" for number in range(4) for name in REPLICAS]
    expected += ["both@a", "both@b", "same@b", "same@c", "c-5", "c-6"]
    assert [read.name_of(asked) for asked in read.asked] == expected
    rows = list(csv.DictReader(io.StringIO(said(capsys, "top", *fleet, "--csv", "-"))))
    assert [row["request"] for row in rows] == [name.partition("@")[0] for name in expected]
    assert [row["replica"] for row in rows] == [asked.replica.name for asked in read.asked]
    arrived = [int(row["arrived_ns"]) for row in rows]
    assert arrived == sorted(arrived)


def test_what_a_router_tried_twice_is_told_together(fleet: list[str], capsys: Output) -> None:
    found = as_json(capsys, "explain", *fleet, "both")["requests"]
    assert [(one["name"], one["replica"]) for one in found] == [("both@a", "a"), ("both@b", "b")]
    assert [[each["replica"] for each in one["tries"]] for one in found] == [["a", "b"], ["a", "b"]]
    text = " ".join(said(capsys, "explain", *fleet, "both").split())
    assert text.startswith("both was tried on a (abort after ") and ", then on b (length after " in text
    assert text.count("was tried on") == 1
    (one,) = as_json(capsys, "explain", *fleet, "both@b")["requests"]
    assert one["replica"] == "b" and len(one["tries"]) == 2


def test_what_one_span_asked_of_one_replica_are_no_tries(fleet: list[str], capsys: Output) -> None:
    (one,) = as_json(capsys, "explain", *fleet, "c-5")["requests"]
    assert [each["request"] for each in one["tries"]] == ["c-5"]


def test_an_id_that_two_replicas_have_by_chance_must_be_told_apart(fleet: list[str], capsys: Output) -> None:
    assert refused(capsys, "explain", *fleet, "same").endswith("give same@b or same@c")
    (one,) = as_json(capsys, "explain", *fleet, "same@c")["requests"]
    assert (one["request"], one["replica"]) == ("same", "c")


def test_one_tail_of_all_replicas(fleet: list[str], capsys: Output) -> None:
    found = as_json(capsys, "top", *fleet)
    assert found["requests"] == 18 and [one["replica"] for one in found["replicas"]] == list(REPLICAS)
    assert {c["label"]: c["requests"] for c in found["cohorts"]["replica"]} == {"a": 5, "b": 6, "c": 7}
    assert found["named"][0]["replica"] in REPLICAS and set(found["taxes"]) == set(REPLICAS)
    assert sum(found["slowest"]["parts"].values()) == pytest.approx(found["slowest"]["mean"])
    assert all(0 < culprit["share"] <= 1 for culprit in found["culprits"])


def test_a_side_of_a_comparison_may_be_several_journals(fleet: list[str], capsys: Output) -> None:
    a, b, c = fleet
    found = as_json(capsys, "compare", a, c, "--also-a", b, "--also-a", c, "--also-b", a, "--also-b", b)
    assert (found["a"]["requests"], found["b"]["requests"]) == (18, 18) and found["changed"] == []
    assert [one["journal"] for one in found["a"]["also"]] == [b, c]
    assert found["measures"]["e2e"]["mean"]["delta_ns"] == pytest.approx(0.0, abs=1.0)
    text = " ".join(said(capsys, "compare", a, b, "--also-b", c).split())
    runs = [read_latency(path).run for path in fleet]
    assert f"A run {runs[0]}: 5 requests" in text and f"B runs {runs[1]}, {runs[2]}: 13 requests" in text


@pytest.mark.parametrize("columns", [80, 120])
def test_lines_fit_the_terminal(
    fleet: list[str], capsys: Output, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for command in (["explain", *fleet, "--slowest", 18], ["top", *fleet]):
        assert max(map(len, said(capsys, *command).splitlines())) <= columns


def test_journals_of_one_name_are_told_apart_by_their_folders(
    fleet: list[str], tmp_path: Path, capsys: Output
) -> None:
    for name, path in zip(("x", "y"), fleet, strict=False):
        shutil.copytree(path, tmp_path / name / "journal")
    found = as_json(capsys, "explain", tmp_path / "x" / "journal", tmp_path / "y" / "journal")
    assert [one["replica"] for one in found["replicas"]] == ["x/journal", "y/journal"]


def test_a_wall_clock_that_was_set_between_two_starts_moves_nothing(read: Fleet) -> None:
    readings = [one.reading for one in read.replicas]
    started = readings[0].started
    before, started.wall_offset_ns = started.wall_offset_ns, started.wall_offset_ns + NS // 2
    try:
        moved = Fleet(readings)
    finally:
        started.wall_offset_ns = before
    assert moved.clocks == 1 and moved.disagreement_ns == pytest.approx(NS // 2, abs=NS // 10)
    assert list(map(moved.name_of, moved.asked)) == list(map(read.name_of, read.asked))


def test_hosts_that_booted_at_other_times_have_clocks_of_their_own(read: Fleet) -> None:
    readings = [one.reading for one in read.replicas]
    started = readings[2].started
    before, started.wall_offset_ns = started.wall_offset_ns, started.wall_offset_ns + 90 * NS
    try:
        apart = Fleet(readings)
    finally:
        started.wall_offset_ns = before
    assert [one.clock for one in apart.replicas] == [0, 0, 1] and apart.clocks == 2
    assert apart.disagreement_ns == abs(readings[0].started.wall_offset_ns - readings[1].started.wall_offset_ns)
    assert apart.asked[-1].replica.name == "c" and "whose error is not known" in apart.clock_words()


@pytest.mark.parametrize(
    ("boots", "offsets_s", "clocks"),
    [
        ("x x x", (0, 0.5, 0.9), [0, 0, 0]),
        ("x x x", (0, 0.5, 90), [0, 0, 1]),  # one kernel, and a time namespace or a wall clock that was set
        ("x y x", (0, 0.1, 0.2), [0, 1, 0]),  # two hosts whose offsets agree by chance
        ("x y x", (0, 0.6, 1.2), [0, 1, 2]),  # another host's offset brings those of one boot no closer
        ("- - -", (0, 0.5, 90), [0, 0, 1]),  # journals of before there were ids
        ("- x x", (0.5, 0, 0.9), [0, 0, 0]),
        ("x - y", (0, 0.1, 0.2), [0, 1, 2]),  # whose it is can't be told
        ("x - y", (0, 0.1, 90), [0, 0, 1]),
        ("x x x", (0, 0.8, 1.6), [0, 0, 1]),  # neighbours are close, but not all of them
        ("x x x", (1.6, 0, 0.8), [1, 0, 0]),
        ("- x -", (0.9, 0, -0.9), [1, 0, 0]),
    ],
)
def test_a_clock_is_shared_by_one_boot_whose_offsets_agree(
    read: Fleet, boots: str, offsets_s: tuple[float, ...], clocks: list[int]
) -> None:
    readings = []
    for one, boot, offset in zip(read.replicas, boots.split(), offsets_s, strict=True):
        told = {"boot_id": boot.strip("-"), "wall_offset_ns": 10**18 + round(offset * NS)}
        started = msgspec.structs.replace(one.reading.started, **told)
        readings.append(dataclasses.replace(one.reading, started=started))
    found = Fleet(readings)
    assert [one.clock for one in found.replicas] == clocks and found.clocks == len(set(clocks))
    assert found.disagreement_ns <= 0.9 * NS
    backwards = Fleet(readings[::-1])
    assert [one.clock for one in backwards.replicas] == clocks[::-1]
    assert [(a.arrived, a.request.request) for a in backwards.asked] == [
        (a.arrived, a.request.request) for a in found.asked
    ]


def test_real_engines_of_one_host_tell_the_same_boot(read: Fleet) -> None:
    assert {one.reading.started.boot_id for one in read.replicas} == {boot_id()}
    assert boot_id(Path("/nowhere/boot_id")) == ""


def test_nonsense_is_refused_in_one_line(fleet: list[str], tmp_path: Path, capsys: Output) -> None:
    copied = shutil.copytree(fleet[0], tmp_path / "copy")
    (tmp_path / "empty").mkdir()
    for command in ("explain", "top"):
        assert "the same journal twice" in refused(capsys, command, fleet[0], fleet[1], fleet[0] + "/.")
        assert "both hold run" in refused(capsys, command, fleet[0], fleet[1], copied)
        assert "holds no journal" in refused(capsys, command, fleet[0], tmp_path / "empty", fleet[1])
        assert "--run x: of several journals" in refused(capsys, command, *fleet, "--run", "x")
    assert "the same journal twice" in refused(capsys, "compare", fleet[0], fleet[1], "--also-b", fleet[1])
    assert "no such file" in refused(capsys, "top", *fleet, tmp_path / "gone")
    assert "no journal at" in refused(capsys, "explain", *fleet, tmp_path / "gone")
    assert "holds no request 'nobody'" in refused(capsys, "explain", *fleet, "nobody")
    assert "one or the other" in refused(capsys, "explain", *fleet, "c-5", "--p99")
    assert "--use 2: 'c-5' was used once" in refused(capsys, "explain", *fleet, "c-5", "--use", 2)
