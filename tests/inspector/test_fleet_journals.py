"""Journals that a fleet's folder holds beside those of busy replicas: idle ones, those of an earlier fleet, tries."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from nanolens.inspector.trace_cli import main
from nanolens.telemetry.culprit import Culprit
from nanolens.telemetry.events import AnyEvent, EngineStarted, RequestArrived, RequestFinished, RequestRefused
from nanolens.telemetry.latency import Breakdown
from planted_runs import MS, Planted, PlantedRun, write_events

S = 1_000_000_000
WALL = 1_795_900_000 * S
Output = pytest.CaptureFixture[str]


def replica(
    path: Path, requests: Iterable[Planted] = (), at: int = 0, change: Callable[[AnyEvent], None] | None = None,
    run: Callable[[PlantedRun], None] | None = None,
) -> Path:  # fmt: skip
    """The journal of a replica that started `at` nanoseconds after the fleet's clock began; its run is named by it."""
    planted = PlantedRun(f"run-{path.name}")
    planted.t = at + 1000
    started = planted.events[0]
    assert isinstance(started, EngineStarted)
    started.t, started.wall_offset_ns, started.boot_id = planted.t, WALL, "boot"
    for request in requests:
        planted.serve(request)
    if run is not None:
        run(planted)
    for event in planted.events:
        if change is not None:
            change(event)
    return write_events(path, planted.events, planted.run_id)


def said(capsys: Output, *arguments: object) -> str:
    assert main([str(argument) for argument in arguments]) == 0
    return " ".join(capsys.readouterr().out.split())


def as_json(capsys: Output, *arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said(capsys, *arguments, "--json"))
    return found


