"""A program for tests: an engine with an exporter, one request that has ended and one that is open, and an end.

Usage: exporting_parent.py JOURNAL URL END. Prints the exporter's pid once the first request has ended. END is "killed"
or "interrupted" (waits for a signal), "returns" (ends the program without a close), or "leaves" (by os._exit).
"""

from __future__ import annotations

import os
import signal
import sys
import time

from nanolens.engine.llm import LLM
from nanolens.engine.sampling_params import SamplingParams


def main(journal: str, url: str, end: str) -> None:
    """Do as END says."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are born ignoring it
    llm = LLM("dummy:llama-tiny", device="cpu", num_blocks=64, block_size=4, journal=journal, otlp=url)
    llm.generate([[1, 2, 3]], SamplingParams(max_tokens=4, ignore_eos=True), use_tqdm=False)
    llm.engine.add_request([4, 5, 6], SamplingParams(max_tokens=64, ignore_eos=True))
    for _ in range(3):
        llm.engine.step()
    assert llm.engine.exporting is not None
    print(llm.engine.exporting.pid, flush=True)
    if end == "returns":
        return
    if end == "leaves":
        os._exit(0)
    time.sleep(60)


if __name__ == "__main__":
    main(*sys.argv[1:])
