"""Tensor parallelism: which part of a model each rank holds, and what ranks say to each other between products.

After Shoeybi et al. 2019 (arXiv 1909.08053): the first product of a pair is split by outputs, the second by inputs, and
one sum over the ranks follows the pair. Knows shapes; neither files nor processes.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ..errors import InvalidConfig
from .config import ModelConfig

if TYPE_CHECKING:
    from torch import Tensor

# Columns of the MLP go to ranks in units of this many where they don't divide evenly: tensor cores like whole tiles.
_UNIT = 16


class Collectives(Protocol):
    """What the ranks of one model compute together. Every rank makes the same calls, in the same order.

    No call waits for a device: on a GPU it is queued on the current stream, and a CUDA graph can capture it.
    """

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of all ranks' `x` [...], the same bits on each. Either `x` itself, overwritten, or a new tensor."""

    def all_gather(self, x: Tensor) -> Tensor:
        """All ranks' `x` [N, M] -> [size, N, M], contiguous, in the order of the ranks."""

    def waited(self) -> Tensor:
        """[1] int64, where the model is: nanoseconds that this rank has spent in collectives so far.

        A snapshot in the order of the stream, to be read back with a step's tokens; a step's share is the difference
        to the last one.
        """


@dataclass(frozen=True)
class Shard:
    """One rank's part of a model.

    Attributes:
        rank: from 0.
        size: how many ranks hold the model together; 1: it is whole.

    Raises:
        InvalidConfig: there is no such rank.
    """

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise InvalidConfig(f"rank={self.rank} of size={self.size}: must be at least 0 and below size")

    def config(self, whole: ModelConfig) -> ModelConfig:
        """The shape of this rank's part: its heads and MLP columns; everything else, the vocabulary too, is whole.

        Raises:
            InvalidConfig: the model can't be split over so many ranks.
        """
        check_size(whole, self.size)
        if self.size == 1:
            return whole
        inner = self.columns(whole.intermediate_size)
        return dataclasses.replace(
            whole,
            num_heads=whole.num_heads // self.size,
            num_kv_heads=len(self.kv_heads(whole)),
            intermediate_size=inner.stop - inner.start,
        )

    def heads(self, whole: ModelConfig) -> slice:
        """The query heads that this rank computes."""
        count = whole.num_heads // self.size
        return slice(self.rank * count, (self.rank + 1) * count)

    def kv_heads(self, whole: ModelConfig) -> list[int]:
        """The KV heads that this rank's query heads read, in order; each serves the same number of them.

        Ranks share a head where there are fewer of them than ranks. Where a rank's query heads don't begin or end with
        a group, a head is listed once for each run of gcd(group, own heads) of them: attention wants even groups.
        """
        own = self.heads(whole)
        group = whole.num_heads // whole.num_kv_heads
        run = math.gcd(group, own.stop - own.start)
        return [head // group for head in range(own.start, own.stop, run)]

    def columns(self, whole: int) -> slice:
        """This rank's columns of an MLP that is `whole` wide.

        Nothing is exchanged along them, so ranks may differ (by a unit of 16 at most) and none is padded.
        """
        unit = 1 if whole % self.size == 0 or whole < _UNIT * self.size else _UNIT
        units = -(-whole // unit)
        start, stop = (units * rank // self.size * unit for rank in (self.rank, self.rank + 1))
        return slice(start, min(stop, whole))

    def vocabulary(self, whole: int) -> slice:
        """This rank's rows of the embedding and the head; the last rank's are padded to `vocabulary_rows`."""
        rows = self.vocabulary_rows(whole)
        return slice(self.rank * rows, min((self.rank + 1) * rows, whole))

    def vocabulary_rows(self, whole: int) -> int:
        """Rows of the embedding and the head that each rank computes with, so that all gather pieces of one size."""
        return -(-whole // self.size)


WHOLE = Shard()


def check_size(whole: ModelConfig, size: int) -> None:
    """Make sure that a model can be split over `size` ranks.

    Raises:
        InvalidConfig: it can't; the message says which sizes the heads allow.
    """
    if size < 1 or whole.num_heads % size:
        allowed = [str(each) for each in range(1, whole.num_heads + 1) if whole.num_heads % each == 0]
        raise InvalidConfig(
            f"tensor_parallel_size={size}: must divide the model's {whole.num_heads} query heads; "
            f"give one of {', '.join(allowed)}"
        )
    if whole.intermediate_size < size or (size - 1) * -(-whole.vocab_size // size) >= whole.vocab_size:
        raise InvalidConfig(
            f"tensor_parallel_size={size}: an MLP of {whole.intermediate_size} columns and a vocabulary of "
            f"{whole.vocab_size} tokens leave some rank with nothing; give a smaller size"
        )


def collectives_for(shard: Shard, collectives: Collectives | None) -> Collectives | None:
    """What a model of this shard says to others: `collectives`, or None where it is whole.

    Raises:
        InvalidConfig: there are other ranks, and no way to reach them.
    """
    if shard.size == 1:
        return None
    if collectives is None:
        raise InvalidConfig(f"rank {shard.rank} of {shard.size} needs collectives: the other ranks hold what it lacks")
    return collectives


def join_vocabulary(pieces: Tensor, vocab_size: int, out: Tensor | None = None) -> Tensor:
    """Logits of all ranks' tokens, side by side and without padding.

    Args:
        pieces: [size, N, rows], size * rows at least `vocab_size`.
        vocab_size: tokens.
        out: [N, vocab_size], where they shall go; None: a new tensor.
    """
    size, count, rows = pieces.shape
    if out is None:
        return pieces.transpose(0, 1).reshape(count, size * rows)[:, :vocab_size]
    if size * rows == vocab_size:
        out.unflatten(1, (size, rows)).copy_(pieces.transpose(0, 1))
        return out
    for rank, piece in enumerate(pieces):
        own = out[:, rank * rows : (rank + 1) * rows]
        own.copy_(piece[:, : own.shape[1]])
    return out
