"""From logits to tokens where each rank holds a part of the vocabulary: the tokens of the whole rows, to the bit.

Knows columns and how to gather small tensors; neither models nor processes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .dispatch import on_gpu
from .philox import exponential_noise
from .sampling import SamplingTensors

# All ranks' tensors of one shape [...] as [size, ...], in the order of the ranks; each rank makes the same calls.
Gather = Callable[[Tensor], Tensor]

_NOTHING = (1 << 63) - 1  # a rank without a token to offer


@dataclass(frozen=True)
class VocabularyPart:
    """The columns of one rank. Ranks hold neighbouring columns, in the order of their numbers.

    Attributes:
        rank: from 0.
        first: the token of column 0.
        usable: how many columns, from 0 on, are tokens that may be drawn; what comes after them is never looked at.
        widest: the most columns that any rank has.
    """

    rank: int
    first: int
    usable: int
    widest: int


def sample_part_checked(logits: Tensor, part: VocabularyPart, params: SamplingTensors, gather: Gather) -> Tensor:
    """`sampling.sample_checked` of whole rows, of which this rank has a part: the same tokens on all ranks.

    Two tensors are gathered. The first holds the best logits, since the times at which clocks ring are told relative
    to the best of all: told relative to a part's own best they round otherwise, and now and then another would be
    first. The second holds each rank's earliest arrival and its token, as one number: the least wins, of equal
    arrivals the lower token.

    Args:
        logits: [R, C], C at least `part.usable`; -inf forbids a token. Not changed.
        part: which columns these are.
        params: of the R rows, the same on all ranks. Without filters: their flags and fields are not looked at.
        gather: all ranks' tensors, one on the other.

    Returns:
        [R] int64, -1 or a token; -1 where any rank's logits have NaN or +inf, or no rank's have one above -inf.
    """
    if logits.is_cuda:
        tokens: Tensor = on_gpu("triton_sampling_parts", "sample_part_checked")(logits, part, params, gather)
        return tokens
    own = logits[:, : part.usable].float()
    # NaN wherever a row has one
    best = own.amax(dim=-1) if part.usable else own.new_full((len(own),), -torch.inf)
    best = gather(best).amax(dim=0)
    offers = gather(_offers(own, best, part.first, params)).amin(dim=0)
    return torch.where(offers == _NOTHING, -1, offers & 0xFFFFFFFF)


def _offers(own: Tensor, best: Tensor, first: int, params: SamplingTensors) -> Tensor:
    """[R] int64: the bits of the earliest arrival, then its token; `_NOTHING` where no clock rings or a row is bad."""
    if not own.shape[1]:
        return torch.full((len(own),), _NOTHING)
    arrivals = torch.where(own == best[:, None], 0.0, torch.inf)
    if params.any_random:
        # Rows without a temperature make noise too, which is thrown away.
        costs = (best[:, None] - own).div_(params.temperature[:, None])
        noise = exponential_noise(params.seeds, params.positions, own.shape[1], first)
        arrivals = torch.where((params.temperature > 0)[:, None], noise.mul_(costs.exp_()), arrivals)
    tokens = arrivals.argmin(dim=-1, keepdim=True)
    times = arrivals.gather(1, tokens)
    # Arrivals aren't negative, so that their bits order them.
    offers = (times.view(torch.int32).long() << 32) | (tokens + first)
    offers = torch.where(best.isfinite()[:, None] & times.isfinite(), offers, _NOTHING)
    return offers.squeeze(1)
