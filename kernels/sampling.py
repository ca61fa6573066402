"""From logits to tokens. A token depends on its row's logits, parameters, seed and position, and on nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .dispatch import on_gpu
from .philox import exponential_noise, exponential_noise_at

_FIRST_LOOK = 1024  # best tokens among which top-p is sought first; then 8 times as many, then all


@dataclass(frozen=True)
class SamplingTensors:
    """Sampling parameters of R rows, on the device.

    Attributes:
        temperature: [R] float32; 0: greedy.
        top_k: [R] int64; at most 0, or at least V: off.
        top_p: [R] float32 in (0, 1]; 1: off.
        min_p: [R] float32 in [0, 1]; 0: off.
        seeds: [R] int64.
        positions: [R] int64, the index in its sequence of the token being sampled.
        any_random: some row has a temperature above 0. These flags save looking at the device; True is always safe.
        any_top_k: some row asks for top-k.
        any_top_p: some row asks for top-p.
        any_min_p: some row asks for min-p.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seeds: Tensor
    positions: Tensor
    any_random: bool = True
    any_top_k: bool = True
    any_top_p: bool = True
    any_min_p: bool = True


def sample(logits: Tensor, params: SamplingTensors) -> Tensor:
    """Draw one token for each row.

    Temperature divides the logits first; min-p, top-k and top-p then leave out tokens, in this order, each judging by
    what the one before left. Among equal logits at the edge of top-k or top-p the lower index stays.

    On a GPU nothing waits for the device, and which kernels run depends on the flags alone: two launches, three with
    a filter's flag. There the logits may be bfloat16 or float16 too.

    Args:
        logits: [R, V] float32, penalties and masks applied; -inf forbids a token. Not changed.
        params: of the R rows.

    Returns:
        [R] int64. Rows with NaN or without any finite logit get some index: their caller has to look.
    """
    if logits.is_cuda:
        tokens: Tensor = on_gpu("triton_sampling", "sample")(logits, params)
        return tokens
    return torch_sample(logits, params)


def sample_checked(logits: Tensor, params: SamplingTensors) -> Tensor:
    """`sample`, but rows from which nothing can be drawn get -1: those with NaN, with +inf, or all of whose logits
    are -inf. On a GPU this costs no further pass.

    Args:
        logits: as in `sample`.
        params: as in `sample`.

    Returns:
        [R] int64, -1 or a token.
    """
    if logits.is_cuda:
        tokens: Tensor = on_gpu("triton_sampling", "sample_checked")(logits, params)
        return tokens
    best = logits.amax(dim=-1)  # NaN wherever a row has one
    return torch_sample(logits, params).masked_fill_(~best.isfinite(), -1)


def torch_sample(logits: Tensor, params: SamplingTensors) -> Tensor:
    """`sample` in torch, on any device."""
    if not params.any_random:
        return logits.argmax(dim=-1)
    random = params.temperature > 0
    if bool(random.all()):
        return _draw(logits, params)
    tokens = logits.argmax(dim=-1)
    rows = random.nonzero().squeeze(1)
    if rows.numel():
        tokens[rows] = _draw(logits[rows], _select(params, rows))
    return tokens


def _select(params: SamplingTensors, rows: Tensor) -> SamplingTensors:
    return SamplingTensors(
        params.temperature[rows],
        params.top_k[rows],
        params.top_p[rows],
        params.min_p[rows],
        params.seeds[rows],
        params.positions[rows],
        params.any_random,
        params.any_top_k,
        params.any_top_p,
        params.any_min_p,
    )


