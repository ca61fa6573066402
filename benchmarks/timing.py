"""Times operations: CUDA graphs replayed on a GPU, a clock on a CPU. Knows no operation.

Whoever calls passes one call for each set of inputs, enough sets together that they don't stay in a cache.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

Call = Callable[[], object]
_ENOUGH_S = 0.5  # of replays, three at least
_CALLS_A_REPLAY = 12  # at least: the launch of a graph must be small beside what it holds


def call_microseconds(calls: Sequence[Call], device: torch.device, replays: int = 20) -> float:
    """Median time of one of `calls`, which run one after the other without the host's part.

    Args:
        calls: each with inputs of its own; on a GPU they may neither wait for it nor copy from the host.
        device: where they run.
        replays: how often all of them are timed; fewer times if that takes long.
    """
    if device.type != "cuda":
        return eager_microseconds(calls, device, replays)
    for call in calls:  # compiles: inputs that are aligned differently have kernels of their own
        call()
    torch.cuda.synchronize(device)
    rounds = -(-_CALLS_A_REPLAY // len(calls))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for call in calls:
                call()
    graph.replay()
    return _median(graph.replay, device, replays) * 1e6 / (rounds * len(calls))


def eager_microseconds(calls: Sequence[Call], device: torch.device, replays: int = 5) -> float:
    """Median time of one of `calls`, the host launching each: of what `call_microseconds` can't capture."""

    def all_calls() -> None:
        for call in calls:
            call()

    all_calls()
    return _median(all_calls, device, replays) * 1e6 / len(calls)


def best_seconds(call: Call, device: torch.device, tries: int = 8, calls_a_try: int = 4) -> float:
    """Least time of one call, after a warm-up; on a GPU of several in a row, so that the host's part hides."""
    calls_a_try = calls_a_try if device.type == "cuda" else 1

    def several() -> None:
        for _ in range(calls_a_try):
            call()

    several()
    return min(_timed(several, device) for _ in range(tries)) / calls_a_try


def _median(work: Call, device: torch.device, replays: int) -> float:
    """Seconds; of as many runs as half a second allows, from three to `replays`."""
    times: list[float] = []
    while len(times) < replays and (len(times) < 3 or sum(times) < _ENOUGH_S):
        times.append(_timed(work, device))
    return statistics.median(times)


def _timed(work: Call, device: torch.device) -> float:
    """Seconds, by events on a GPU."""
    if device.type != "cuda":
        began = time.perf_counter()
        work()
        return time.perf_counter() - began
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e-3
