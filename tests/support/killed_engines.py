"""A program for tests: real engines that are killed while they work, each with its own journal.

Usage: killed_engines.py DIRECTORY COUNT SEED. Torch is loaded once; each engine is a fork, killed with SIGKILL when its
journal has grown by a random number of bytes, after a random further delay. Prints one line for each.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

from nanolens.engine import build
from nanolens.engine.config import EngineConfig
from nanolens.engine.engine import Engine
from nanolens.engine.runner.load import LoadedModel, load_parts
from nanolens.engine.sampling_params import SamplingParams
from nanolens.telemetry.journal import JournalWriter
from nanolens.telemetry.recorder import Recorder

MODEL = "dummy:llama-tiny"
SEGMENT_BYTES = 12_000
KEYFRAME_INTERVAL_NS = 10_000_000
MOST_BYTES = 120_000
DEADLINE_S = 60.0


def start(journal: Path, parts: LoadedModel, rng: random.Random) -> Engine:
    """An engine with small segments and frequent keyframes, in one of its ways of working."""
    build.make_recorder = lambda config, run_id: Recorder(  # the settings have no such sizes
        JournalWriter(journal, run_id, segment_bytes=SEGMENT_BYTES), keyframe_interval_ns=KEYFRAME_INTERVAL_NS
    )
    config = EngineConfig(
        model=MODEL, device="cpu", num_blocks=24, block_size=4, max_num_seqs=8, max_prefill_chunk=rng.choice([None, 5]),
        batching=rng.choice(["mixed", "prefill_first"]), policy=rng.choice(["fcfs", "priority", "sjf"]),
        overlap=rng.random() < 0.5, seed=1,
    )  # fmt: skip
    return build.build_engine(config, parts)


def work(engine: Engine, rng: random.Random) -> None:
    """Requests of random lengths and shared prefixes, siblings, refusals and aborts, without end."""
    prefixes = [[rng.randrange(256) for _ in range(12)] for _ in range(3)]
    names: list[str] = []
    while True:
        while len(engine.core.requests) < 8:
            prompt = rng.choice(prefixes)[: rng.randrange(13)] + [rng.randrange(256) for _ in range(rng.randint(1, 12))]
            params = SamplingParams(
                max_tokens=rng.randint(1, 40), n=rng.choice([1, 1, 1, 3]), priority=rng.randrange(3), temperature=1.0
            )
            names.append(engine.add_request(prompt, params))
        engine.step()
        if rng.random() < 0.02:
            engine.abort(rng.choice(names[-8:]))


def size_of(journal: Path) -> int:
    return sum(path.stat().st_size for path in journal.glob("*.journal"))


def kill_one(journal: Path, parts: LoadedModel, rng: random.Random) -> None:
    """Fork an engine, and kill it at a random moment."""
    seed, threshold, delay = rng.random(), rng.randrange(MOST_BYTES), rng.uniform(0.0, 0.005)
    pid = os.fork()
    if pid == 0:
        try:
            own = random.Random(seed)
            work(start(journal, parts, own), own)
        finally:
            os._exit(1)
    deadline = time.monotonic() + DEADLINE_S
    while size_of(journal) <= threshold and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(delay)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    print(journal.name, os.WTERMSIG(status) if os.WIFSIGNALED(status) else "ended by itself", flush=True)


def main() -> None:
    """Kill COUNT engines."""
    directory, count, rng = Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))
    parts = load_parts(EngineConfig(model=MODEL, dtype="float32", device="cpu"))
    for index in range(count):
        kill_one(directory / f"{index:02d}", parts, rng)


if __name__ == "__main__":
    main()
