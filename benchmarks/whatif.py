"""How well a what-if predicts: run A is recorded, a change of settings predicted from it, and run B made with it.

`python -P -m nanolens.benchmarks.whatif` makes a run for each change, the same requests at the same times: prompts of
mixed lengths, some with a prefix in common, from users who do not wait for each other (an open loop that loads the
engine to a given share of what it can do), or all at once (`--burst`). On a machine that others use, too, take
`nanolens.benchmarks.whatif_cpu_clock`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.build import build_engine
from ..engine.config import EngineConfig
from ..engine.sampling_params import SamplingParams
from ..inspector.replay.recording import Recording, read_recording
from ..inspector.replay.simulate import WhatIf
from ..inspector.replay.simulate_figures import Figures
from ..inspector.replay.simulate_settings import Setting, changed_start, parse_setting
from .environment import environment

if TYPE_CHECKING:
    from ..engine.runner.load import LoadedModel

BASE: dict[str, Any] = {
    "num_blocks": 160, "max_num_seqs": 8, "max_num_batched_tokens": 256, "max_model_len": 256, "seed": 0,
}  # fmt: skip
CHANGES = (
    "num_blocks=0.3x", "max_num_seqs=0.75x", "max_num_batched_tokens=48", "policy=sjf", "batching=prefill_first",
    "prefix_cache=false",
)  # fmt: skip
LIMITS = {"tokens_per_s": 0.10, "ttft_p50": 0.15, "ttft_p99": 0.25, "e2e_p50": 0.15, "e2e_p99": 0.25}
PREFIXES, PREFIX_TOKENS, SHARED = 4, 64, 0.5  # prefixes in common, their length, the share of prompts that has one
PROMPT, OUTPUT = (8, 128), (8, 40)  # tokens: least and most


@dataclass(frozen=True)
class Asked:
    """One request: seconds after the first, its prompt, and how many tokens it is to generate."""

    at: float
    prompt: list[int]
    num_output: int


def make_requests(count: int, rate: float, seed: int, vocab_size: int) -> list[Asked]:
    """Requests that arrive `rate` a second, at random; all at once where that is 0."""
    rng = random.Random(seed)
    prefixes = [[rng.randrange(vocab_size) for _ in range(PREFIX_TOKENS)] for _ in range(PREFIXES)]
    at, found = 0.0, []
    for _ in range(count):
        own = [rng.randrange(vocab_size) for _ in range(rng.randint(*PROMPT))]
        prefix = rng.choice(prefixes) if rng.random() < SHARED else []
        found.append(Asked(at, prefix + own, rng.randint(*OUTPUT)))
        at += rng.expovariate(rate) if rate else 0.0
    return found


def record(config: EngineConfig, parts: LoadedModel, requests: list[Asked], directory: Path) -> Recording:
    """Really run the requests; the run, read from its journal."""
    engine = build_engine(dataclasses.replace(config, journal=str(directory)), parts)
    try:
        began, index = time.monotonic_ns(), 0
        while index < len(requests) or engine.core.has_work:
            now = (time.monotonic_ns() - began) / 1e9
            while index < len(requests) and requests[index].at <= now:
                asked = requests[index]
                params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=asked.num_output)
                engine.add_request(asked.prompt, params)
                index += 1
            if engine.core.has_work:
                engine.core.step()
            else:
                time.sleep(max(0.0, requests[index].at - now))
    finally:
        engine.close()
    return read_recording(directory)


def requests_per_s(config: EngineConfig, parts: LoadedModel, count: int, vocab_size: int, scratch: Path) -> float:
    """What the engine can do: a burst of so many requests."""
    recording = record(config, parts, make_requests(count, 0.0, 1, vocab_size), scratch / "burst")
    figures = WhatIf(recording).recorded
    return figures.requests / (recording.events[-1].t - recording.arrivals[0].t) * 1e9  # type: ignore[union-attr]


def row(change: str, what: str, figures: Figures) -> str:
    """One line of the table."""
    times = (figures.ttft_p50, figures.ttft_p99, figures.e2e_p50, figures.e2e_p99)
    return (
        f"| {change} | {what} | {figures.tokens_per_s:.1f} | " + " | ".join(f"{t:.3f}" for t in times)
        + f" | {figures.preemptions} | {100 * figures.hit_rate:.1f}% |"
    )  # fmt: skip


def compare(change: str, what_if: WhatIf, same: Figures, real_of: Callable[[Setting, int], Figures]) -> dict[str, Any]:
    """Predict from run A, make run B; print both beside each other."""
    setting = parse_setting(change, what_if.recording.started)
    predicted = what_if.run([setting]).figures
    real = real_of(setting, changed_start(what_if.recording.started, [setting])[1])
    off = {name: getattr(predicted, name) / getattr(real, name) - 1 for name in LIMITS}
    print(row(change, "predicted", predicted))
    print(row(change, "real", real))
    held = all(abs(off[name]) <= limit for name, limit in LIMITS.items())
    print(f"| {change} | error | " + " | ".join(f"{100 * off[n]:+.1f}%" for n in LIMITS) + f" | {held} | |", flush=True)
    return {
        "change": change, "recorded": what_if.recorded.as_dict(), "simulated": same.as_dict(),
        "predicted": predicted.as_dict(), "real": real.as_dict(), "errors": off, "within": held,
        "step_error": what_if.times.device.median_error,
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    """Make the pairs."""
    parser = argparse.ArgumentParser(prog="python -m nanolens.benchmarks.whatif", description=__doc__)
    parser.add_argument("--changes", nargs="+", default=list(CHANGES), metavar="NAME=VALUE", help="what is changed")
    parser.add_argument("--model", default="smollm2", help="directory, hub name, smollm2 or dummy:NAME")
    parser.add_argument("--requests", type=int, default=160, help="of each run")
    parser.add_argument("--load", type=float, default=0.75, help="share of what the engine can do")
    parser.add_argument("--rate", type=float, help="requests a second; default: the load's share of a measured burst's")
    parser.add_argument("--burst", action="store_true", help="all requests at once")
    parser.add_argument("--share", type=int, default=1, metavar="N", help="changes that are predicted from one run A")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--seed", type=int, default=0, help="of the requests")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the journals there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    args = parser.parse_args(argv)
    import torch

    from ..engine.runner.load import load_parts

    torch.set_num_threads(args.threads)
    config = EngineConfig(model=args.model, device="cpu", **BASE)
    parts = load_parts(config)
    vocab_size = min(parts.tokenizer.vocab_size, parts.model.config.vocab_size)
    with tempfile.TemporaryDirectory() as temporary:
        scratch = args.keep or Path(temporary)
        capacity = requests_per_s(config, parts, 48, vocab_size, Path(temporary))  # warms up, too
        rate = 0.0 if args.burst else args.rate or args.load * capacity
        requests = make_requests(args.requests, rate, args.seed, vocab_size)
        print(f"{environment()}\nburst: {capacity:.2f} requests/s; {args.requests} requests, {rate:.2f} a second")
        print("| change | | tokens/s | TTFT p50 | TTFT p99 | e2e p50 | e2e p99 | preemptions | hits |")
        print("|---|---|---|---|---|---|---|---|---|")
        found: list[dict[str, Any]] = []

        def run(name: str, changed: EngineConfig) -> WhatIf:
            return WhatIf(record(changed, parts, requests, scratch / f"{len(found)}-{name}"))

        def real_of(setting: Setting, num_blocks: int) -> Figures:
            options: dict[str, Any] = {setting.name: setting.value, "num_blocks": num_blocks}
            return run("b", dataclasses.replace(config, **options)).recorded

        for index, change in enumerate(args.changes):
            if index % args.share == 0:
                what_if = run("a", config)
                same = what_if.run().figures
                print(row("", "recorded", what_if.recorded))
                print(row("", "simulated", same), flush=True)
            found.append(compare(change, what_if, same, real_of))
    if args.json:
        args.json.write_text(json.dumps({"environment": environment(), "rate": rate, "pairs": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
