"""How fast a journal is analysed by the latency model: every request of a long one, on one core. No model, no device.

`python -P -m nanolens.benchmarks.latency_speed` records a run of a real engine under load (the runner computes nothing;
its clock says what a step takes), and analyses it in a process of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from ..inspector.short_pauses import rare_collections
from ..telemetry.latency import Latency
from ..telemetry.latency_tracks import LatencyTracks
from ..telemetry.reader import JournalReader
from .inspect_history import _peak_mib, record


def analyse(directory: Path) -> None:
    """Divide the time of every request of a journal; print times and memory."""
    rare_collections()  # as nano-trace does
    before, events = _peak_mib(), 0
    began = time.process_time()
    tracks = LatencyTracks()
    for frame in JournalReader(directory).frames():
        if frame.gap:
            tracks.lose()
        for event in frame.events:
            tracks.apply(event)
        events += len(frame.events)
    tracks.finish()
    read = time.process_time()
    latency = Latency(tracks)
    fitted = time.process_time()
    requests = wrong = 0
    for b in latency.breakdowns():
        requests += 1
        wrong += sum(b.parts.values()) != b.total_ns or min(b.parts.values(), default=0) < 0
    done = time.process_time()
    print(
        f"{events:,} events, {len(tracks.steps):,} steps, {requests:,} requests, {wrong} of them inexact\n"
        f"  one pass {read - began:.2f} s, fit {fitted - read:.2f} s, division {done - fitted:.2f} s, "
        f"together {done - began:.2f} s of CPU time\n"
        f"  peak RSS {_peak_mib():.0f} MiB ({before:.0f} before)"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Record, then analyse in a process of its own."""
    parser = argparse.ArgumentParser(prog="python -m nanolens.benchmarks.latency_speed", description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000, help="events of the journal")
    parser.add_argument("--seqs", type=int, default=64, help="sequences that run at once")
    parser.add_argument("--step-ms", type=float, default=10.0, help="how long a step takes, by the engine's clock")
    parser.add_argument("--read", metavar="DIR", type=Path, help="only analyse this journal")
    args = parser.parse_args(argv)
    if args.read:
        analyse(args.read)
        return
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / "journal"
        record(directory, args.seqs, 0, args.events, int(args.step_ms * 1e6))
        own = [sys.executable, "-P", "-m", "nanolens.benchmarks.latency_speed"]
        subprocess.run([*own, "--read", str(directory)], check=True)


if __name__ == "__main__":
    main()