def _draw(logits: Tensor, params: SamplingTensors) -> Tensor:
    """Run a race of exponential clocks with rates exp(-cost): token i rings first with probability softmax_i.

    This is the Gumbel-max trick (Gumbel 1954) without its logarithm.
    """
    # (max - logits) / T, and not logits / T: the best token's cost is 0 however small T is, and nothing is inf - inf.
    costs = (logits.amax(dim=-1, keepdim=True) - logits).div_(params.temperature[:, None])
    vocab = logits.shape[1]
    filtered = (params.min_p > 0) | (params.top_p < 1) | ((params.top_k > 0) & (params.top_k < vocab))
    if not (params.any_min_p or params.any_top_k or params.any_top_p) or not bool(filtered.any()):
        return exponential_noise(params.seeds, params.positions, vocab).mul_(costs.exp_()).argmin(dim=-1)
    if not bool(filtered.all()):
        tokens = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
        for part in (filtered.nonzero().squeeze(1), (~filtered).nonzero().squeeze(1)):
            tokens[part] = _draw(logits[part], _select(params, part))
        return tokens
    # Few tokens are left, as a rule: only these need a random number.
    rows, token_ids = _kept(costs, params).nonzero(as_tuple=True)
    noise = exponential_noise_at(params.seeds[rows], params.positions[rows], token_ids)
    arrivals = torch.full_like(costs, torch.inf)
    arrivals[rows, token_ids] = noise.mul_(costs[rows, token_ids].exp_())
    return arrivals.argmin(dim=-1)


def _kept(costs: Tensor, params: SamplingTensors) -> Tensor:
    """[R, V] bool: the tokens that min-p, top-k and top-p leave in the draw."""
    vocab = costs.shape[1]
    # p_i >= min_p * p_max is cost_i <= -log(min_p).
    limits = -params.min_p.log()
    quotas = torch.full_like(params.top_k, vocab)
    top_k = torch.where((params.top_k > 0) & (params.top_k < vocab), params.top_k, vocab)
    rows = ((top_k < vocab) | (params.top_p < 1)).nonzero().squeeze(1)
    # Rows with top-k need to see k tokens; top-p alone starts with a guess.
    widest_k = int(top_k.masked_fill(top_k >= vocab, 0).max())
    width = min(vocab, max(widest_k, _FIRST_LOOK if bool((top_k[rows] >= vocab).any()) else 1))
    while rows.numel():
        limit, quota, found = _edge(costs[rows], width, limits[rows], top_k[rows], params.top_p[rows])
        limits[rows[found]], quotas[rows[found]] = limit[found], quota[found]
        rows, width = rows[~found], min(vocab, 8 * width)
    kept = costs <= limits[:, None]
    surplus = (kept.sum(dim=-1) > quotas).nonzero().squeeze(1)
    if surplus.numel():
        at_edge = costs[surplus] == limits[surplus, None]
        below = kept[surplus] & ~at_edge
        room = quotas[surplus] - below.sum(dim=-1)
        kept[surplus] = below | (at_edge & (at_edge.cumsum(dim=-1) <= room[:, None]))
    return kept


def _edge(
    costs: Tensor, width: int, min_p_limits: Tensor, top_k: Tensor, top_p: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Find where top-k and top-p cut, looking at the `width` best tokens of each row.

    Returns:
        (limits, quotas, found), each [R]: the highest cost that stays, how many tokens stay at most, and whether the
        look was wide enough. The first two don't depend on `width` where the third holds.
    """
    best = costs.topk(width, dim=-1, largest=False).values if width < costs.shape[1] else costs.sort(dim=-1).values
    in_best = top_k <= width
    count = top_k.clamp(max=width)
    place = torch.arange(width, device=costs.device)
    weights = torch.where((place < count[:, None]) & (best <= min_p_limits[:, None]), (-best).exp(), 0.0)
    # In float64, sums of float32 weights don't depend on the order of addition as far as any top_p could tell.
    reached = weights.cumsum(dim=-1, dtype=torch.float64)
    total = reached[:, -1]
    if not bool(in_best.all()):
        everything = torch.where(costs <= min_p_limits[:, None], (-costs).exp(), 0.0).sum(dim=-1, dtype=torch.float64)
        total = torch.where(in_best, total, everything)
    wanted = top_p.double() * total
    nucleus = ((reached - weights) < wanted[:, None]).sum(dim=-1).clamp(min=1)
    quotas = torch.where(top_p < 1, torch.minimum(nucleus, count), count)
    limits = torch.minimum(best.gather(1, quotas[:, None] - 1).squeeze(1), min_p_limits)
    return limits, quotas, in_best | (reached[:, -1] >= wanted) | (width == costs.shape[1])
