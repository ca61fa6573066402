"""A program for tests: a real engine whose `generate` and `stream` get SIGINT at random moments, again and again.

Usage: interrupted_engine.py JOURNAL COUNT SEED OVERLAP. Prints how many interrupts came out, or fails at the first
state that one left behind.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time

from nanolens.engine.llm import LLM
from nanolens.engine.sampling_params import SamplingParams


def interrupter(delay: float, go: threading.Event, over: threading.Event) -> threading.Thread:
    """A started thread that sends this process SIGINT a delay after `go`, unless `over` is set by then."""

    def send() -> None:
        go.wait()
        if not over.wait(delay):
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def main() -> None:
    """Interrupt COUNT calls."""
    journal, count, rng, overlap = sys.argv[1], int(sys.argv[2]), random.Random(int(sys.argv[3])), sys.argv[4] == "1"
    llm = LLM("dummy:llama-tiny", device="cpu", num_blocks=40, block_size=4, seed=1, journal=journal, overlap=overlap)
    prompts = [[rng.randrange(256) for _ in range(12)] for _ in range(8)]
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)

    def ids_of(some: list[list[int]]) -> list[list[int]]:
        return [output.outputs[0].token_ids for output in llm.generate(some, params, use_tqdm=False)]

    began = time.perf_counter()
    expected = ids_of(prompts)
    span, came = time.perf_counter() - began, 0
    sys.setswitchinterval(1e-4)  # or a signal would mostly come where the main thread waits for the other one
    for index in range(count):
        go, over = threading.Event(), threading.Event()
        thread = interrupter(rng.uniform(0, span), go, over)
        try:
            try:
                go.set()
                if index % 3:
                    ids_of(prompts)
                else:
                    for prompt in prompts:
                        list(llm.stream(prompt, params))
            finally:
                over.set()
                thread.join()
        except KeyboardInterrupt:
            came += 1
            over.set()
            thread.join()
        core = llm.engine.core
        core.audit()
        if core.requests or len(core.blocks.free) != core.blocks.num_blocks:
            sys.exit(f"interrupt {index} left {list(core.requests)}, {len(core.blocks.free)} blocks are free")
        few = index % 3
        if ids_of(prompts[few : few + 2]) != expected[few : few + 2]:
            sys.exit(f"interrupt {index} changed what is generated")
    llm.close()
    print(came)


if __name__ == "__main__":
    main()
