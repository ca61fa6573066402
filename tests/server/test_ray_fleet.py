"""Two replicas on Ray Serve behind one address: where requests go, what clients see of a replica's death, one trace."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import random
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fleets import FleetServer, Load
from nanolens.inspector.inspect_cli import first_view
from nanolens.inspector.sources.discover import find_servers
from nanolens.inspector.sources.fleet import FleetSource
from nanolens.inspector.trace_cli import main
from nanolens.telemetry.events import RequestArrived
from nanolens.telemetry.reader import JournalReader
from otlp_receivers import OtlpServer, wait_until
from serve import NAME, TINY, Server, completion
from sse_wire import DONE

GREEDY = {"temperature": 0, "max_tokens": 6}
LOOK_S = 0.25  # between two questions to a replica
PROMPT = "the quick brown fox jumps over the lazy dog"
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture(scope="module")
def spans() -> Iterator[OtlpServer]:
    with OtlpServer() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def fleet(
    tmp_path_factory: pytest.TempPathFactory, spans: OtlpServer, lacks: Callable[[str], NoReturn]
) -> Iterator[FleetServer]:
    """Pools in which the prefixes of one half of the load below have room, and not those of the whole."""
    if importlib.util.find_spec("ray") is None:
        lacks("ray (pip install 'nanolens[ray]')")
    with FleetServer(tmp_path_factory.mktemp("fleet"), num_blocks=370, max_num_seqs=8, otlp=spans.url) as server:
        server.wait_for(2)
        yield server


def hits(fleet: FleetServer) -> tuple[int, int]:
    """Tokens of prompts that were found in a cache, and all of them, once nothing runs and every report is in."""
    found: list[tuple[int, int]] = []

    def is_settled() -> bool:
        replicas = fleet.replicas().values()
        found.append((sum(each["hit_tokens"] for each in replicas), sum(each["queried_tokens"] for each in replicas)))
        time.sleep(2 * LOOK_S)
        return found[-2:-1] == found[-1:] and not any(each["running"] + each["waiting"] for each in replicas)

    wait_until(is_settled)
    return found[-1]


def hit_rate(fleet: FleetServer, work: Callable[[], object]) -> float:
    """Of what is asked meanwhile."""
    before = hits(fleet)
    work()
    after = hits(fleet)
    return (after[0] - before[0]) / (after[1] - before[1])


def test_the_answers_are_those_of_one_server(fleet: FleetServer, tiny_server: Server) -> None:
    for path, body in (
        ("/v1/completions", completion(PROMPT, **GREEDY)),
        ("/v1/chat/completions", {"model": NAME, "messages": [{"role": "user", "content": PROMPT}], **GREEDY}),
    ):
        mine, other = fleet.post(path, body), tiny_server.post(path, body)
        assert (mine.status, mine.json["choices"]) == (200, other.json["choices"])
        assert mine.headers["x-nanolens-replica"] in fleet.replicas()
        streamed = []
        for server in (fleet, tiny_server):
            with server.stream(path, body) as wire:
                events = list(wire.events())
            assert events[-1] == DONE
            streamed.append([choice for each in events[:-1] for choice in json.loads(each)["choices"]])
        assert streamed[0][0] == streamed[1][0] and streamed[0][-1]["finish_reason"] == "length"


def test_refusals_are_those_of_one_server(fleet: FleetServer, tiny_server: Server) -> None:
    for body in ({"model": "nobody", "prompt": "x"}, completion(""), completion("x", top_k=-7), {"prompt": 5}):
        mine, other = fleet.post("/v1/completions", body), tiny_server.post("/v1/completions", body)
        assert (mine.status, mine.error) == (other.status, other.error)
    assert fleet.get("/nowhere").status == 404


def test_a_request_that_pauses_goes_on_at_its_replica(fleet: FleetServer) -> None:
    for number in range(6):
        first = fleet.post("/v1/completions", completion(f"{number} {PROMPT}", on_stop="pause", **GREEDY))
        again = fleet.post(f"/v1/requests/{first.json['id']}/resume", {"max_tokens": 3})
        assert again.status == 200 and again.json["choices"][0]["finish_reason"] == "pause"
        assert again.headers["x-nanolens-replica"] == first.headers["x-nanolens-replica"]
        assert fleet.post(f"/v1/requests/{first.json['id']}/finish", {}).status == 200


def test_a_request_that_pauses_under_another_id_than_it_came_with_is_found(fleet: FleetServer) -> None:
    for given in ("twice", "not;valid", ""):
        for _ in range(2):
            one = fleet.post("/v1/completions", completion(PROMPT, on_stop="pause", **GREEDY), {"X-Request-Id": given})
            assert one.headers["x-nanolens-request-id"] == one.json["id"]
            home = one.headers["x-nanolens-replica"]
            other = next(name for name in fleet.replicas() if name != home)
            body = completion(PROMPT, on_stop="pause", **GREEDY)
            two = fleet.post(f"/replicas/{other}/v1/completions", body, {"X-Request-Id": one.json["id"]})
            assert two.json["id"] != one.json["id"]
            for each in (one, two):
                again = fleet.post(f"/v1/requests/{each.json['id']}/finish", {})
                assert (again.status, again.headers["x-nanolens-replica"]) == (200, each.headers["x-nanolens-replica"])


def test_the_front_takes_the_methods_that_one_server_takes(fleet: FleetServer, tiny_server: Server) -> None:
    for method in ("POST", "HEAD", "DELETE"):
        for path in ("/health", "/ready", "/version", "/metrics"):
            assert fleet.request(method, path).status == tiny_server.request(method, path).status, (method, path)
    for path in ("/health", "/ready"):
        assert fleet.get(path).json["status"] == tiny_server.get(path).json["status"]


def test_a_fleet_is_found_on_this_machine(fleet: FleetServer) -> None:
    (found,) = [each for each in find_servers() if each.url == fleet.url]
    assert (found.model, found.pid) == (NAME, fleet.process.pid)


def test_each_replica_can_be_looked_at_alone(fleet: FleetServer) -> None:
    names = list(fleet.replicas())
    runs = [fleet.get(f"/replicas/{name}/debug/snapshot").json["run"] for name in names]
    assert runs == [fleet.replicas()[name]["run"] for name in names] and len(set(runs)) == 2
    assert all(name in fleet.get("/debug/snapshot").error["message"] for name in names)
    assert fleet.get("/replicas/nobody/debug/snapshot").status == 404


def test_the_inspector_shows_the_replicas_and_opens_one(fleet: FleetServer) -> None:
    source, opened = FleetSource(fleet.url), None
    try:
        wait_until(lambda: [row.state for row in source.look().rows] == ["live", "live"])
        rows = {row.replica: row for row in source.look().rows}
        assert rows.keys() == fleet.replicas().keys() and all(row.num_blocks == 370 for row in rows.values())
        name, row = next(iter(rows.items()))
        opened = source.open(name)
        opened.start()
        assert first_view(opened).keyframe.started.run_id == row.run and opened.status.state == "live"
    finally:
        source.close()
        if opened is not None:
            opened.close()


def test_every_sample_of_the_engines_says_of_which_replica_it_is(fleet: FleetServer) -> None:
    names = set(fleet.replicas())

    def replicas_of(metric: str) -> set[str]:
        families = text_string_to_metric_families(fleet.get("/metrics").body.decode())
        samples = [sample for family in families for sample in family.samples]
        of_fleet = {sample.name for sample in samples if "replica" not in sample.labels}
        names = ("replicas", "wanted_replicas", "lost_replicas_total")
        assert of_fleet == {f"nanolens_router_{name}" for name in names}
        return {sample.labels["replica"] for sample in samples if sample.name == metric}

    wait_until(lambda: replicas_of("nanolens_engine_up") == names)  # the exporters have to read so far
    assert replicas_of("nanolens_server_requests_admitted_total") == names
    assert replicas_of("nanolens_router_in_flight") == names


def test_the_routers_span_joins_the_caller_and_the_replica(fleet: FleetServer, spans: OtlpServer) -> None:
    fleet.post(
        "/v1/completions", completion(PROMPT, **GREEDY), {"traceparent": f"00-{TRACE}-{CALLER}-01"}
    )

    def of_trace(name: str) -> list[object]:
        return [span for span in list(spans.spans) if span.trace_id.hex() == TRACE and span.name == name]

    wait_until(lambda: of_trace("route") and of_trace(f"text_completion {TINY}"), "the spans did not come")
    (routed,), (served,) = of_trace("route"), of_trace(f"text_completion {TINY}")
    assert routed.parent_span_id.hex() == CALLER and served.parent_span_id == routed.span_id  # type: ignore[attr-defined]
    told = {each.key: each.value for each in routed.attributes}  # type: ignore[attr-defined]
    assert routed.status.code == 0  # type: ignore[attr-defined]
    assert told["nanolens.replica"].string_value in fleet.replicas()
    assert told["nanolens.route.reason"].string_value in ("prefix", "load")
    assert told["nanolens.route.prompt_blocks"].int_value == len(PROMPT) // 4


@pytest.mark.timeout(600)
def test_shared_prefixes_are_found_more_often_than_by_random_routing(fleet: FleetServer) -> None:
    by_chance = Load(fleet, groups=20, prefix_chars=128, max_tokens=4, seed=1)
    routed = Load(fleet, groups=20, prefix_chars=128, max_tokens=4, seed=2)
    names = sorted(fleet.replicas())

    def anywhere(rng: random.Random) -> str:
        return f"/replicas/{rng.choice(names)}/v1/completions"

    results: list[dict[str, int]] = []
    random_rate = hit_rate(fleet, lambda: results.append(by_chance.run(500, anywhere)))
    rate = hit_rate(fleet, lambda: results.append(routed.run(500)))
    many = Load(fleet, groups=20, prefix_chars=128, max_tokens=4, seed=8, threads=16)
    rate_of_many = hit_rate(fleet, lambda: results.append(many.run(500)))  # twice as many as run at once
    assert results == [{"ok": 500}] * 3
    print(f"hit rate {rate:.3f}, of 16 clients {rate_of_many:.3f}, of random routing {random_rate:.3f}")
    assert min(rate, rate_of_many) >= 1.5 * random_rate, (rate, rate_of_many, random_rate)
    assert not any(each["in_flight"] for each in fleet.replicas().values())
    assert not any(each["error"] for each in fleet.fleet()["choices"])
    reasons = {each["nanolens.route.reason"] for each in fleet.fleet()["choices"][-500:]}
    assert "prefix" in reasons and reasons <= {"prefix", "load", "full", "no_blocks"}


def test_the_replicas_journals_are_explained_as_one(fleet: FleetServer, capsys: pytest.CaptureFixture[str]) -> None:
    Load(fleet, groups=4, prefix_chars=64, max_tokens=4, seed=6).run(20)
    hits(fleet)  # once all is told
    replicas = fleet.replicas()
    journals = [each["journal"] for each in replicas.values()]

    def said(*arguments: str) -> str:
        assert main([arguments[0], *journals, *arguments[1:]]) == 0
        return capsys.readouterr().out

    found = json.loads(said("explain", "--slowest", "9999", "--json"))
    by_run = {each["run"]: name for name, each in replicas.items()}
    assert {each["run"]: each["replica"] for each in found["replicas"]} == by_run and found["clocks"] == 1
    assert len(found["requests"]) >= 20
    for one in found["requests"]:
        assert sum(one["parts"].values()) == one["total_ns"]
        assert one["route"]["replica"] == one["replica"] and one["route"]["attempt"] >= 1
        assert one["route"]["reason"] in ("prefix", "load", "full", "no_blocks", "pinned")
    top = json.loads(said("top", "--json"))
    assert top["requests"] == len(found["requests"]) and set(top["taxes"]) == set(replicas)
    for part in ("slowest", "median"):
        assert sum(top[part]["parts"].values()) == pytest.approx(top[part]["mean"])
    slowest = found["requests"][0]
    text = " ".join(said("explain", "--slowest", "1").split())
    assert f"The router chose replica {slowest['replica']} ({slowest['route']['reason']})" in text
    assert top["named"][0]["request"] == slowest["name"] and said("top").startswith("2 replicas: ")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("what", ["pid", "engine_pid"])
def test_the_death_of_a_replica_ends_its_streams_properly_and_both_serve_again(fleet: FleetServer, what: str) -> None:
    fleet.wait_for(2)
    killed: list[str] = []
    load = Load(fleet, groups=8, prefix_chars=64, max_tokens=40, seed=3, threads=24)
    results = load.run(500, at={200: lambda: killed.append(fleet.kill_one(what))})
    ended = "replica_died" if what == "pid" else "engine_dead"
    assert set(results) <= {"ok", ended} and results.total() == 500
    assert results[ended] <= 12  # it ran eight at once; one may have been done, and not yet delivered
    fleet.wait_for(2, without=killed)
    for name in fleet.replicas():
        assert fleet.post(f"/replicas/{name}/v1/completions", completion(PROMPT, **GREEDY)).status == 200
    reason = "process_gone" if what == "pid" else "engine_gone"
    assert [(each["id"], each["reason"]) for each in fleet.fleet()["lost"][-1:]] == [(killed[0], reason)]
    assert f'nanolens_router_lost_replicas_total{{reason="{reason}"}} 1.0' in fleet.get("/metrics").body.decode()


@pytest.mark.timeout(600)
def test_requests_that_waited_at_a_replica_that_dies_are_answered_by_another(
    fleet: FleetServer, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.wait_for(2)
    victim, other = sorted(fleet.replicas())
    journals = [fleet.replicas()[name]["journal"] for name in (victim, other)]
    assert fleet.post(f"/replicas/{victim}/debug/engine/pause", {}).status == 200  # what goes there waits
    pid = fleet.replicas()[victim]["pid"]
    results: Counter[str] = Counter()
    load = Load(fleet, groups=16, prefix_chars=64, max_tokens=4, seed=5, threads=16)
    asking = threading.Thread(target=lambda: results.update(load.run(16)))
    asking.start()
    try:
        fleet.wait_until(lambda: fleet.replicas()[victim]["waiting"] > 2, "waiting at the victim")
    finally:
        os.kill(pid, signal.SIGKILL)
        asking.join()
    assert results == {"ok": 16}
    assert fleet.fleet()["retried"][victim] > 2
    fleet.wait_for(2, without=[victim])
    events = [event for frame in JournalReader(journals[1]).frames() for event in frame.events]
    routes = {event.request: event.route for event in events if isinstance(event, RequestArrived)}
    again = [name for name, route in routes.items() if route is not None and route.get("left") == victim]
    assert len(again) > 2 and {routes[name]["attempt"] for name in again} == {2}  # type: ignore[index]
    assert main(["explain", *journals, again[0]]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"was tried on {victim} (" in text and f"; this was attempt 2, after {victim}." in text


@pytest.mark.timeout(600)
def test_a_rolling_restart_under_load_loses_no_request(fleet: FleetServer) -> None:
    fleet.wait_for(2)
    before = list(fleet.replicas())
    load = Load(fleet, groups=8, prefix_chars=64, max_tokens=8, seed=4, threads=3)
    results = load.run(30, at={10: lambda: os.kill(fleet.process.pid, signal.SIGHUP)})
    while "the replicas have been replaced" not in fleet.said:
        results += load.run(20)
    fleet.wait_for(2, without=before)
    assert set(results) == {"ok"}
    assert not set(before) & {each["id"] for each in fleet.fleet()["lost"]}
    assert "nanolens_router_lost_replica_timestamp_seconds{" not in fleet.get("/metrics").body.decode()


@pytest.mark.timeout(300)
def test_nothing_is_left_of_a_fleet_that_is_killed(fleet: FleetServer) -> None:
    """The last one: it ends the fleet."""
    def commands() -> list[str]:
        found = []
        for pid in fleet.pids():
            with contextlib.suppress(OSError):
                found.append(Path(f"/proc/{pid}/cmdline").read_text())
        return [each for each in found if "exporter" not in each]  # which stay for a last scrape

    (folder,) = set(re.findall(r"[^\0= ]*/nl-ray-[^/\0 ]+", " ".join(commands())))
    assert Path(folder).exists()
    os.kill(fleet.process.pid, signal.SIGKILL)
    fleet.process.wait()
    wait_until(lambda: not commands(), "processes are left")
    assert not Path(folder).exists()
    fleet.kill()