def refused(capsys: Output, *arguments: object) -> str:
    assert main([str(argument) for argument in arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize("order", ["idle busy", "busy idle", "idle busy second"])
def test_a_replica_that_had_no_request_keeps_nobody_from_being_explained(
    tmp_path: Path, capsys: Output, order: str
) -> None:
    replica(tmp_path / "idle")
    replica(tmp_path / "busy", [Planted()])
    replica(tmp_path / "second", [Planted()])
    journals = [tmp_path / name for name in order.split()]
    for command in ("explain", "top"):
        text = said(capsys, command, *journals)
        assert "idle: run run-idle, fake: 0 requests" in text and "busy: run run-busy, fake: 1 request" in text
    assert "idle prefix cache:" not in said(capsys, "top", *journals)  # nothing to say of its taxes
    told = as_json(capsys, "explain", *journals)["replicas"]
    assert [one["replica"] for one in told] == order.split()


def test_a_side_of_a_comparison_may_hold_an_idle_replica(tmp_path: Path, capsys: Output) -> None:
    idle, busy = replica(tmp_path / "idle"), replica(tmp_path / "busy", [Planted()])
    other = replica(tmp_path / "other", [Planted()])
    found = as_json(capsys, "compare", busy, other, "--also-b", idle)
    assert (found["a"]["requests"], found["b"]["requests"]) == (1, 1)


def test_a_fleet_without_any_request_is_refused_by_all_its_names(tmp_path: Path, capsys: Output) -> None:
    def refuse(run: PlantedRun) -> None:
        run.events.append(RequestRefused(run.t, "long", "prompt", "PromptTooLong"))

    journals = [replica(tmp_path / "a"), replica(tmp_path / "b", run=refuse)]
    for command in (["explain", *journals], ["top", *journals]):
        line = refused(capsys, *command)
        assert f"{journals[0]}: run run-a: holds no request;" in line
        assert f"{journals[1]}: run run-b: holds no request but 'long' was refused: prompt (PromptTooLong)" in line


def test_a_comparison_says_of_which_journal_each_note_is(tmp_path: Path, capsys: Output) -> None:
    def tear(path: Path) -> Path:
        (file,) = path.iterdir()
        file.write_bytes(file.read_bytes() + b"\x00")
        return path

    alone = tear(replica(tmp_path / "alone", [Planted()] * 3))
    whole, torn = replica(tmp_path / "whole", [Planted()] * 2), tear(replica(tmp_path / "torn", [Planted()]))
    text = said(capsys, "compare", alone, whole, "--also-b", torn)
    cost, cut = "a step's cost, fitted to {} steps, is known to 0%", "an unfinished frame of 1 bytes at the end"
    assert f"output tokens; {cost.format(15)}; {cut}" in text  # the one of A: nothing to tell apart
    assert f"; {whole}: {cost.format(10)}; {torn}: a step's cost was fitted to 5 steps" in text
    assert f"{torn}: a step's cost was fitted to 5 steps, too few to tell its error; {cut}" in text


@pytest.mark.parametrize(("outputs", "count"), [(1, "1 step"), (5, "5 steps")])
def test_a_cost_model_of_few_steps_claims_no_error(tmp_path: Path, capsys: Output, outputs: int, count: str) -> None:
    few, many = replica(tmp_path / "few", [Planted(outputs=outputs)]), replica(tmp_path / "many", [Planted(outputs=6)])
    words = f"fitted to {count}, too few to tell its error"
    commands = [["explain", few], ["explain", few, many], ["top", few], ["top", few, many], ["compare", many, few]]
    for command in commands:
        text = said(capsys, *command)
        assert words in text, text
        assert ("fitted to 6 steps" in text) == (many in command)


@pytest.mark.parametrize("offset", [-(2**63), 2**63 - 1, 2**64 - 1])
def test_a_wall_clock_that_is_far_off_stops_nothing(tmp_path: Path, capsys: Output, offset: int) -> None:
    def move(event: AnyEvent) -> None:
        if isinstance(event, EngineStarted):
            event.wall_offset_ns = offset

    far, near = replica(tmp_path / "far", [Planted()] * 2, change=move), replica(tmp_path / "near", [Planted()])
    for command in (["explain", far], ["explain", far, near], ["compare", far, near], ["check", far], ["tail", far]):
        said(capsys, *command)
    for journals in ([far], [far, near]):
        cohorts = as_json(capsys, "top", *journals)["cohorts"]["hour"]
        assert sum(cohort["requests"] for cohort in cohorts) == 1 + len(journals)
    year = {-(2**63): "1677-09-21", 2**63 - 1: "2262-04-11", 2**64 - 1: "2554-07-21"}[offset]
    assert as_json(capsys, "top", far)["cohorts"]["hour"][0]["label"].startswith(year)
    rows = said(capsys, "top", far, "--csv", "-").split()
    assert rows[1].startswith(f"req-0,{offset + 1000},")


def renamed(name: str) -> Callable[[AnyEvent], None]:
    """Gives the only request of a replica another id."""

    def rename(event: AnyEvent) -> None:
        if getattr(event, "request", ""):
            event.request = name  # type: ignore[union-attr]

    return rename


def test_top_names_the_replica_of_each_of_the_slowest_and_never_cuts_it(tmp_path: Path, capsys: Output) -> None:
    uuid = "4eb26459-5b19-457c-947a-0123456789ab"
    replica(tmp_path / "3ria5ork", [Planted(wait=900 * MS)], change=renamed(uuid))
    replica(tmp_path / "pcgdqbet", [Planted(wait=800 * MS)], change=renamed("both"))
    replica(tmp_path / "uxubdrmv", [Planted()], change=renamed("both"))
    long_name = "a-replica-with-a-name-of-many-letters"
    replica(tmp_path / long_name, [Planted(wait=700 * MS)], change=renamed(uuid[::-1]))
    journals = [tmp_path / name for name in ("3ria5ork", "pcgdqbet", "uxubdrmv", long_name)]
    assert main(["top", *map(str, journals)]) == 0
    lines = capsys.readouterr().out.splitlines()
    begin = lines.index("the slowest, for nano-trace explain") + 1
    names = [line.split()[0] for line in lines[begin : begin + 4]]
    assert names == [f"{uuid}@3ria5ork", "both@pcgdqbet", f"{uuid[::-1][:7]}…@{long_name}", "both@uxubdrmv"]
    assert max(map(len, lines[begin : begin + 2])) <= 81
    named = as_json(capsys, "top", *journals)["named"]
    assert [(one["request"], one["replica"]) for one in named] == [
        (uuid, "3ria5ork"), ("both@pcgdqbet", "pcgdqbet"), (uuid[::-1], long_name), ("both@uxubdrmv", "uxubdrmv"),
    ]  # fmt: skip


def test_top_names_the_replica_of_a_culprit_whose_id_is_long(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid = "4eb26459-5b19-457c-947a-0123456789ab"

    class Finder:
        def __init__(self, latency: object) -> None: ...

        def find(self, breakdown: Breakdown, part: str, by: str) -> list[Culprit]:
            half = breakdown.parts[part] // 2
            return [Culprit("holder", uuid, 1, half, "held"), Culprit("gap", "", 1, half, "gap; lost")]

    monkeypatch.setattr("nanolens.inspector.tail_culprits.CulpritFinder", Finder)
    journals = [replica(tmp_path / name, [Planted(wait=wait * MS), *[Planted()] * 9])
                for name, wait in (("3ria5ork", 900), ("second", 800))]  # fmt: skip
    assert "holder 4eb26459-5b19-…@3ria5ork: held" in said(capsys, "top", *journals)
    assert "gap of 3ria5ork: lost" in said(capsys, "top", *journals)


def span_of(number: int) -> str:
    return f"00-{number:032x}-{number:016x}-01"


def routed(number: int, attempt: int, name: str = "", reason: str = "abort") -> Callable[[AnyEvent], None]:
    """Makes the only request of a replica an attempt of a router, as one of its own spans; it ends for this reason."""
    rename = renamed(name or f"sent-{number}")

    def change(event: AnyEvent) -> None:
        rename(event)
        if isinstance(event, RequestArrived):
            event.traceparent, event.route = span_of(number), {"attempt": attempt, "reason": "load", "replica": "x"}
        if isinstance(event, RequestFinished):
            event.finish_reason = reason

    return change


@pytest.fixture
def tried(tmp_path: Path) -> list[Path]:
    """A request that replica a failed at once and c served a second later, and one that b served."""
    return [
        replica(tmp_path / "a", [Planted(outputs=0, wait=100 * MS)], change=routed(1, 1)),
        replica(tmp_path / "b", [Planted()], change=routed(2, 1)),
        replica(tmp_path / "c", [Planted()], at=1 * S, change=routed(1, 2, reason="length"), run=early),
    ]


def early(run: PlantedRun) -> None:
    """Has a replica begin together with the others, whenever it was asked for something."""
    run.events[0].t = 1000  # type: ignore[union-attr]


def test_tries_of_one_request_are_counted_once_beside_their_number(tried: list[Path], capsys: Output) -> None:
    for command in ("explain", "top"):
        assert "2 requests in 3 tries" in said(capsys, command, *tried)
        assert as_json(capsys, command, *tried)["sent"] == 2
    assert "2 replicas: 2 requests, e2e" in said(capsys, "top", *tried[:2])
    found = as_json(capsys, "compare", tried[0], tried[1], "--also-a", tried[2])
    assert (found["a"]["tried_again"], found["b"]["tried_again"]) == (1, 0)
    text = said(capsys, "compare", tried[0], tried[1], "--also-a", tried[2])
    assert text.count("further tries of a request among all of these: 1") == 1


def test_what_a_client_waited_through_all_tries_is_told(tried: list[Path], capsys: Output) -> None:
    first, second = as_json(capsys, "explain", *tried, "sent-1")["requests"]
    assert first["tries_ns"] == second["tries_ns"] == 1 * S + second["total_ns"]
    text = said(capsys, "explain", *tried, "sent-1")
    assert text.startswith("sent-1 was tried on a (abort after 100ms), then on c (length after 115ms). From ")
    assert "From the first arrival to the last end it took 1.11s. sent-1@a" in text
    (alone,) = as_json(capsys, "explain", *tried, "sent-2")["requests"]
    assert alone["tries_ns"] == alone["total_ns"] and "From the first" not in said(capsys, "explain", *tried, "sent-2")


def test_and_up_to_the_first_token(tried: list[Path], capsys: Output) -> None:
    (one,) = as_json(capsys, "explain", *tried, "sent-1", "--by", "ttft")["requests"]
    assert one["tries_ns"] == 1 * S + one["total_ns"]
    text = said(capsys, "explain", *tried, "sent-1", "--by", "ttft")
    assert "From the first arrival to the first token it took 1.03s." in text


def test_a_last_try_that_goes_on_is_told_so_far(tmp_path: Path, capsys: Output) -> None:
    def cut(run: PlantedRun) -> None:
        del run.events[-3:]

    journals = [
        replica(tmp_path / "a", [Planted(outputs=0)], change=routed(1, 1)),
        replica(tmp_path / "c", [Planted()], at=1 * S, change=routed(1, 2), run=cut),
    ]
    assert "From the first arrival on it has taken 1.11s so far." in said(capsys, "explain", *journals, "sent-1")


def test_an_attempt_whose_journal_is_not_given_is_missed(tmp_path: Path, capsys: Output) -> None:
    journals = [
        replica(tmp_path / "a", [Planted(outputs=0)], change=routed(1, 1)),
        replica(tmp_path / "c", [Planted()], change=routed(1, 3)),
    ]
    assert "1 other attempt of the router is in no journal given." in said(capsys, "explain", *journals, "sent-1")


def test_prompts_of_one_call_are_requests_of_their_own(tmp_path: Path, capsys: Output) -> None:
    def two(run: PlantedRun) -> None:
        for event in run.events:
            if isinstance(event, RequestArrived):
                event.traceparent, event.route = span_of(1), {"attempt": 1}

    journals = [replica(tmp_path / "a", [Planted()] * 2, run=two), replica(tmp_path / "b", [Planted()] * 2, run=two)]
    assert as_json(capsys, "explain", *journals)["sent"] == 2  # req-0 and req-1, each tried twice
    assert as_json(capsys, "explain", *journals, "req-1@a")["requests"][0]["tries"][1]["replica"] == "b"


def test_two_requests_of_one_span_without_a_router_are_no_tries(tmp_path: Path, capsys: Output) -> None:
    def spanned(name: str) -> Callable[[AnyEvent], None]:
        def change(event: AnyEvent) -> None:
            renamed(name)(event)
            if isinstance(event, RequestArrived):
                event.traceparent = span_of(1)

        return change

    journals = [replica(tmp_path / name, [Planted()], change=spanned(f"of-{name}")) for name in "ab"]
    assert as_json(capsys, "explain", *journals)["sent"] == 2


def test_journals_of_an_earlier_fleet_are_pointed_out(tmp_path: Path, capsys: Output) -> None:
    old = [replica(tmp_path / name, [Planted()]) for name in ("old-1", "old-2")]
    new = [replica(tmp_path / name, [Planted()], at=90 * S) for name in ("new-1", "new-2")]
    words = "old-1 old-2 had ended before new-1 new-2 began: if that was an earlier start of the fleet, leave it out"
    for command in (["explain", *old, *new], ["top", *old, *new], ["compare", old[0], new[0], "--also-a", new[1]]):
        assert ("had ended before new-" in said(capsys, *command)), command
    assert words in said(capsys, "explain", *old, *new)
    found = {one["replica"]: one["generation"] for one in as_json(capsys, "top", *old, *new)["replicas"]}
    assert found == {"old-1": 1, "old-2": 1, "new-1": 0, "new-2": 0}
    assert "had ended before" not in said(capsys, "explain", *new) + said(capsys, "top", *old)


def test_one_that_was_replaced_is_of_the_same_fleet(tmp_path: Path, capsys: Output) -> None:
    """Its successor began when it was gone; a third replica ran all the time."""
    dead = replica(tmp_path / "dead", [Planted()])
    successor = replica(tmp_path / "successor", [Planted()], at=30 * S)
    steady = replica(tmp_path / "steady", [Planted()] * 60)
    assert "had ended before" not in said(capsys, "explain", dead, steady, successor)
    assert "dead had ended before successor began" in said(capsys, "explain", dead, successor)
