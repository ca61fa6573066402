"""Whole logits, dealt to ranks that are threads and sampled there."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from nanolens.kernels.sampling import SamplingTensors
from nanolens.kernels.sampling_parts import VocabularyPart, sample_part_checked
from nanolens.models.parallel import Collectives, Shard
from threaded_ranks import on_ranks

Sample = Callable[..., Tensor]


def part_of(rank: int, size: int, vocab: int, num_tokens: int) -> VocabularyPart:
    """As the model deals its vocabulary."""
    shard = Shard(rank, size)
    own = shard.vocabulary(vocab)
    return VocabularyPart(rank, own.start, max(0, min(own.stop, num_tokens) - own.start), shard.vocabulary_rows(vocab))


def columns_of(logits: Tensor, part: VocabularyPart) -> Tensor:
    """A rank's logits as its head computes them: padded, with NaN here."""
    own = logits[:, part.first : part.first + part.widest]
    return F.pad(own, (0, part.widest - own.shape[1]), value=torch.nan)


def sample_in_parts(
    logits: Tensor,
    params: SamplingTensors,
    size: int,
    num_tokens: int | None = None,
    sample: Sample = sample_part_checked,
) -> list[list[int]]:
    """Each rank's tokens."""
    vocab = logits.shape[1]

    def on_rank(shard: Shard, collectives: Collectives) -> list[int]:
        part = part_of(shard.rank, size, vocab, vocab if num_tokens is None else num_tokens)
        found: list[int] = sample(columns_of(logits, part), part, params, collectives.all_gather).tolist()
        return found

    return on_ranks(size, on_rank)
