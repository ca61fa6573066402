"""`nano-trace export` of a run as a process that a Prometheus scrapes, and what tests wait for."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from prometheus_server import PrometheusServer

GRAFANA = Path(__file__).resolve().parents[2] / "grafana"
SCRAPES = 6  # before the queries: two and more in each window
WINDOW = "4s"  # what Grafana makes of $__rate_interval for scrapes each second


def start_exporter(folder: Path) -> tuple[subprocess.Popen[str], str]:
    """`nano-trace export` of the journal, and the address of its metrics."""
    wait_until(lambda: list((folder / "journal").glob("*")), "the journal")
    command = [
        sys.executable, "-P", "-m", "nanolens.inspector.trace_cli", "export", str(folder / "journal"), "--remote",
        "--file", str(folder / "spans.jsonl"), "--metrics-port", "0", "--linger", "0",
    ]  # fmt: skip
    exporter = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert exporter.stderr is not None
    line = exporter.stderr.readline()
    found = re.search(r"http://(127\.0\.0\.1:\d+)/metrics", line)
    if found is None:
        exporter.kill()
        raise AssertionError(line + exporter.communicate()[1])
    return exporter, found[1]


def wait_until(condition: Callable[[], object], what: str, most_s: float = 30.0) -> None:
    deadline = time.monotonic() + most_s
    while not condition():
        assert time.monotonic() < deadline, f"waited for {what}, in vain"
        time.sleep(0.02)


def scrapes(server: PrometheusServer) -> int:
    found = server.get("query", query="count_over_time(nanolens_engine_up[1m])")["result"]
    return int(found[0]["value"][1]) if found else 0
