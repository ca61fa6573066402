"""A fleet of two real servers behind a front: rows, one that goes, one that comes, one looked at alone."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from fake_front import FakeFront
from nanolens.errors import InspectError
from nanolens.inspector.fleet_rows import Fleet, FleetRow
from nanolens.inspector.inspect_cli import EXIT_FAILED, EXIT_OK, first_view, main
from nanolens.inspector.sources.fleet import FleetSource
from nanolens.inspector.sources.http_stream import IsFleet
from nanolens.inspector.sources.server_source import ServerSource
from serve import Server

KEY = "sesame"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    names = ("a1", "b2")
    with Server(tmp_path_factory.mktemp("a1")) as first, Server(tmp_path_factory.mktemp("b2")) as second:
        first.complete("the same beginning of two prompts", max_tokens=8)
        first.complete("the same beginning of two prompts", max_tokens=8)
        yield dict(zip(names, (first, second), strict=True))


@pytest.fixture
def front(servers: dict[str, Server]) -> Iterator[FakeFront]:
    with FakeFront(dict(servers), KEY) as fake:
        yield fake


@pytest.fixture
def source(front: FakeFront) -> Iterator[FleetSource]:
    fleet = FleetSource(front.url, KEY)
    yield fleet
    fleet.close()


def by_id(fleet: Fleet) -> dict[str, FleetRow]:
    return {row.replica: row for row in fleet.rows}


def looked(source: FleetSource) -> dict[str, FleetRow]:
    """The rows, once every replica that is asked has answered."""
    for _ in range(30):
        rows = by_id(source.look())
        if all(row.sign_ns is not None for row in rows.values()):
            return rows
    raise AssertionError(f"a replica gives no sign: {rows}")


def test_each_replica_is_a_row_with_what_it_says_itself(source: FleetSource, servers: dict[str, Server]) -> None:
    rows = looked(source)
    assert list(rows) == ["a1", "b2"]
    for name, row in rows.items():
        snapshot = servers[name].snapshot()
        assert (row.state, row.model, row.paused, row.preemptions) == ("live", snapshot["model"], 0, 0)
        assert (row.free_blocks, row.num_blocks) == (snapshot["blocks"]["free"], 256)
        assert (row.queried_tokens, row.hit_tokens) == (
            snapshot["totals"]["prefix_queried_tokens"], snapshot["totals"]["prefix_hit_tokens"],
        )  # fmt: skip
    assert rows["a1"].hit_tokens > 0 == rows["b2"].queried_tokens and rows["a1"].skew_ns is None


def test_tokens_between_two_looks_are_a_rate(source: FleetSource, servers: dict[str, Server]) -> None:
    assert looked(source)["a1"].tokens_per_second is None
    servers["b2"].complete("something", max_tokens=32)
    rows = by_id(source.look())
    assert rows["a1"].tokens_per_second == 0 and (rows["b2"].tokens_per_second or 0) > 0


def test_an_engine_that_is_paused_shows_as_paused(source: FleetSource, servers: dict[str, Server]) -> None:
    servers["b2"].post("/debug/engine/pause", {})
    try:
        states = {name: row.state for name, row in looked(source).items()}
    finally:
        servers["b2"].post("/debug/engine/resume", {})
    assert states == {"a1": "live", "b2": "paused"}


def test_one_that_goes_is_shown_as_gone_and_a_new_one_appears(source: FleetSource, front: FakeFront) -> None:
    looked(source)
    front.replicas["c3"] = front.replicas.pop("b2")
    rows = looked(source)
    assert {name: row.state for name, row in rows.items()} == {"a1": "live", "c3": "live", "b2": "gone"}
    assert rows["b2"].tokens_per_second is None and rows["b2"].num_blocks == 256


def test_one_with_a_dead_engine_says_why(source: FleetSource, front: FakeFront) -> None:
    front.trouble["b2"] = "the engine is gone"
    row = looked(source)["b2"]
    assert (row.state, row.trouble) == ("dead", "the engine is gone")


def test_a_front_that_is_lost_leaves_what_was_seen(source: FleetSource, front: FakeFront) -> None:
    looked(source)
    front.stop()
    fleet = source.look()
    assert front.url in fleet.trouble and list(by_id(fleet)) == ["a1", "b2"]


def test_a_wrong_key_is_said(front: FakeFront) -> None:
    fleet = FleetSource(front.url, "open")
    with pytest.raises(InspectError, match="API key is wrong"):
        fleet.look()
    fleet.close()


def test_a_replica_is_looked_at_like_a_server(source: FleetSource, servers: dict[str, Server]) -> None:
    replica = source.open("a1")
    try:
        replica.start()
        view = first_view(replica)
        assert replica.control is not None and replica.status.state == "live"
        replica.control.pause_engine()
        assert servers["a1"].snapshot()["engine_paused"]
        replica.control.continue_engine()
    finally:
        replica.close()
    assert view.keyframe.started.run_id == servers["a1"].snapshot()["run"]


def test_a_front_is_no_server(front: FakeFront) -> None:
    server = ServerSource(front.url, KEY)
    with pytest.raises(IsFleet, match="/replicas/ID"):
        server.start()
    server.close()


def test_once_prints_a_fleet(front: FakeFront, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([front.url, "--once", "--api-key", KEY]) == EXIT_OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{front.url}: live" and lines[1].startswith("2 replicas, waiting 0, running 0, tokens/s 0")
    assert lines[3].split()[:2] == ["replica", "state"]
    assert [line.split()[:2] for line in lines[4:]] == [["a1", "live"], ["b2", "live"]]


def test_json_prints_a_fleet(front: FakeFront, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([front.url, "--json", "--api-key", KEY]) == EXIT_OK
    said = json.loads(capsys.readouterr().out)
    assert [(each["id"], each["num_blocks"], each["rank_skew_s"]) for each in said["replicas"]] == [
        ("a1", 256, None), ("b2", 256, None),
    ]  # fmt: skip
    assert said["routed"] == {"prefix": 2} and said["source"]["state"] == "live"


def test_once_with_a_wrong_key_is_one_line(front: FakeFront, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([front.url, "--once", "--api-key", "open"]) == EXIT_FAILED
    err = capsys.readouterr().err
    assert "API key is wrong" in err and err.count("\n") == 1
