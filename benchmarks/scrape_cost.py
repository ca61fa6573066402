"""What metrics cost: applying a busy engine's events, and scraping meanwhile.

Run as `python -m nanolens.benchmarks.scrape_cost`. The events are made here, without an engine: 256 sequences decode,
1,000 wait, and requests come and go.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
import urllib.request
from collections.abc import Iterator

from ..telemetry.events import (
    AnyEvent,
    BlocksAllocated,
    BlocksCached,
    BlocksFreed,
    EngineStarted,
    PrefixMatched,
    RequestArrived,
    RequestFinished,
    StatusChanged,
    StepFinished,
    StepPlanned,
    WaitReasonChanged,
)
from ..telemetry.metrics import Metrics
from ..telemetry.metrics_server import serve_metrics
from ..telemetry.span_ids import TraceIds

OPENMETRICS = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
BLOCK_SIZE, PROMPT_BLOCKS, NUM_BLOCKS = 16, 8, 65_536
STEP_NS = 10_000_000


class BusyEngine:
    """Frames of a run that never ends: each step finishes a few sequences and admits as many.

    Args:
        running: sequences that decode.
        waiting: sequences in the queue.
        turnover: sequences that end in each step.
    """

    def __init__(self, running: int, waiting: int, turnover: int) -> None:
        self._running, self._waiting, self._turnover = running, waiting, turnover
        self._next = self._admitted = self._ended = self.step = 0

    def start(self) -> list[AnyEvent]:
        """The run's first frame."""
        started = EngineStarted(1, "bench", 0, 1, "0", "made-up", {}, NUM_BLOCKS, BLOCK_SIZE, 1000, 4096)
        first: list[AnyEvent] = [started]
        for _ in range(self._running + self._waiting):
            first += self._arrival()
        chunks = []
        for _ in range(self._running):
            first += self._admission()
            chunks.append((self._admitted - 1, 0, PROMPT_BLOCKS * BLOCK_SIZE))
        return [*first, *self._step(chunks, 0)]

    def frames(self) -> Iterator[list[AnyEvent]]:
        """One frame after another, a step each."""
        while True:
            frame: list[AnyEvent] = []
            chunks = []
            for _ in range(self._turnover):
                frame += self._end()
                frame += self._arrival()
                frame += self._admission()
                chunks.append((self._admitted - 1, 0, PROMPT_BLOCKS * BLOCK_SIZE))
            yield [*frame, *self._step(chunks, self._running - self._turnover)]

    @property
    def _t(self) -> int:
        return (self.step + 1) * STEP_NS

    def _arrival(self) -> Iterator[AnyEvent]:
        seq = self._next
        self._next += 1
        yield RequestArrived(self._t, f"r{seq}", [seq], PROMPT_BLOCKS * BLOCK_SIZE, 64, 0, {})
        yield StatusChanged(self._t, self.step, seq, "", "WAITING", "arrived", f"r{seq}")
        yield WaitReasonChanged(self._t, self.step, seq, "head_of_line")

    def _admission(self) -> Iterator[AnyEvent]:
        seq, blocks, tokens = self._admitted, self._blocks(self._admitted), PROMPT_BLOCKS * BLOCK_SIZE
        self._admitted += 1
        yield StatusChanged(self._t, self.step, seq, "WAITING", "RUNNING", "admitted")
        yield PrefixMatched(self._t, self.step, seq, tokens, 0, tokens, 0, 0, False)
        evicted = blocks if seq * PROMPT_BLOCKS >= NUM_BLOCKS else []
        yield BlocksAllocated(self._t, self.step, seq, [], blocks, evicted, 0)
        yield BlocksCached(self._t, self.step, seq, blocks, bytes(8 * len(blocks)))

    def _end(self) -> Iterator[AnyEvent]:
        seq = self._ended
        self._ended += 1
        yield StatusChanged(self._t, self.step, seq, "RUNNING", "FINISHED", "length")
        yield BlocksFreed(self._t, self.step, seq, self._blocks(seq), 0)
        yield RequestFinished(self._t, f"r{seq}", "length", PROMPT_BLOCKS * BLOCK_SIZE, 64, 0)

    @staticmethod
    def _blocks(seq: int) -> list[int]:
        first = seq * PROMPT_BLOCKS
        return [block % NUM_BLOCKS for block in range(first, first + PROMPT_BLOCKS)]

    def _step(self, chunks: list[tuple[int, int, int]], decodes: int) -> Iterator[AnyEvent]:
        self.step += 1
        kind = "mixed" if chunks else "decode"
        yield StepPlanned(self._t, self.step, kind, chunks, decodes, [], self._waiting, self._running, 0)
        tokens = decodes + sum(count for _, _, count in chunks)
        yield StepFinished(self._t + STEP_NS, self.step, 50_000, 50_000, 0, 90_000, tokens, decodes + len(chunks), [])


def main() -> None:
    """Print what applying costs, and how long scrapes take beside it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000, help="steps to apply at full speed")
    parser.add_argument("--scrapes", type=int, default=40)
    options = parser.parse_args()
    engine, traces = BusyEngine(256, 1000, 4), TraceIds()
    metrics = Metrics(trace_ids=traces)
    first, frames = engine.start(), engine.frames()
    traces.apply_all(first)
    metrics.apply_all(first)
    made = [next(frames) for _ in range(options.steps)]
    began = time.perf_counter()
    for frame in made:
        traces.apply_all(frame)
        metrics.apply_all(frame)
    took = time.perf_counter() - began
    num_events, num_tokens = sum(map(len, made)), 256 * len(made)
    print(f"applied {num_events:,} events, {num_tokens:,} tokens in {took:.2f} s: {num_events / took:,.0f} events/s,")
    print(f"{num_tokens / took:,.0f} tokens/s, {took / len(made) * 1e6:.0f} us a step of 256 sequences")
    _scrapes(metrics, frames, options.scrapes)
    print(f"contradictions: {metrics.num_contradictions}")


def _scrapes(metrics: Metrics, frames: Iterator[list[AnyEvent]], count: int) -> None:
    """Scrape over HTTP while another thread applies 100 steps a second."""
    stop = threading.Event()

    def apply() -> None:
        while not stop.wait(0.01):
            metrics.apply_all(next(frames))

    thread = threading.Thread(target=apply)
    thread.start()
    try:
        with serve_metrics(metrics, 0) as server:
            for name, headers in (("classic", {}), ("OpenMetrics", OPENMETRICS)):
                times = []
                for _ in range(count):
                    began = time.perf_counter()
                    with urllib.request.urlopen(urllib.request.Request(server.url, headers=headers)) as answer:
                        size = len(answer.read())
                    times.append((time.perf_counter() - began) * 1e3)
                    time.sleep(0.02)
                print(f"{name}: {size:,} bytes; median {statistics.median(times):.1f} ms, worst {max(times):.1f} ms")
    finally:
        stop.set()
        thread.join()


if __name__ == "__main__":
    main()
