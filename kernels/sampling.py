"""From logits to tokens. A token depends on its row's logits, parameters, seed and position, and on nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .philox import exponential_noise


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
        any_random: some row has a temperature above 0.
        any_top_k: some such row asks for top-k.
        any_top_p: some such row asks for top-p.
        any_min_p: some such row asks for min-p.
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

    Args:
        logits: [R, V] float32, penalties and masks applied; -inf forbids a token. Not changed.
        params: of the R rows.

    Returns:
        [R] int64.
    """
    greedy_tokens = logits.argmax(dim=-1)
    if not params.any_random:
        return greedy_tokens
    greedy = params.temperature <= 0
    temperature = torch.where(greedy, 1.0, params.temperature)
    # (max - logits) / T, and not logits / T: the best token stays at 0 however small T is.
    costs = (logits.amax(dim=-1, keepdim=True) - logits) / temperature[:, None]
    costs = _filter(costs, params)
    noise = exponential_noise(params.seeds, params.positions, logits.shape[1])
    # The race of exponential clocks with rates exp(-cost): the first to ring has index i with probability softmax_i.
    tokens = (noise * costs.exp_()).argmin(dim=-1)
    return torch.where(greedy, greedy_tokens, tokens)


def _filter(costs: Tensor, params: SamplingTensors) -> Tensor:
    """Set the cost of tokens outside min-p, top-k and top-p to +inf."""
    vocab = costs.shape[1]
    if params.any_min_p:
        # p_i >= min_p * p_max is cost_i <= -log(min_p).
        costs = costs.masked_fill(costs > -params.min_p.log()[:, None], torch.inf)
    if not (params.any_top_k or params.any_top_p):
        return costs
    ordered, index = costs.sort(dim=-1, stable=True)
    rank = torch.arange(vocab, device=costs.device)
    top_k = torch.where((params.top_k <= 0) | (params.top_k > vocab), vocab, params.top_k)
    ordered = ordered.masked_fill(rank >= top_k[:, None], torch.inf)
    probs = torch.softmax(-ordered, dim=-1)
    before = probs.cumsum(dim=-1) - probs  # probability of all better tokens
    outside = (before >= params.top_p[:, None]) & (params.top_p < 1)[:, None]
    outside[:, 0] = False
    return torch.empty_like(costs).scatter_(1, index, ordered.masked_fill(outside, torch.inf))
