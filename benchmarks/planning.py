"""What planning a step costs: the scheduler and the block manager alone, no model and no device.

`python -P -m nanolens.benchmarks.planning` prints the median of each pool size.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence as Many

from ..engine.block_manager import BlockManager
from ..engine.config import EngineConfig
from ..engine.plan import StepPlan
from ..engine.sampling_params import SamplingParams
from ..engine.scheduler import Scheduler
from ..engine.sequence import Sequence
from ..telemetry.clock import monotonic_ns
from ..telemetry.recorder import Recorder

BLOCK_SIZE = 16


class DecodingScheduler:
    """A scheduler whose sequences all decode, each one token a step; a sixteenth of them takes a new block in each.

    Args:
        num_blocks: size of the pool.
        num_seqs: running sequences.
        blocks_each: blocks that each of them holds at the start.
    """

    def __init__(self, num_blocks: int, num_seqs: int, blocks_each: int) -> None:
        num_tokens = blocks_each * BLOCK_SIZE
        config = EngineConfig(
            num_blocks=num_blocks, block_size=BLOCK_SIZE, max_num_seqs=num_seqs,
            max_num_batched_tokens=num_seqs * num_tokens, seed=0,
        )  # fmt: skip
        self.recorder = Recorder(None)
        record = self.recorder.record
        self.blocks = BlockManager(num_blocks, BLOCK_SIZE, record, monotonic_ns)
        self.scheduler = Scheduler(config, self.blocks, record, monotonic_ns)
        params = SamplingParams(max_tokens=1 << 20)
        for seq_id in range(num_seqs):
            prompt = [seq_id] * (num_tokens - seq_id % BLOCK_SIZE)
            self.scheduler.add(Sequence(seq_id, str(seq_id), prompt, params, 0, 0, record, monotonic_ns, 1 << 20))
        self.read(self.plan())

    def plan(self) -> StepPlan:
        """Plan the next step, with every sequence in it."""
        plan = self.scheduler.plan()
        if plan is None or len(plan.sequences) < len(self.scheduler.running):
            raise RuntimeError("the pool is too small for this many sequences and blocks")
        return plan

    def read(self, plan: StepPlan) -> None:
        """Give each sequence of a step its token, and end the step."""
        for seq in plan.sequences:
            seq.num_pending -= 1
            seq.token_ids.append(0)
        self.recorder.flush(plan.step)


def median_ms(num_blocks: int, num_seqs: int, blocks_each: int, steps: int) -> float:
    """Median time of planning one decode step, in milliseconds."""
    engine = DecodingScheduler(num_blocks, num_seqs, blocks_each)
    times = []
    for _ in range(steps):
        began = time.perf_counter_ns()
        plan = engine.plan()
        times.append(time.perf_counter_ns() - began)
        engine.read(plan)
    return statistics.median(times) / 1e6


def main(argv: Many[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m nanolens.benchmarks.planning", description=__doc__)
    parser.add_argument("--seqs", type=int, default=256, help="running sequences")
    parser.add_argument("--blocks-each", type=int, default=64, help="KV blocks that each of them holds")
    parser.add_argument("--pools", type=int, nargs="+", default=[20_000, 200_000], help="pool sizes in blocks")
    parser.add_argument("--steps", type=int, default=200, help="steps measured")
    args = parser.parse_args(argv)
    for num_blocks in args.pools:
        took = median_ms(num_blocks, args.seqs, args.blocks_each, args.steps)
        print(f"pool of {num_blocks:>7} blocks, {args.seqs} sequences of {args.blocks_each}: {took:.3f} ms a plan")


if __name__ == "__main__":
    main()
