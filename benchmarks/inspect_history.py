"""How fast a journal answers: opening it at its end, and jumping anywhere in it. No model, no terminal.

`python -P -m nanolens.benchmarks.inspect_history` records runs of a real engine under load (the runner computes
nothing; its clock says a step takes --step-ms), and reads each in a process of its own.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ..engine.config import EngineConfig
from ..engine.core import EngineCore
from ..engine.request import Request
from ..engine.sampling_params import SamplingParams
from ..inspector.history.history import History
from ..inspector.short_pauses import short_pauses
from ..inspector.view import Moment
from ..telemetry.events import AnyEvent, EngineStarted
from ..telemetry.journal import JournalWriter
from ..telemetry.recorder import Recorder
from .span_speed import BLOCK_SIZE, MODEL_LEN, VOCAB_SIZE, IdleRunner


class Took(NamedTuple):
    """Milliseconds that passed, and that this process computed."""

    wall: float
    cpu: float


class StepClock:
    """A clock of a run that takes a given time a step, however fast the steps are made."""

    def __init__(self) -> None:
        self.now = 1_000_000_000

    def __call__(self) -> int:
        """The time in nanoseconds."""
        self.now += 100
        return self.now


def record(directory: Path, num_seqs: int, steps: int, events: int, step_ns: int) -> None:
    """Record a run under load: so many steps, and on until there are so many events."""
    rng, clock, count = random.Random(0), StepClock(), 0
    num_blocks = num_seqs * 24
    config = EngineConfig(
        num_blocks=num_blocks, block_size=BLOCK_SIZE, max_num_seqs=num_seqs, max_num_batched_tokens=2048,
        max_prefill_chunk=256, seed=0,
    )  # fmt: skip
    recorder = Recorder(JournalWriter(directory, "benchmark", clock=clock), clock)

    def tally(batch: Sequence[AnyEvent]) -> None:
        nonlocal count
        count += len(batch)

    recorder.subscribe(tally)
    started = EngineStarted(
        clock(), "benchmark", 0, 1, "0", "none", config.as_record(), num_blocks, BLOCK_SIZE, VOCAB_SIZE, MODEL_LEN
    )
    core = EngineCore(
        config, IdleRunner(num_blocks, step_ns), recorder, started, eos_token_ids=frozenset(), overlap=True, clock=clock
    )
    shared = [[rng.randrange(VOCAB_SIZE) for _ in range(256)] for _ in range(8)]
    names, done = itertools.count(), 0
    while done < steps or count < events:
        while len(core.requests) < 2 * num_seqs:
            prompt = rng.choice(shared) + [rng.randrange(VOCAB_SIZE) for _ in range(rng.randrange(8, 400))]
            params = SamplingParams(max_tokens=rng.randrange(16, 256), temperature=0.0)
            core.add(Request(str(next(names)), None, prompt, params))
        core.step()
        clock.now += step_ns
        done += 1
    core.flush()
    recorder.close()
    print(f"{directory.name}: {count:,} events, {done:,} steps, {_megabytes(directory):.1f} MB", flush=True)


def read(directory: Path, jumps: int) -> None:
    """Open a journal as nano-inspect does, jump, step back and forth; print times and memory."""
    rng, before = random.Random(1), _peak_mib()
    began = time.perf_counter()
    history = History(directory)
    _look(history, history.last())
    opened = (time.perf_counter() - began) * 1e3
    print(f"  opened at its end in {opened:.0f} ms, peak RSS {_peak_mib():.0f} MiB ({before:.0f} before)")
    first, last = history.tick(history.first()).step, history.tick(history.last()).step
    steps = [rng.randint(first, last) for _ in range(jumps)]
    _print_times("jump", [_timed(history, partial(history.at_step, step))[0] for step in steps])
    for name, by in (("step back", -1), ("step on", 1)):
        times = []
        for step in steps[:20]:
            moment = history.at_step(step)
            _look(history, moment)
            for _ in range(5):
                took, moment = _timed(history, partial(history.move, moment, by))
                times.append(took)
        _print_times(name, times)
    print(f"  peak RSS {_peak_mib():.0f} MiB after all that")


def _look(history: History, moment: Moment) -> None:
    """All that a view shows."""
    history.keyframe(moment)
    history.steps(moment)
    history.events(moment)


def _timed(history: History, find: Callable[[], Moment]) -> tuple[Took, Moment]:
    """How long it takes until a moment is found and shown, and the moment."""
    began, cpu = time.perf_counter(), time.process_time()
    moment = find()
    _look(history, moment)
    return Took((time.perf_counter() - began) * 1e3, (time.process_time() - cpu) * 1e3), moment


def _print_times(name: str, times: list[Took]) -> None:
    walls, cpus = [took.wall for took in times], [took.cpu for took in times]
    print(
        f"  {name:>9}: {len(times)} of them, median {statistics.median(walls):.1f} ms, worst {max(walls):.1f} ms; "
        f"in CPU time {statistics.median(cpus):.1f} and {max(cpus):.1f} ms"
    )


def _megabytes(directory: Path) -> float:
    return sum(path.stat().st_size for path in directory.iterdir()) / 1e6


def _peak_mib() -> float:
    """The most memory that this process has held."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024


def main(argv: Sequence[str] | None = None) -> None:
    """Record, then read each journal in a process of its own."""
    parser = argparse.ArgumentParser(prog="python -m nanolens.benchmarks.inspect_history", description=__doc__)
    parser.add_argument("--seqs", type=int, default=64, help="sequences that run at once")
    parser.add_argument("--steps", type=int, default=10_000, help="steps of the first journal")
    parser.add_argument("--events", type=int, default=1_000_000, help="events of the second one")
    parser.add_argument("--step-ms", type=float, default=10.0, help="how long a step takes, by the engine's clock")
    parser.add_argument("--jumps", type=int, default=100, help="random jumps in each")
    parser.add_argument("--read", metavar="DIR", type=Path, help="only read this journal")
    args = parser.parse_args(argv)
    if args.read:
        with short_pauses():
            read(args.read, args.jumps)
        return
    step_ns = int(args.step_ms * 1e6)
    with tempfile.TemporaryDirectory() as scratch:
        for name, steps, events in (("steps", args.steps, 0), ("events", 0, args.events)):
            directory = Path(scratch) / name
            record(directory, args.seqs, steps, events, step_ns)
            own = [sys.executable, "-P", "-m", "nanolens.benchmarks.inspect_history"]
            subprocess.run([*own, "--read", str(directory), "--jumps", str(args.jumps)], check=True)


if __name__ == "__main__":
    main()
