"""Where a decode step's time goes on a GPU: each kernel's share of a replayed graph. Knows no scheduler."""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from typing import cast

import numpy as np
import torch

from ..engine.config import EngineConfig
from ..engine.plan import StepPlan
from ..engine.runner.load import load
from ..engine.runner.model_runner import ModelRunner
from ..engine.sampling_params import SamplingParams
from ..engine.sequence import Sequence
from ..models import load_generation_defaults

_STEPS = 20


def profile(model: str, batch: int, context: int, block_size: int, top: int) -> None:
    """Replay a decode step of `batch` sequences at `context` tokens and print its kernels by time."""
    config = EngineConfig(
        model=model, block_size=block_size, max_num_seqs=batch, max_model_len=context + _STEPS * 3,
        num_blocks=batch * (-(-(context + _STEPS * 3) // block_size)),
    )  # fmt: skip
    runner = cast(ModelRunner, load(config).runner)  # one rank
    for part in ("warmup_ns", "capture_ns", "exercise_ns"):
        print(f"{part} {runner.startup[part] / 1e9:.1f} s")
    decodes, rows = runner._decodes, runner._rows
    if decodes is None:
        raise SystemExit("this needs a GPU and graphs")
    width = rows.block_tables.shape[1]
    blocks = torch.randperm(runner.num_blocks, device=rows.block_tables.device)[: batch * width]
    rows.block_tables[:batch].copy_(blocks.view(batch, width))
    rows.temperature.fill_(0.6)
    for keys, values in runner.kv_caches:
        keys.normal_()
        values.normal_()
    ids, start = np.arange(batch, dtype=np.int32), np.full(batch, context, dtype=np.int32)
    with torch.inference_mode():
        for _ in range(3):
            decodes.run(ids, start)
        torch.cuda.synchronize()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        events[0].record()
        for _ in range(_STEPS):
            decodes.run(ids, start)
        events[1].record()
        torch.cuda.synchronize()
        print(f"batch {batch}, context {context}: {events[0].elapsed_time(events[1]) / _STEPS * 1000:.0f} us a step")
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            for _ in range(_STEPS):
                decodes.run(ids, start)
            torch.cuda.synchronize()
    print_kernels(profiler, top)


def print_kernels(profiler: torch.profiler.profile, top: int) -> None:
    """Kernels by time, of a profile of _STEPS steps."""
    times: dict[str, list[float]] = defaultdict(list)
    for event in profiler.events():
        if event.device_time:
            times[event.name].append(event.device_time)
    print(f"{'kernel':70} {'calls':>6} {'us each':>8} {'us a step':>10}")
    for name, each in sorted(times.items(), key=lambda item: -sum(item[1]))[:top]:
        print(f"{name[:70]:70} {len(each) / _STEPS:6.1f} {sum(each) / len(each):8.2f} {sum(each) / _STEPS:10.1f}")
    total = sum(sum(each) for each in times.values()) / _STEPS
    print(f"{'all kernels':70} {sum(map(len, times.values())) / _STEPS:6.1f} {'':8} {total:10.1f}")


def profile_prefill(model: str, rows: int, tokens: int, block_size: int, top: int) -> None:
    """Launch a step that prefills `rows` prompts of `tokens` tokens and print its kernels by time, and the host's."""
    held = -(-tokens // block_size)
    config = EngineConfig(
        model=model, block_size=block_size, max_num_seqs=max(rows, 8), max_model_len=tokens + 8,
        num_blocks=rows * (held + 1), max_num_batched_tokens=rows * tokens,
    )  # fmt: skip
    runner = cast(ModelRunner, load(config).runner)  # one rank
    params = SamplingParams(temperature=0.6).resolve(load_generation_defaults(model))

    def step() -> float:
        sequences = []
        for row in range(rows):
            seq = Sequence(row, "", [row] * tokens, params, row, 0, lambda event: None, lambda: 0, tokens + 8)
            seq.block_table = list(range(row * held, (row + 1) * held))
            sequences.append(seq)
        plan = StepPlan(0, "prefill", sequences, [0] * rows, [tokens] * rows, [True] * rows, [0] * rows, [])
        began = time.perf_counter()
        handle = runner.launch(plan)
        launched = time.perf_counter() - began
        runner.collect(handle)
        runner.forget(list(range(rows)))
        return launched

    host = sorted(step() for _ in range(5))[2]
    began = time.perf_counter()
    for _ in range(_STEPS):
        step()
    each = (time.perf_counter() - began) / _STEPS
    print(f"{rows} x {tokens}: {each * 1e3:.1f} ms a step, {host * 1e3:.1f} ms to launch")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(_STEPS):
            step()
    print_kernels(profiler, top)


def main() -> None:
    """Flags to a profile."""
    parser = argparse.ArgumentParser(prog="step_profile", description=__doc__)
    parser.add_argument("--model", default="dummy:qwen3-0.6b")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--context", type=int, default=600)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--top", type=int, default=18)
    parser.add_argument("--prefill", action="store_true", help="a step of --batch prompts of --context tokens instead")
    own = parser.parse_args()
    run = profile_prefill if own.prefill else profile
    run(own.model, own.batch, own.context, own.block_size, own.top)


if __name__ == "__main__":
    main()
