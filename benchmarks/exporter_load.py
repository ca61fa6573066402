"""A journal to export, of an engine that has a scheduler and blocks but no model: tokens come from nowhere."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

from .. import __version__
from ..engine.config import EngineConfig
from ..engine.core import EngineCore
from ..engine.engine import Engine
from ..engine.plan import MoveResult, StepPlan, StepResult
from ..engine.sampling_params import SamplingParams
from ..telemetry.clock import monotonic_ns, wall_offset_ns
from ..telemetry.events import EngineStarted
from ..telemetry.journal import JournalWriter
from ..telemetry.recorder import Recorder

VOCAB_SIZE = 1000
MAX_MODEL_LEN = 512
AT_ONCE = 48  # requests that are alive
RUN = "bench"


class NoDefaults:
    """What a model without suggestions suggests."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


class TokensFromNowhere:
    """A runner that computes nothing: every sampled token is the same one."""

    host_blocks = disk_blocks = swap_ns_per_block = 0
    vocab_size = VOCAB_SIZE

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks

    def launch(self, plan: StepPlan) -> int:
        """How many tokens the step samples."""
        return sum(plan.samples)

    def collect(self, handle: Any) -> StepResult:
        """As many tokens."""
        return StepResult(tokens=[7] * handle)

    def finish_moves(self) -> list[MoveResult]:
        """There are none."""
        return []

    def is_sound(self) -> bool:
        """Always."""
        return True

    def look(self) -> str:
        """Nothing can fail."""
        return ""

    def close(self) -> None:
        """Nothing is held."""


def write_journal(directory: Path, num_requests: int, seed: int = 0) -> None:
    """Run requests with shared prefixes, some with siblings, over a pool that is too small for them: many preemptions.

    Args:
        directory: gets the journal.
        num_requests: how many.
        seed: of their lengths and prefixes.
    """
    config = EngineConfig(num_blocks=320, block_size=4, max_num_seqs=32, max_prefill_chunk=32, seed=0)
    started = EngineStarted(
        t=monotonic_ns(), run_id=RUN, wall_offset_ns=wall_offset_ns(), pid=os.getpid(), version=__version__,
        model=config.model, config=config.as_record(), num_blocks=320, block_size=4, vocab_size=VOCAB_SIZE,
        max_model_len=MAX_MODEL_LEN,
    )  # fmt: skip
    core = EngineCore(config, TokensFromNowhere(320), Recorder(JournalWriter(directory, RUN)), started, secret=b"bench")
    engine = Engine(core, None, NoDefaults(), VOCAB_SIZE)
    rng = random.Random(seed)
    prefixes = [[rng.randrange(VOCAB_SIZE) for _ in range(24)] for _ in range(8)]
    for index in range(num_requests):
        own = [rng.randrange(VOCAB_SIZE) for _ in range(rng.randrange(1, 32))]
        params = SamplingParams(max_tokens=rng.randrange(4, 64), n=2 if index % 8 == 0 else 1, ignore_eos=True)
        engine.add_request(rng.choice(prefixes)[: rng.randrange(24)] + own, params)
        while len(core.requests) >= AT_ONCE:
            engine.step()
    while engine.step():
        pass
    engine.close()
