"""`nano-bench exporter`: how many spans a second the exporter does on one core, from a journal to a receiver."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ..errors import InvalidConfig
from .environment import commit, cpu_name
from .exporter_ends import MODULE, receiver
from .exporter_load import write_journal
from .stats import median

DESCRIPTION = """\
Export a journal of an engine without a model (shared prefixes, siblings, preemptions) to a receiver that only counts,
in a process of its own on another core where there is one. The exporter runs on one core; its time is from the first
frame read to the last batch taken, without the start of Python."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument("--num-requests", type=int, default=2000, metavar="N", help="requests in the journal")
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="exports of it (default: 3)")
    parser.add_argument("--metrics", choices=("on", "off"), default="on", help="keep metrics from the same frames")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print.

    Returns:
        0; 1 where spans did not arrive.

    Raises:
        InvalidConfig: a flag out of range.
    """
    for name in ("num_requests", "runs"):
        if getattr(arguments, name) < 1:
            raise InvalidConfig(f"{name}={getattr(arguments, name)}: must be at least 1")
    if arguments.json is not None and not arguments.json.absolute().parent.is_dir():
        raise InvalidConfig(f"json={arguments.json}: its directory does not exist")
    with tempfile.TemporaryDirectory(prefix="nano-bench-") as directory:
        journal = Path(directory)
        write_journal(journal, arguments.num_requests)
        size = sum(path.stat().st_size for path in journal.iterdir())
        print(f"a journal of {arguments.num_requests:,} requests, {size / 1e6:.1f} MB; {cpu_name() or 'unknown CPU'}")
        results = [export_once(journal, arguments.metrics) for _ in range(arguments.runs)]
    rates = [result["spans"] / result["elapsed_s"] for result in results]
    for result, rate in zip(results, rates, strict=True):
        took = f"{result['elapsed_s']:.2f} s ({result['cpu_s']:.2f} s of CPU)"
        print(f"{result['spans']:,} spans in {took}: {rate:,.0f} a second")
    print(f"median: {median(rates):,.0f} spans a second")
    if arguments.json is not None:
        record = {
            "command": "exporter",
            "commit": commit(),
            "cpu": cpu_name(),
            "metrics": arguments.metrics,
            "num_requests": arguments.num_requests,
            "runs": results,
            "median_spans_per_s": median(rates),
        }
        arguments.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0 if all(result["received"] == result["spans"] for result in results) else 1


def export_once(journal: Path, metrics: str) -> dict[str, Any]:
    """One export: spans, seconds, seconds of CPU, and what the receiver counted."""
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    with receiver() as (url, process):
        command = [sys.executable, "-P", "-m", MODULE, "export", str(journal), url, str(cpus[-1]), metrics]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        received, _ = process.communicate("")
    result: dict[str, Any] = json.loads(done.stdout)
    return result | {"received": int(received)}
