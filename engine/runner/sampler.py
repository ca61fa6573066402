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
from ...kernels.sampling import SamplingTensors, sample_checked
from ..sequence import Sequence
from .input_batch import IntArray, SampleRows
from .split_head import SplitHead
from .staging import Staging
from .token_counts import TokenCounts
from .token_rules import StepRules, TokenRules


@dataclass(slots=True)
class Sampled:
    """What sampling gave for S rows, on the device."""

    tokens: torch.Tensor  # [S] int64; -1: the row's logits were not finite
    logprobs: Logprobs | None  # for the rows in `logprob_rows`
    logprob_rows: list[int]  # indices below S


class Sampler:
    """Sampling state of the running batch, row by row.

    Args:
        max_num_seqs: rows.
        num_tokens: ids at or above it are never sampled (a vocabulary padded beyond the tokenizer's).
        last_tokens: [rows and more] int64, the token sampled last for each row; written.
        staging: to the device of the logits.
    """

    def __init__(self, max_num_seqs: int, num_tokens: int, last_tokens: torch.Tensor, staging: Staging) -> None:
        device = staging.device
        self.num_tokens = num_tokens
        self.last_tokens = last_tokens
        self.counts = TokenCounts(num_tokens, device)
        self._device = device
        self._staging = staging
        # columns: temperature, top_p, min_p, presence, frequency, repetition
        self._floats: npt.NDArray[np.float32] = np.zeros((max_num_seqs, 6), dtype=np.float32)
        self._seeds: IntArray = np.zeros(max_num_seqs, dtype=np.int64)
        self._top_k: IntArray = np.zeros(max_num_seqs, dtype=np.int64)
        self._rules: dict[int, TokenRules] = {}
        self._num_logprobs: dict[int, int] = {}
        self._filtered: set[int] = set()  # rows with top-k, top-p or min-p

    def needs_more(self, rows: Items[int]) -> bool:
        """Whether some row asks for more than a temperature: a filter, a penalty, a rule or log-probabilities."""
        special = (self._filtered, self._rules, self._num_logprobs)
        if not any(special) and not len(self.counts):
            return False
        return any(any(row in some for some in special) or self.counts.slot(row) is not None for row in rows)

    def temperature_and_seeds(self, rows: Items[int]) -> tuple[npt.NDArray[np.float32], IntArray]:
        """Of these rows, each [N]."""
        return np.ascontiguousarray(self._floats[rows, 0]), self._seeds[rows]

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
        if temperature > 0 and (self._top_k[row] > 0 or top_p < 1 or (params.min_p or 0.0) > 0):
            self._filtered.add(row)
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
        self._filtered.discard(row)

    def sample(self, logits: torch.Tensor, sequences: Items[Sequence], samples: SampleRows) -> Sampled:
        """Sample a token for each row; `keep` makes them count.

        Args:
            logits: [S, V] float32, finite or not; may be changed.
            sequences: the plan's; `samples.plan` picks from them.
            samples: the S rows.
        """
        rows, plan_rows = samples.rows, samples.rows.tolist()
        asking = [i for i, row in enumerate(plan_rows) if row in self._num_logprobs] if self._num_logprobs else []
        (which,) = self._staging.send(np.array(asking, dtype=np.int64))
        raw = logits.index_select(0, which) if asking else None
        usable = logits[:, : self.num_tokens]
        if len(self.counts):
            self._penalise(usable, plan_rows)
        if self._rules:
            self._apply_rules(usable, plan_rows, sequences, samples)
        tokens = sample_checked(usable, self._tensors(rows, samples.positions))
        logprobs = None
        if raw is not None:
            most = max(self._num_logprobs[plan_rows[i]] for i in asking)
            logprobs = token_logprobs(raw, tokens.index_select(0, which).clamp(min=0), most)
        return Sampled(tokens, logprobs, asking)

    def sample_split(self, head: SplitHead, hidden: torch.Tensor, samples: SampleRows) -> Sampled:
        """Sample a token for each of [S, H] states, none of whose rows `needs_more`; the ranks exchange no logits."""
        params = self._tensors(samples.rows, samples.positions)
        return Sampled(head.sample(head.logits(hidden), params), None, [])

    def keep(self, rows: IntArray, tokens: torch.Tensor) -> None:
        """Make sampled tokens ([S], of these rows) the rows' last ones, and count them.

        Whatever it raises, it has done nothing.
        """
        (last,) = self._staging.send(rows)
        if len(self.counts):
            self._count(rows.tolist(), tokens)
        self.last_tokens.index_copy_(0, last, tokens)

    def _tensors(self, rows: IntArray, positions: IntArray) -> SamplingTensors:
        floats, top_k = self._floats[rows], self._top_k[rows]
        random = floats[:, 0] > 0
        any_random = bool(random.any())
        if not any_random:  # greedy: the sampler looks at the logits alone
            empty = torch.empty(0, device=self._device)
            return SamplingTensors(empty, empty, empty, empty, empty, empty, False, False, False, False)
        columns, whole = self._staging.send(
            np.ascontiguousarray(floats[:, :3].T), np.stack([top_k, self._seeds[rows], positions])
        )
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
        (presence, frequency, repetition), which, there = self._staging.send(
            np.ascontiguousarray(factors), np.array(index, dtype=np.int64), np.array(slots, dtype=np.int64)
        )
        mask, counts = self.counts.prompt_mask[there], self.counts.output_counts[there]
        logits[which] = apply_penalties(logits[which], mask, counts, presence, frequency, repetition)

    def _count(self, rows: list[int], tokens: torch.Tensor) -> None:
        index, slots = self._counted(rows)
        if index:
            which, there = self._staging.send(np.array(index, dtype=np.int64), np.array(slots, dtype=np.int64))
            self.counts.add(there, tokens[which].clamp(min=0))

    def _apply_rules(
        self, logits: torch.Tensor, rows: list[int], sequences: Items[Sequence], samples: SampleRows
    ) -> None:
        rules = StepRules()
        for i, (row, index) in enumerate(zip(rows, samples.plan, strict=True)):
            if (own := self._rules.get(row)) is not None:
                own.collect(rules, i, sequences[index], int(samples.positions[i]))
        if rules.bias_rows:
            (values,) = self._staging.send(np.array(rules.bias_values, dtype=np.float32))
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
        (index,) = self._staging.send(np.array(values, dtype=np.int64))
        return index
