"""A running server as a source, over HTTP: what it shows, its past, its death, its return, and what else may answer."""

from __future__ import annotations

import http.server
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nanolens.errors import InspectError
from nanolens.inspector.sources import spool
from nanolens.inspector.sources.server_source import ServerSource
from nanolens.inspector.view import View
from nanolens.telemetry.events import Mark
from nanolens.telemetry.predicate import parse
from otlp_receivers import free_port
from serve import Server, completion

KEY = "a-key-of-this-test"
DEADLINE_S = 20.0


def until(what: Callable[[], bool], meaning: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not what():
        assert time.monotonic() < deadline, f"not {meaning} in time"
        time.sleep(0.02)


def shows(source: ServerSource, what: Callable[[View], bool], meaning: str) -> View:
    until(lambda: what(source.view()), meaning)
    return source.view()


@pytest.fixture
def attached(tiny_server: Server) -> Iterator[ServerSource]:
    source = ServerSource(tiny_server.url)
    source.start()
    yield source
    source.close()


class Foreign(http.server.BaseHTTPRequestHandler):
    """Some other web server, which has a /version too."""

    def do_GET(self) -> None:
        body = b'{"version": "1.2.3"}' if self.path == "/version" else b"<html>hello</html>"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def foreign() -> Iterator[str]:
    server = http.server.HTTPServer(("127.0.0.1", 0), Foreign)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_its_verdict_on_a_sequence_reaches_back_to_what_came_before_it_was_attached(tmp_path: Path) -> None:
    with Server(tmp_path, num_blocks=2000) as server:
        thread = threading.Thread(target=server.complete, args=([1, 2, 3],), kwargs={"max_tokens": 4000})
        thread.start()
        server.wait_until(lambda: server.snapshot()["totals"]["generated_tokens"] > 20, "generating")
        server.post("/debug/engine/pause", {})
        source = ServerSource(server.url)
        try:
            source.start()
            view = shows(source, lambda view: bool(view.keyframe.engine_paused), "paused")
            (seq,) = view.keyframe.sequences
            found = source.verdict(seq.seq, view.moment, view.now_t + 10**9)
            assert found is not None and found.whole and found.request == seq.request
            assert sum(found.parts.values()) == view.now_t + 10**9 - seq.arrived_t
            assert found.parts["engine_paused"] >= 10**9 and "own_decode" in found.parts
        finally:
            source.close()
            server.abort_all()
            server.post("/debug/engine/resume", {})
            thread.join()


def test_it_shows_the_servers_own_state(tiny_server: Server, attached: ServerSource) -> None:
    tiny_server.post("/debug/engine/pause", {})
    threads = [
        threading.Thread(target=tiny_server.complete, args=([1, 2, 3 + at] * 4,), kwargs={"max_tokens": 40})
        for at in range(3)
    ]
    try:
        for thread in threads:
            thread.start()
        tiny_server.wait_until(lambda: len(tiny_server.snapshot()["sequences"]) == 3, "arrived")
        for _ in range(5):
            tiny_server.post("/debug/engine/step", {"steps": 2})
        truth = tiny_server.snapshot()
        view = shows(attached, lambda view: view.keyframe.step == truth["step"], "at the server's step")
        assert view.is_live and view.status.state == "live"
        mine = {s.seq: (s.status, s.num_output_tokens, list(s.block_table)) for s in view.keyframe.sequences}
        theirs = {s["seq"]: (s["status"], s["num_output_tokens"], s["block_table"]) for s in truth["sequences"]}
        assert mine == theirs
        assert [row.planned.step for row in view.steps][-3:] == [truth["step"] - back for back in (2, 1, 0)]
        assert [row.moment for row in view.events] == sorted(row.moment for row in view.events)
    finally:
        tiny_server.post("/debug/engine/resume", {})
        for thread in threads:
            thread.join()
        tiny_server.wait_idle()


def test_a_view_follows_what_happens(tiny_server: Server, attached: ServerSource) -> None:
    before = attached.view()
    tiny_server.complete([1, 2, 3], max_tokens=8)
    after = shows(attached, lambda view: view.keyframe.step >= before.keyframe.step + 8, "eight steps on")
    assert after.last.step >= before.last.step + 8
    assert after.moment > before.moment


def test_the_past_before_it_attached_is_fetched_when_it_is_asked_for(tmp_path: Path) -> None:
    with Server(tmp_path, journal_cap="512KiB") as server:  # segments of 64 KiB, each begins with a keyframe
        server.complete([5, 6, 7], max_tokens=900)
        source = ServerSource(server.url)
        source.start()
        try:
            server.complete([8, 9], max_tokens=900)
            now = shows(source, lambda view: view.keyframe.step >= 1800, "at its end")
            assert now.first.step == 0  # known without fetching anything
            assert now.steps[0].planned.step > 300
            spooled = source._session._spool.directory
            assert min(segments(spooled)) == spool.FIRST_LIVE
            view = source.view(source.at_step(20))
            assert (view.keyframe.step, view.is_live, view.first.step) == (20, False, 0)
            assert segments(spooled)[0] < spool.FIRST_LIVE
            assert segments(spooled) == list(range(segments(spooled)[0], segments(spooled)[-1] + 1))
            moment = view.moment
            for _ in range(80):  # across the place where it attached
                moment = source.move(moment, 20)
            assert source.view(moment).keyframe.step == 20 + 80 * 20
            assert source.view(source.move(moment, -1590)).keyframe.step == 30
            t = source.view(source.at_step(700)).keyframe.t
            assert source.view(source.at_time(t)).keyframe.step == 700
            arrived = source.find(now.moment, parse("on=arrived"), forward=False)
            assert arrived is not None and arrived.moment < now.moment
            assert source.find(arrived.moment, parse("on=engine.started"), forward=False) is not None
            assert source.view().keyframe == now.keyframe
        finally:
            source.close()


def segments(directory: Path) -> list[int]:
    return sorted(int(path.stem.rpartition("-")[2]) for path in directory.glob("*.journal"))


def test_its_files_go_with_it(tiny_server: Server) -> None:
    source = ServerSource(tiny_server.url)
    source.start()
    directory = source._session._spool.directory
    assert directory.is_dir()
    source.close()
    source.close()
    assert not directory.exists()
    assert not [thread for thread in threading.enumerate() if tiny_server.url in thread.name]


def test_a_server_that_is_killed_leaves_the_last_view_and_its_age(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        source = ServerSource(server.url)
        source.start()
        try:
            server.complete([1, 2, 3], max_tokens=8)
            before = shows(source, lambda view: view.keyframe.step >= 8, "eight steps on")
            server.kill()
            until(lambda: source.status.state == "stale", "stale")
            after = source.view()
            assert after.keyframe == before.keyframe
            assert after.status.state == "stale" and time.time() - after.status.since < DEADLINE_S
            assert "no connection" in after.status.message or "broke" in after.status.message
            since = source.status.since
            time.sleep(0.5)
            assert source.status.since == since  # its age counts from the last sign, not from the last try
        finally:
            source.close()


def test_a_server_that_comes_back_is_attached_to_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with Server(tmp_path / "one") as first:
        source = ServerSource(first.url)
        source.start()
        run = source.view().keyframe.started.run_id
        first.kill()
    try:
        until(lambda: source.status.state == "stale", "stale")
        monkeypatch.setattr("serve.free_port", lambda: first.port)
        with Server(tmp_path / "two") as second:
            until(lambda: source.status.state == "live", "live again")
            second.complete([1, 2, 3], max_tokens=4)
            view = shows(source, lambda view: view.keyframe.step >= 4, "four steps on")
            assert view.keyframe.started.run_id != run
            assert view.keyframe.started.run_id in source.title
    finally:
        source.close()


def test_a_run_that_is_looked_at_stays_while_the_server_goes_on_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with Server(tmp_path / "one") as first:
        first.complete([1, 2, 3], max_tokens=12)
        source = ServerSource(first.url)
        source.start()
        old = shows(source, lambda view: view.keyframe.step >= 12, "at its end")
        run = old.keyframe.started.run_id
        assert source.control is not None
        control = source.control.of_run(run)
        first.kill()
    try:
        until(lambda: source.status.state == "stale", "stale")
        monkeypatch.setattr("serve.free_port", lambda: first.port)
        with Server(tmp_path / "two") as second:
            frozen = source.view(old.moment)
            second.complete([4, 5, 6, 7], max_tokens=6)
            until(lambda: source.view(old.moment).status.state == "replaced", "another run")
            now = shows(source, lambda view: view.keyframe.step >= 6, "the new run")
            assert now.keyframe.started.run_id != run and now.moment > old.moment and now.status.state == "live"
            still = source.view(old.moment)
            assert still.keyframe == frozen.keyframe and still.last == old.last and still.now_t == still.keyframe.t
            assert f"run {run} is over, the server runs {now.keyframe.started.run_id} now" in still.status.message
            back = source.move(old.moment, -3)
            assert source.view(back).keyframe.step == 9 and source.view(back).keyframe.started.run_id == run
            assert source.view(source.at_step(10, back)).keyframe.started.run_id == run
            assert source.view(source.at_time(0, back)).keyframe.started.run_id == run
            assert source.view(source.at_step(6)).keyframe.started.run_id != run
            arrived = source.find(old.moment, parse("on=arrived"), forward=False)
            assert arrived is None or source.view(arrived.moment).keyframe.started.run_id == run
            with pytest.raises(InspectError, match=f"run {run} is over"):
                control.pause_engine()
            with pytest.raises(InspectError, match=f"run {run} is over"):
                control.abort_sequence(0)
            assert not second.snapshot()["engine_paused"]
            assert not any(isinstance(event, Mark) for event in second.events())
            directories = [each._spool.directory for each in (source._session, *source._old) if each is not None]
            assert len(directories) == 2
    finally:
        source.close()
    assert not any(directory.exists() for directory in directories)


def test_a_connection_that_breaks_loses_nothing(tiny_server: Server, attached: ServerSource) -> None:
    attached.view()
    for at in range(4):
        feed = attached._feed
        if feed is not None:
            feed.cut()
        tiny_server.complete([1, 2, at], max_tokens=6)
    last = tiny_server.snapshot()["step"]
    view = shows(attached, lambda view: view.keyframe.step == last, "at the server's step")
    steps = [row.planned.step for row in view.steps]
    assert steps == list(range(steps[0], last + 1))


def test_a_suspended_server_is_stale_until_it_goes_on(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        source = ServerSource(server.url)
        source.start()
        try:
            os.kill(server.process.pid, signal.SIGSTOP)
            try:
                until(lambda: source.status.state == "stale", "stale")
            finally:
                os.kill(server.process.pid, signal.SIGCONT)
            until(lambda: source.status.state == "live", "live again")
        finally:
            source.close()


def test_a_dead_engine_behind_a_live_server_is_dead(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="on purpose"), Server(tmp_path) as server:
        source = ServerSource(server.url)
        source.start()
        try:
            os.kill(server.engine_pid, signal.SIGKILL)
            until(lambda: source.status.state == "dead", "dead")
            assert "engine" in source.view().status.message
        finally:
            source.close()
            server.kill()
        raise AssertionError("killed on purpose")


def test_an_engine_that_stopped_in_order_has_ended(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        source = ServerSource(server.url)
        source.start()
    try:
        until(lambda: source.status.state == "ended", "ended")
        assert "stopped in order" in source.view().status.message
    finally:
        source.close()


def test_nobody_there_is_said_at_once() -> None:
    with pytest.raises(InspectError, match=r"no connection.*is nano-serve running"):
        ServerSource(f"http://127.0.0.1:{free_port()}").start()


def test_keys_that_are_wrong_or_missing_are_named(tmp_path: Path) -> None:
    with Server(tmp_path, environment={"NANOLENS_API_KEY": KEY}, debug_needs_key=True) as server:
        with pytest.raises(InspectError, match=r"an API key is needed.*--api-key"):
            ServerSource(server.url).start()
        with pytest.raises(InspectError, match="the API key is wrong"):
            ServerSource(server.url, "another-key").start()
        source = ServerSource(server.url, KEY)
        source.start()
        assert source.view().keyframe.started.model
        source.close()


def test_another_web_server_is_none_of_ours(foreign: str) -> None:
    with pytest.raises(InspectError, match="no nano-serve"):
        ServerSource(foreign).start()


def test_a_server_without_a_journal_says_how_to_get_one(tmp_path: Path) -> None:
    with Server(tmp_path, journal="none", no_metrics=True) as server:
        with pytest.raises(InspectError, match=r"keeps no journal.*--journal DIR"):
            ServerSource(server.url).start()


@pytest.mark.parametrize("url", ["http://", "ftp://127.0.0.1", "http://127.0.0.1:port", "http://[::1", ""])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(InspectError, match="is no URL of a server"):
        ServerSource(url)


@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/"])
def test_a_base_url_may_end_as_clients_write_it(tiny_server: Server, ending: str) -> None:
    source = ServerSource(tiny_server.url.removeprefix("http://") + ending)
    assert source.url == tiny_server.url
    source.close()


def test_a_source_that_waits_shows_nothing_and_says_why(tiny_server: Server) -> None:
    source = ServerSource(tiny_server.url)
    with pytest.raises(InspectError, match="not connected"):
        source.view()
    source.close()


def test_completions_are_what_they_are_without_it(tiny_server: Server, attached: ServerSource) -> None:
    body = completion([3, 1, 4, 1, 5], max_tokens=24)
    seen = [tiny_server.post("/v1/completions", body).json["choices"][0]["text"] for _ in range(2)]
    attached.close()
    assert tiny_server.post("/v1/completions", body).json["choices"][0]["text"] == seen[0] == seen[1]


def test_breaks_across_ends_of_segments_leave_the_state_right(tmp_path: Path) -> None:
    with Server(tmp_path, journal_cap="64KiB") as server:  # segments of 8 KiB
        source = ServerSource(server.url)
        source.start()
        try:
            for at in range(6):
                server.complete([1, 2, 3 + at], max_tokens=150)
                if (feed := source._feed) is not None:
                    feed.cut()
            truth = server.snapshot()
            view = shows(source, lambda view: view.keyframe.step == truth["step"], "at the server's step")
            assert len(view.keyframe.free_blocks) == truth["blocks"]["free"]
            assert view.keyframe.sequences == []
        finally:
            source.close()
