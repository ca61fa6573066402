"""A step in flight: what was launched, and its tokens and log-probabilities once they are read."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from ...kernels.logprobs import Logprobs
from ..plan import StepPlan, StepResult
from .input_batch import SampleRows
from .logprobs import on_host
from .readback import Readback


@dataclass(slots=True)
class LaunchedStep:
    """A step in flight."""

    plan: StepPlan
    samples: SampleRows
    tokens: torch.Tensor | None  # [S] on the host once `readback` is done; -1: non-finite logits
    logprobs: Logprobs | None  # of the sampling rows in `logprob_rows`
    logprob_rows: list[int]
    num_logprobs: list[int]  # alternatives that each of them asked for
    prompts: list[tuple[int, list[int], int, list[Logprobs]]]  # plan index, tokens, alternatives, values
    readback: Readback
    graph: bool = False
    padding: int = 0

    def read(self) -> tuple[StepResult, list[int]]:
        """Wait for the step; its result, and which of `samples` have no valid token (theirs in the result is 0)."""
        began = time.monotonic_ns()
        device_ns = self.readback.wait()
        wait_ns = time.monotonic_ns() - began
        sampled: list[int] = self.tokens.tolist() if self.tokens is not None else []
        failed = [i for i, token in enumerate(sampled) if token < 0] if -1 in sampled else []
        for i in failed:
            sampled[i] = 0
        tokens = [token for _, token in sorted(zip(self.samples.plan, sampled, strict=True))]
        result = StepResult(tokens, device_ns=device_ns, wait_ns=wait_ns, graph=self.graph, padding=self.padding)
        result.collective_ns = self.readback.collective_ns()
        for i in failed:
            seq = self.plan.sequences[self.samples.plan[i]]
            result.failed[seq.seq_id] = f"non-finite logits at position {self.samples.positions[i]}"
        self._read_logprobs(result, sampled)
        return result, failed

    def _read_logprobs(self, result: StepResult, sampled: list[int]) -> None:
        sequences = self.plan.sequences
        if self.logprobs is not None:
            entries = on_host(self.logprobs, [sampled[i] for i in self.logprob_rows], self.num_logprobs)
            for i, entry in zip(self.logprob_rows, entries, strict=True):
                result.logprobs[sequences[self.samples.plan[i]].seq_id] = entry
        for index, targets, num_top, parts in self.prompts:
            entries = []
            for part in parts:
                own = targets[len(entries) : len(entries) + len(part.chosen)]
                entries += on_host(part, own, [num_top] * len(own))
            result.prompt_logprobs[sequences[index].seq_id] = entries
