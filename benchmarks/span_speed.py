"""How fast spans are made from a journal: the projection alone, on one core, no exporter and no model.

`python -P -m nanolens.benchmarks.span_speed` prints events and spans a second of CPU time.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from ..engine.config import EngineConfig
from ..engine.core import EngineCore
from ..engine.plan import MoveResult, StepPlan, StepResult
from ..engine.request import Request
from ..engine.sampling_params import SamplingParams
from ..telemetry.clock import monotonic_ns, wall_offset_ns
from ..telemetry.events import AnyEvent, EngineStarted
from ..telemetry.recorder import Recorder
from ..telemetry.spans import SpanBuilder
from ..telemetry.tail_rules import TailRules

BLOCK_SIZE, MODEL_LEN, VOCAB_SIZE = 16, 2048, 1000


class IdleRunner:
    """A runner that computes nothing: every sampled token is 0, and every move is done at once.

    Args:
        num_blocks: of its pool.
        device_ns: what it says that a step took.
    """

    host_blocks = disk_blocks = swap_ns_per_block = 0
    vocab_size = VOCAB_SIZE

    def __init__(self, num_blocks: int, device_ns: int = 0) -> None:
        self.num_blocks = num_blocks
        self._device_ns = device_ns

    def launch(self, plan: StepPlan) -> Any:
        """Sample."""
        return [0] * sum(plan.samples)

    def collect(self, handle: Any) -> StepResult:
        """Give the tokens."""
        return StepResult(tokens=handle, device_ns=self._device_ns)

    def finish_moves(self) -> list[MoveResult]:
        """There are none."""
        return []

    def is_sound(self) -> bool:
        """It can't break."""
        return True

    def look(self) -> str:
        """Nothing can fail."""
        return ""

    def close(self) -> None:
        """It holds nothing."""


def busy_run(num_requests: int, num_seqs: int) -> list[AnyEvent]:
    """The events of a real engine under load: queues, shared prefixes, chunks, and a pool a little too small."""
    rng, events = random.Random(0), list[AnyEvent]()
    num_blocks = num_seqs * 24
    config = EngineConfig(
        num_blocks=num_blocks, block_size=BLOCK_SIZE, max_num_seqs=num_seqs, max_num_batched_tokens=2048,
        max_prefill_chunk=256, seed=0,
    )  # fmt: skip
    recorder = Recorder(None)
    recorder.subscribe(events.extend)
    started = EngineStarted(
        monotonic_ns(), "benchmark", wall_offset_ns(), 1, "0", "none", config.as_record(), num_blocks, BLOCK_SIZE,
        VOCAB_SIZE, MODEL_LEN,
    )  # fmt: skip
    core = EngineCore(config, IdleRunner(num_blocks), recorder, started, eos_token_ids=frozenset(), overlap=True)
    shared = [[rng.randrange(VOCAB_SIZE) for _ in range(256)] for _ in range(8)]
    waiting = deque(range(num_requests))
    while waiting or core.requests:
        while waiting and len(core.requests) < 2 * num_seqs:
            prompt = rng.choice(shared) + [rng.randrange(VOCAB_SIZE) for _ in range(rng.randrange(8, 400))]
            params = SamplingParams(max_tokens=rng.randrange(16, 256), temperature=0.0)
            core.add(Request(str(waiting.popleft()), None, prompt, params))
        core.step()
    core.close()
    return events


def spans_per_s(events: list[AnyEvent], rules: TailRules, repeats: int) -> tuple[float, int]:
    """Spans made in a second of CPU time, the median of some repeats, and how many there are."""
    rates, recorded = [], 0
    for _ in range(repeats):
        builder = SpanBuilder(rules=rules)
        began = time.process_time()
        builder.apply_all(events)
        builder.take()
        rates.append(builder.counts["recorded"] / (time.process_time() - began))
        recorded = builder.counts["recorded"]
    return statistics.median(rates), recorded


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m nanolens.benchmarks.span_speed", description=__doc__)
    parser.add_argument("--requests", type=int, default=400, help="requests of the run")
    parser.add_argument("--seqs", type=int, default=64, help="sequences that run at once")
    parser.add_argument("--repeats", type=int, default=5, help="measurements, of which the median is shown")
    args = parser.parse_args(argv)
    events = busy_run(args.requests, args.seqs)
    for name, rules in (("all kept", TailRules()), ("1% kept", TailRules(percent=1.0))):
        rate, count = spans_per_s(events, rules, args.repeats)
        print(f"{name:>9}: {count} spans of {len(events)} events, {rate:,.0f} spans/s on one core")


if __name__ == "__main__":
    main()
