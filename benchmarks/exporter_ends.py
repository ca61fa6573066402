"""The processes of `nano-bench exporter`: the exporter on one core, timed, a receiver that counts, and a scraper.

`python -P -m nanolens.benchmarks.exporter_ends receive` prints its port, takes batches until its input ends, and prints
how many spans came. `... export JOURNAL URL CPU METRICS` exports once, and prints its times as JSON. `... scrape PORT`
scrapes until it is ended, or its parent is gone.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODULE = "nanolens.benchmarks.exporter_ends"


def receive() -> None:
    """Take batches; they are decoded when the input has ended."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    requests = map(ExportTraceServiceRequest.FromString, map(gzip.decompress, bodies))
    print(sum(len(s.spans) for request in requests for r in request.resource_spans for s in r.scope_spans), flush=True)


def export(journal: str, url: str, cpu: str, metrics: str) -> None:
    """Export a journal on one core."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(cpu)})
    from ..telemetry.endpoint import parse_endpoint
    from ..telemetry.exporter_options import Export, ExportOptions
    from ..telemetry.exporter_settings import ExporterSettings
    from ..telemetry.reader import JournalReader

    options = ExportOptions(
        journal=journal, endpoint=parse_endpoint(url), metrics_port=0 if metrics == "on" else None, from_start=True,
        settings=ExporterSettings(follow=False, watch_process=False),
    )  # fmt: skip
    exporting = Export(options)
    wall, cpu_time = time.perf_counter(), time.process_time()
    outcome = exporting.run(JournalReader(journal))
    wall, cpu_time = time.perf_counter() - wall, time.process_time() - cpu_time
    exporting.close()
    exported = outcome.counts.exported if outcome is not None else 0
    print(json.dumps({"spans": exported, "elapsed_s": wall, "cpu_s": cpu_time}))


def scrape(port: str) -> None:
    """Scrape a metrics page once a second."""
    url, parent = f"http://127.0.0.1:{port}/metrics", os.getppid()
    while os.getppid() == parent:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as page:
            page.read()
        time.sleep(1.0)


@contextlib.contextmanager
def scraper(port: int) -> Iterator[None]:
    """Scrapes a port from a process of its own."""
    process = subprocess.Popen([sys.executable, "-P", "-m", MODULE, "scrape", str(port)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def receiver() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A receiver in a process of its own: its URL. Closing its input makes it print how many spans came."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", MODULE, "receive"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        port = process.stdout.readline().strip() if process.stdout is not None else ""
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.kill()
        process.communicate()


if __name__ == "__main__":
    programs: dict[str, Callable[..., None]] = {"receive": receive, "export": export, "scrape": scrape}
    programs[sys.argv[1]](*sys.argv[2:])
