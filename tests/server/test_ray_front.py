"""What the front of a fleet does where a replica can't: one that stands still, requests that go on, its own death."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from fleets import FleetServer
from otlp_receivers import wait_until
from serve import Server, completion
from sse_wire import DONE

PROMPT = "the quick brown fox jumps over the lazy dog " * 3
LONG = {"max_tokens": 3500, "ignore_eos": True}


@pytest.fixture(scope="module")
def fleet(
    tmp_path_factory: pytest.TempPathFactory, lacks: Callable[[str], NoReturn]
) -> Iterator[FleetServer]:
    if importlib.util.find_spec("ray") is None:
        lacks("ray (pip install 'nanolens[ray]')")
    with FleetServer(tmp_path_factory.mktemp("silence"), num_blocks=2000, max_num_seqs=8, drain_seconds=3) as server:
        server.wait_for(2)
        yield server


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process stands still, for as long as the block lasts."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def is_exporter(pid: int) -> bool:
    try:
        return b"exporter" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True  # it is gone


def troubles(fleet: FleetServer) -> set[str]:
    return {name for name, each in fleet.replicas().items() if "no sign of life" in each["trouble"]}


def test_a_request_that_goes_on_counts_as_one_that_its_replica_is_answering(fleet: FleetServer) -> None:
    first = fleet.post("/v1/completions", completion(PROMPT, on_stop="pause", max_tokens=3))
    home, resume = first.headers["x-nanolens-replica"], f"/v1/requests/{first.json['id']}/resume"
    with fleet.stream(resume, {"max_tokens": 1200, "stream": True}) as wire:
        next(wire.events())
        assert fleet.replicas()[home]["in_flight"] == 1
    fleet.wait_until(lambda: fleet.replicas()[home]["in_flight"] == 0, "without a call in flight")
    choice = fleet.fleet()["choices"][-1]
    assert (choice["nanolens.request"], choice["nanolens.route.reason"]) == (first.json["id"], "pinned")


def test_an_id_that_no_header_may_hold_is_replaced_as_by_one_server(fleet: FleetServer, tiny_server: Server) -> None:
    for server in (fleet, tiny_server):
        answer = server.post("/v1/completions", completion(PROMPT, max_tokens=3), {"X-Request-Id": "caf\xe9"})
        assert answer.status == 200 and answer.json["id"].isascii()


def test_a_client_sets_no_limit_to_rays_proxy(fleet: FleetServer) -> None:
    limit = {"X-Request-Timeout-Seconds": "0.001", "X-Session-Id": "one", "Serve-Multiplexed-Model-Id": "two"}
    assert fleet.post("/v1/completions", completion(PROMPT, max_tokens=3), limit).status == 200
    with fleet.stream(f"/replicas/{min(fleet.replicas())}/v1/completions", completion("x"), limit) as wire:
        assert list(wire.events())[-1] == DONE


def told(server: Server, head: str, body: bytes = b"") -> tuple[str, dict[str, str], bytes]:
    """What a server sends until it closes the connection: first line, headers (names in lower case), the rest."""
    with socket.create_connection(("127.0.0.1", server.port), 30) as connection:
        length = f"Content-Length: {len(body)}\r\n" if body else ""
        connection.sendall(f"{head}\r\nHost: 127.0.0.1\r\n{length}\r\n".encode() + body)
        first, _, rest = b"".join(iter(lambda: connection.recv(65536), b"")).partition(b"\r\n\r\n")
    line, *others = first.decode().split("\r\n")
    return line, {name.lower(): value for name, _, value in (each.partition(": ") for each in others)}, rest


def test_a_stream_to_a_client_that_knows_no_chunks_has_none_and_is_closed_at_its_end(
    fleet: FleetServer, tiny_server: Server
) -> None:
    body = json.dumps(completion("x", max_tokens=3, stream=True)).encode()
    for server in (fleet, tiny_server):
        head = "POST /v1/completions HTTP/1.0\r\nContent-Type: application/json"
        line, headers, rest = told(server, head, body)
        assert line.split()[1] == "200" and "transfer-encoding" not in headers
        *events, last, nothing = rest.decode().split("\n\n")
        assert (last, nothing) == (f"data: {DONE}", "") and all(each.startswith("data: {") for each in events)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET /health HTTP/1.1\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
         "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "200"),
        ("FOO /v1/completions HTTP/1.1\r\nConnection: close", "405"),
    ],
    ids=["upgrade", "unknown method"],
)  # fmt: skip
def test_what_is_odd_in_http_is_taken_as_by_one_server(
    fleet: FleetServer, tiny_server: Server, head: str, status: str
) -> None:
    for server in (fleet, tiny_server):
        line, headers, rest = told(server, head)
        assert (line.split()[1], headers["content-type"]) == (status, "application/json") and json.loads(rest)


@pytest.mark.timeout(300)
def test_a_replica_that_stands_still_is_passed_over_until_it_comes_back(fleet: FleetServer) -> None:
    first = fleet.post("/v1/completions", completion(PROMPT, max_tokens=3))
    home = first.headers["x-nanolens-replica"]
    (other,) = fleet.replicas().keys() - {home}
    paused = fleet.post(f"/replicas/{home}/v1/completions", completion("p", max_tokens=3, on_stop="pause")).json["id"]
    answers: list[str] = []

    def ask() -> None:
        answers.append(fleet.post("/v1/completions", completion(PROMPT, max_tokens=3)).headers["x-nanolens-replica"])

    with fleet.stream(f"/replicas/{home}/v1/completions", completion("x", **LONG)) as wire:
        events = wire.events()
        next(events)
        with stopped(fleet.replicas()[home]["pid"]):
            asking = threading.Thread(target=ask)  # it goes where its prefix is
            asking.start()
            *_, last, done = events
            assert (json.loads(last)["error"]["code"], done) == ("replica_silent", DONE)
            assert troubles(fleet) == {home}
            asking.join()
            ask()
            assert answers == [other] * 2
            for path in (f"/v1/requests/{paused}/resume", f"/replicas/{home}/v1/completions"):
                refused = fleet.post(path, completion("x"))
                assert (refused.status, refused.error["code"]) == (503, "replica_silent")
            health = fleet.get("/health")
            assert health.status == 200 and health.json["trouble"].keys() == {home}
    fleet.wait_until(lambda: not troubles(fleet), "all well again")
    assert fleet.post(f"/v1/requests/{paused}/finish", {}).headers["x-nanolens-replica"] == home
    assert fleet.post(f"/replicas/{home}/v1/completions", completion("x", max_tokens=3)).status == 200


@pytest.mark.timeout(300)
def test_ray_replaces_a_replica_that_stays_still(fleet: FleetServer) -> None:
    home = next(iter(fleet.replicas()))
    with stopped(fleet.replicas()[home]["pid"]):
        fleet.wait_until(lambda: home not in fleet.replicas(), "without the one that stands still")
        fleet.wait_for(2)
        assert [(each["id"], each["reason"]) for each in fleet.fleet()["lost"]] == [(home, "process_silent")]


@pytest.mark.timeout(300)
def test_the_death_of_the_front_ends_streams_in_an_error_event(fleet: FleetServer) -> None:
    with fleet.stream("/v1/completions", completion("x", **LONG)) as wire:
        events = wire.events()
        next(events)
        (front,) = [pid for pid in fleet.pids() if b":Front" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(front, signal.SIGKILL)
        *_, last, done = events
    assert (json.loads(last)["error"]["code"], done) == ("front_died", DONE)
    fleet.wait_until(lambda: fleet.get("/ready").status == 200, "ready again")
    fleet.wait_for(2)
    fleet.wait_until(lambda: not any(each["running"] for each in fleet.replicas().values()), "idle")


@pytest.mark.timeout(300)
def test_a_fleet_with_a_replica_that_stands_still_ends_without_waiting_for_it(fleet: FleetServer) -> None:
    """The last one: it ends the fleet."""
    home, other = sorted(fleet.replicas())
    gone = fleet.stream(f"/replicas/{home}/v1/completions", completion("x", **LONG))
    fleet.wait_until(lambda: fleet.replicas()[home]["running"] == 1, "at work")
    whole = fleet.stream(f"/replicas/{other}/v1/completions", completion("x", max_tokens=20))
    with gone, whole, stopped(fleet.replicas()[home]["pid"]):
        gone.close()  # nobody waits for what that one had begun
        fleet.process.terminate()
        assert fleet.process.wait(fleet.deadline_s) == 1
        assert list(whole.events())[-1] == DONE
    assert fleet.said.splitlines()[-1].startswith("nano-serve: ended; 1 replicas gave no sign of life and were killed")
    assert "requests are ended" not in fleet.said and "are cut" not in fleet.said
    wait_until(lambda: all(map(is_exporter, fleet.pids())), "processes are left")  # that one stays for a last scrape
    fleet.kill()
