"""From a step's logits to tokens, by the parameters of each row. Keeps what sampling needs of every running sequence.

A row's token depends on its logits, parameters, own tokens, seed and position only: never on its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ...kernels.logprobs import Logprobs, token_logprobs
from ...kernels.penalties import apply_logit_bias, apply_penalties, mask_tokens
from ...kernels.sampling import SamplingTensors, sample
from ..sequence import Sequence
from .input_batch import IntArray, StepArrays
from .token_counts import TokenCounts
from .token_rules import StepRules, TokenRules


@dataclass(slots=True)
class Sampled:
    """What sampling gave for S rows, on the device."""

    tokens: torch.Tensor  # [S] int64
    finite: torch.Tensor  # [S] bool: the row's logits were finite (else its token means nothing)
    logprobs: Logprobs | None  # for the rows in `logprob_rows`
    logprob_rows: list[int]  # indices below S


class Sampler:
    """Sampling state of the running batch, row by row.

    Args:
        max_num_seqs: rows.
        num_tokens: ids at or above it are never sampled (a vocabulary padded beyond the tokenizer's).
        device: where logits are.
    """

    def __init__(self, max_num_seqs: int, num_tokens: int, device: torch.device) -> None:
        self.num_tokens = num_tokens
        self.last_tokens = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)  # [rows]
        self.counts = TokenCounts(num_tokens, device)
        self._device = device
        # columns: temperature, top_p, min_p, presence, frequency, repetition
        self._floats: npt.NDArray[np.float32] = np.zeros((max_num_seqs, 6), dtype=np.float32)
        self._seeds: IntArray = np.zeros(max_num_seqs, dtype=np.int64)
        self._top_k: IntArray = np.zeros(max_num_seqs, dtype=np.int64)
        self._rules: dict[int, TokenRules] = {}
        self._num_logprobs: dict[int, int] = {}

    def admit(self, row: int, seq: Sequence) -> None:
        """Take in a new (or readmitted) sequence's parameters and tokens."""
        self.release(row)
        params = seq.params
        temperature = 1.0 if params.temperature is None else params.temperature
        top_p = 1.0 if params.top_p is None else params.top_p
        repetition = 1.0 if params.repetition_penalty is None else params.repetition_penalty
        presence, frequency = params.presence_penalty, params.frequency_penalty
        self._floats[row] = (temperature, top_p, params.min_p or 0.0, presence, frequency, repetition)
        self._top_k[row] = max(0, params.top_k or 0)
        self._seeds[row] = seq.seed
        if presence or frequency or repetition != 1.0:
            self.counts.admit(row, seq)
        if rules := TokenRules(seq, self.num_tokens):
            self._rules[row] = rules
        if params.logprobs is not None:
            self._num_logprobs[row] = params.logprobs

    def release(self, row: int) -> None:
        """Forget a row."""
        self.counts.release(row)
        self._rules.pop(row, None)
        self._num_logprobs.pop(row, None)

    def sample(self, logits: torch.Tensor, sequences: Items[Sequence], arrays: StepArrays) -> Sampled:
        """Sample a token for each row and keep it as its last token.

        Args:
            logits: [S, V] float32, finite or not; may be changed.
            sequences: the plan's; `arrays.sample_plan` picks from them.
            arrays: the step.
        """
        rows, plan_rows = arrays.sample_rows, arrays.sample_rows.tolist()
        finite = logits.sum(dim=-1).isfinite()  # a NaN or an infinity anywhere in a row reaches its sum
        asking = [i for i, row in enumerate(plan_rows) if row in self._num_logprobs] if self._num_logprobs else []
        raw = logits[asking] if asking else None
        usable = logits[:, : self.num_tokens]
        last = torch.from_numpy(rows).to(self._device)
        if len(self.counts):
            self._penalise(usable, plan_rows)
        if self._rules:
            self._apply_rules(usable, plan_rows, sequences, arrays)
        tokens = sample(usable, self._tensors(rows, arrays.sample_positions))
        self.last_tokens[last] = tokens
        if len(self.counts):
            self._count(plan_rows, tokens)
        logprobs = None
        if raw is not None:
            most = max(self._num_logprobs[plan_rows[i]] for i in asking)
            logprobs = token_logprobs(raw, tokens[asking], most)
        return Sampled(tokens, finite, logprobs, asking)

    def _tensors(self, rows: IntArray, positions: IntArray) -> SamplingTensors:
        floats, top_k = self._floats[rows], self._top_k[rows]
        random = floats[:, 0] > 0
        any_random = bool(random.any())
        if not any_random:  # greedy: the sampler looks at the logits alone
            empty = torch.empty(0, device=self._device)
            return SamplingTensors(empty, empty, empty, empty, empty, empty, False, False, False, False)
        columns = torch.from_numpy(np.ascontiguousarray(floats[:, :3].T)).to(self._device)
        whole = torch.from_numpy(np.stack([top_k, self._seeds[rows], positions])).to(self._device)
        return SamplingTensors(
            temperature=columns[0],
            top_k=whole[0],
            top_p=columns[1],
            min_p=columns[2],
            seeds=whole[1],
            positions=whole[2],
            any_top_k=bool((random & (top_k > 0)).any()),
            any_top_p=bool((random & (floats[:, 1] < 1)).any()),
            any_min_p=bool((random & (floats[:, 2] > 0)).any()),
        )

    def _counted(self, rows: list[int]) -> tuple[list[int], list[int]]:
        """Indices of the rows with penalties, and their slots."""
        pairs = [(i, slot) for i, row in enumerate(rows) if (slot := self.counts.slot(row)) is not None]
        return [i for i, _ in pairs], [slot for _, slot in pairs]

    def _penalise(self, logits: torch.Tensor, rows: list[int]) -> None:
        index, slots = self._counted(rows)
        if not index:
            return
        factors = self._floats[[rows[i] for i in index], 3:].T
        presence, frequency, repetition = torch.from_numpy(np.ascontiguousarray(factors)).to(self._device)
        mask, counts = self.counts.prompt_mask[slots], self.counts.output_counts[slots]
        logits[index] = apply_penalties(logits[index], mask, counts, presence, frequency, repetition)

    def _count(self, rows: list[int], tokens: torch.Tensor) -> None:
        index, slots = self._counted(rows)
        if index:
            self.counts.add(torch.tensor(slots, device=self._device), tokens[index])

    def _apply_rules(
        self, logits: torch.Tensor, rows: list[int], sequences: Items[Sequence], arrays: StepArrays
    ) -> None:
        rules = StepRules()
        for i, (row, index) in enumerate(zip(rows, arrays.sample_plan, strict=True)):
            if (own := self._rules.get(row)) is not None:
                own.collect(rules, i, sequences[index], int(arrays.sample_positions[i]))
        if rules.bias_rows:
            values = torch.tensor(rules.bias_values, dtype=torch.float32, device=self._device)
            apply_logit_bias(logits, self._index(rules.bias_rows), self._index(rules.bias_ids), values)
        if rules.mask_rows:
            mask_tokens(logits, self._index(rules.mask_rows), self._index(rules.mask_ids))
        if rules.after_rows:
            where, ids = self._index(rules.after_rows), self._index(rules.after_ids)
            last = self.last_tokens[self._index([rows[i] for i in rules.after_rows])]
            matches = last == self._index(rules.after_last)
            # adding -inf or 0 leaves repeated (row, token) pairs well defined
            penalty = torch.where(matches, -torch.inf, 0.0)
            apply_logit_bias(logits, where, ids, penalty)

    def _index(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)
