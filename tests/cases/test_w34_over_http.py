"""W34 over HTTP: all are aborted while no step happens, and the next scrape shows an empty engine."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from metric_runs import key
from serve import Server, completion
from sse_wire import ends


def test_a_scrape_after_all_was_aborted_shows_an_empty_engine(tmp_path: Path) -> None:
    with Server(tmp_path, max_num_seqs=4) as server, ExitStack() as opened:
        streams = [
            opened.enter_context(server.stream("/v1/completions", completion([number, 1, 2], max_tokens=200)))
            for number in range(8)
        ]
        server.wait_until(lambda: len(server.snapshot()["sequences"]) == 8, "full")
        assert server.post("/debug/engine/pause", {}).status == 200
        full = server.snapshot()
        assert (len(full["running"]), len(full["waiting"])) == (4, 4)
        running = key("sequences", status="RUNNING")
        server.wait_until(lambda: server.metrics()[running] == 4, "full in a scrape")
        before = server.metrics()
        assert before[running] == before[key("sequences", status="WAITING")] == 4
        assert before[key("kv_blocks", state="used")] > 0

        for sequence in full["sequences"]:
            assert server.post(f"/debug/sequences/{sequence['seq']}/abort", {}).status == 200
        aborted = key("requests_total", finish_reason="abort")
        server.wait_until(lambda: server.metrics()[aborted] == 8, "aborted in a scrape")  # it reads the journal
        after = server.metrics()
        for status in ("RUNNING", "WAITING", "PAUSED"):
            assert after[key("sequences", status=status)] == 0
        assert after[key("kv_blocks", state="used")] == 0
        assert server.snapshot()["totals"]["steps"] == full["totals"]["steps"]
        for stream in streams:
            assert ends(stream.chunks()) == {0: "abort"}
        assert server.post("/debug/engine/resume", {}).status == 200
        assert server.complete([1])["usage"]["completion_tokens"] == 16
