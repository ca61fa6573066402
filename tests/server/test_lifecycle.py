"""A server's start and end: what it prints, what it loads, signals, and streams that would never end by themselves."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nanolens.errors import InvalidConfig
from nanolens.server.lifecycle import bind
from nanolens.telemetry.events import EngineStopped, RequestFinished
from serve import Server, completion


def test_the_start_ends_with_the_places_to_go_to(tiny_server: Server) -> None:
    said = tiny_server.said
    for place in ("/v1", "/docs", "/debug/snapshot", "/metrics"):
        assert f"{tiny_server.url}{place}\n" in said
    assert f"nano-trace tail -f {tiny_server.journal}" in said
    order = ["tokenizer:", "loading the weights", "KV blocks", "OpenAI API", "ready after"]
    assert [said.index(each) for each in order] == sorted(said.index(each) for each in order)


def test_the_server_process_loads_no_torch(tiny_server: Server) -> None:
    assert tiny_server.complete("Hi", max_tokens=2)["usage"]["completion_tokens"] == 2
    loaded = Path(f"/proc/{tiny_server.process.pid}/maps").read_text()
    assert "libpython" in loaded or "python" in loaded
    assert "libtorch" not in loaded
    assert "libtorch" in Path(f"/proc/{tiny_server.engine_pid}/maps").read_text()


@pytest.mark.model
def test_a_real_tokenizer_loads_no_torch_either(smollm2_dir: Path) -> None:
    program = (
        "import sys; from nanolens.server.startup import load_tokenizer_alone; "
        f"tokenizer = load_tokenizer_alone({str(smollm2_dir)!r}); "
        "print(len(tokenizer.encode('Hello there')), 'torch._C' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert ran.stdout.split() == ["2", "False"]


def test_sigterm_at_rest_ends_it_in_order(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_gone() == 0
        assert isinstance(server.events()[-1], EngineStopped)
        assert server.said.endswith("nano-serve: ended\n")


def test_a_drain_refuses_what_comes_finishes_what_runs_and_ends_journal_streams(tmp_path: Path) -> None:
    with Server(tmp_path, drain_seconds=60) as server:
        server.post("/debug/engine/pause", {})
        with server.stream("/v1/completions", completion([1, 2], max_tokens=8)) as stream:
            server.wait_until(lambda: server.snapshot()["waiting"], "waiting")
            journal = socket.create_connection(("127.0.0.1", server.port), 60)
            journal.sendall(b"GET /debug/journal HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert journal.recv(12) == b"HTTP/1.1 200"
            server.process.send_signal(signal.SIGTERM)
            server.wait_until(lambda: server.get("/ready").status == 503, "draining")
            refused = server.post("/v1/completions", completion([1]))
            assert (refused.status, refused.error["code"]) == (503, "stopping")
            assert server.get("/health").status == 200
            with journal:
                end = b""
                while not end.endswith(b"\r\n0\r\n\r\n"):  # of a chunked body
                    end = end[-7:] + journal.recv(1 << 16)
            server.post("/debug/engine/resume", {})
            assert stream.chunks()[-1]["choices"][0]["finish_reason"] == "length"
        assert server.wait_gone() == 0


def test_a_second_signal_ends_the_wait(tmp_path: Path) -> None:
    with Server(tmp_path, drain_seconds=600) as server:
        server.post("/debug/engine/pause", {})
        with server.stream("/v1/completions", completion([1, 2], max_tokens=8)) as stream:
            server.wait_until(lambda: server.snapshot()["waiting"], "waiting")
            server.process.send_signal(signal.SIGTERM)
            server.wait_until(lambda: server.get("/ready").status == 503, "draining")
            server.process.send_signal(signal.SIGINT)
            assert stream.chunks()[-1]["choices"][0]["finish_reason"] == "abort"
        assert server.wait_gone() == 0
        ends = [event.finish_reason for event in server.events() if isinstance(event, RequestFinished)]
        assert ends == ["abort"]


def test_a_second_signal_while_the_engine_closes_kills_it_before_the_server_ends() -> None:
    program = Path(__file__).parents[1] / "support" / "slow_end.py"
    paths = os.pathsep.join([str(program.parent), *filter(None, sys.path)])
    with subprocess.Popen(
        [sys.executable, str(program)], env=os.environ | {"PYTHONPATH": paths}, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        engine = int(server.stdout.readline())
        server.send_signal(signal.SIGTERM)
        assert server.stdout.readline() == "closing\n"
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 1
        assert not Path(f"/proc/{engine}").exists()


def test_a_signal_to_every_process_of_the_service_lets_requests_finish(tmp_path: Path) -> None:
    with Server(tmp_path, drain_seconds=60) as server:
        with server.stream("/v1/completions", completion([1, 2], max_tokens=300)) as stream:
            next(stream.events())
            os.kill(server.engine_pid, signal.SIGTERM)
            server.process.send_signal(signal.SIGTERM)
            rest = stream.chunks()
            assert rest[-1]["choices"][0]["finish_reason"] == "length"
        assert server.wait_gone() == 0


def test_sigterm_before_it_is_ready_ends_everything(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "nanolens.server.cli", "dummy:llama-tiny", "--port", "0", "--device", "cpu"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    with process.stderr as said:
        while "tokenizer" not in said.readline():
            pass
        process.terminate()
        rest = said.read()  # to the end of the last process that holds it
    assert process.wait(60) == 1 and "ended before it was ready" in rest


def test_a_socket_that_is_bound_refuses_clients_until_it_listens() -> None:
    with bind("127.0.0.1", 0) as listener, pytest.raises(ConnectionRefusedError):
        socket.create_connection(listener.getsockname(), 5)


@pytest.mark.parametrize("host", ["999.1.2.3", "192.0.2.1"])
def test_an_address_that_is_not_this_machine_s_is_refused(host: str) -> None:
    with pytest.raises(InvalidConfig, match="host="), bind(host, 0):
        time.sleep(0)
