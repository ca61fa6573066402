"""The end of a step where ranks share the vocabulary: own logits, tokens sampled from all ranks' without joining them.

Knows columns and collectives; neither sequences nor what they ask for.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from ...kernels.sampling import SamplingTensors
from ...kernels.sampling_parts import VocabularyPart, sample_part_checked
from ...models.config import ModelConfig
from ...models.parallel import Collectives, Shard


class SplitModel(Protocol):
    """What the head needs of one rank's model."""

    config: ModelConfig
    shard: Shard

    def own_logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """[N, hidden] -> [N, columns]: those of this rank's tokens."""

    def join_logits(self, own: Tensor, out: Tensor | None = None) -> Tensor:
        """What each rank has of [N, columns] -> [N, vocab]."""


class SplitHead:
    """One rank's head. Every rank makes the same calls, in the same order.

    Args:
        model: this rank's part.
        collectives: to the other ranks.
        num_tokens: ids at or above it are never sampled.

    Attributes:
        columns: width of a rank's logits.
    """

    def __init__(self, model: SplitModel, collectives: Collectives, num_tokens: int) -> None:
        shard, vocab_size = model.shard, model.config.vocab_size
        own = shard.vocabulary(vocab_size)
        self.columns = shard.vocabulary_rows(vocab_size)
        self.logits, self.join = model.own_logits, model.join_logits
        usable = max(0, min(own.stop, num_tokens) - own.start)
        self._part = VocabularyPart(shard.rank, own.start, usable, self.columns)
        self._gather = collectives.all_gather

    def sample(self, logits: Tensor, params: SamplingTensors) -> Tensor:
        """[N, columns] of this rank -> [N] int64, the same on all: -1 where some rank's logits are not finite.

        Temperatures and greedy rows only: filters need the logits joined.
        """
        return sample_part_checked(logits, self._part, params, self._gather)
