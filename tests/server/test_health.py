"""Liveness, readiness and version: what a server says of itself while its engine works, is paused, hangs or is gone."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from nanolens import __version__
from nanolens.engine.progress import Progress
from nanolens.server.health import EngineWatch
from serve import Server, completion

STALL_S = 10.0


class FakeEngine:
    """One that is watched; tests set what it is."""

    is_alive = True

    async def progress(self) -> Progress:
        return at(0)


class FakeClock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def at(step: int, waiting: int = 0, running: int = 0, paused: int = 0, engine_paused: str = "") -> Progress:
    return Progress(step, waiting, running, paused, 9, engine_paused)


def watched() -> tuple[EngineWatch, FakeEngine, FakeClock]:
    engine, clock = FakeEngine(), FakeClock()
    return EngineWatch(engine, STALL_S, clock), engine, clock


def look_on(watch: EngineWatch, clock: FakeClock, *seen: Progress) -> None:
    """Take one answer a second."""
    for progress in seen:
        clock.now += 1.0
        watch.look(progress)


def test_an_engine_that_steps_is_well() -> None:
    watch, _, clock = watched()
    look_on(watch, clock, *(at(step, running=1) for step in range(30)))
    assert watch.trouble() == ""


def test_an_engine_without_work_is_well_without_steps() -> None:
    watch, _, clock = watched()
    look_on(watch, clock, *[at(7, paused=2)] * 30)
    assert watch.trouble() == ""


def test_work_that_waits_without_a_step_is_trouble_after_a_while() -> None:
    watch, _, clock = watched()
    look_on(watch, clock, *[at(7)] * 30, *[at(7, waiting=3)] * 9)
    assert watch.trouble() == ""
    look_on(watch, clock, *[at(7, waiting=3)] * 3)
    assert watch.trouble() == "no step for 12.0 s, with 3 sequences waiting and 0 running"


def test_a_step_ends_the_trouble() -> None:
    watch, _, clock = watched()
    look_on(watch, clock, *[at(7, running=1)] * 30, at(8, running=1))
    assert watch.trouble() == ""


def test_an_engine_that_someone_paused_is_well() -> None:
    watch, _, clock = watched()
    look_on(watch, clock, *[at(7, waiting=3, engine_paused="operator")] * 30)
    assert watch.trouble() == ""


def test_an_engine_that_does_not_answer_is_trouble() -> None:
    watch, _, clock = watched()
    look_on(watch, clock, at(7))
    clock.now += STALL_S + 1
    assert watch.trouble() == "the engine has not answered for 11.0 s"


def test_an_engine_that_is_gone_is_trouble_at_once() -> None:
    watch, engine, _ = watched()
    engine.is_alive = False
    assert watch.trouble() == "the engine has stopped"


def test_a_server_that_works_is_alive_and_ready(tiny_server: Server) -> None:
    tiny_server.wait_idle()
    tiny_server.wait_until(lambda: tiny_server.get("/health").json["running"] == 0, "looked at")
    health = tiny_server.get("/health")
    assert health.status == 200 and health.json.keys() == {"status", "step", "waiting", "running", "paused"}
    ready = tiny_server.get("/ready")
    assert (ready.status, ready.json) == (200, {"status": "ready"})


def test_version_names_the_program_the_model_and_the_run(tiny_server: Server) -> None:
    found = tiny_server.get("/version").json
    assert (found["version"], found["model"]) == (__version__, "test")
    assert found["run"] == tiny_server.snapshot()["run"]


def test_a_paused_engine_with_work_is_alive_and_says_that_it_is_paused(tmp_path: Path) -> None:
    with Server(tmp_path, stall_seconds=0.5) as server:
        server.post("/debug/engine/pause", {})
        with server.stream("/v1/completions", completion([1], max_tokens=4)):
            server.wait_until(lambda: server.get("/health").json.get("waiting") == 1, "seen to wait")
            for _ in range(20):
                found = server.get("/health")
                assert (found.status, found.json["status"]) == (200, "paused")


def test_an_engine_process_that_is_stopped_fails_health_until_it_goes_on(tmp_path: Path) -> None:
    with Server(tmp_path, stall_seconds=1) as server:
        pid = server.engine_pid
        os.kill(pid, signal.SIGSTOP)
        try:
            server.wait_until(lambda: server.get("/health").status == 503, "seen to hang")
            assert "has not answered" in server.get("/health").json["reason"]
            ready = server.get("/ready")
            assert ready.status == 503 and "has not answered" in ready.json["reason"]
        finally:
            os.kill(pid, signal.SIGCONT)
        server.wait_until(lambda: server.get("/health").status == 200, "well again")


def test_health_can_be_asked_for_by_its_head_alone(tiny_server: Server) -> None:
    for path in ("/health", "/ready"):
        answer = tiny_server.request("HEAD", path)
        assert (answer.status, answer.body) == (200, b"")
