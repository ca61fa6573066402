"""Changes to logits before sampling: penalties, biases, forbidden tokens. Each changes `logits` in place.

Order of use: penalties, then biases and masks, then `sampling.sample`. Logprobs are taken before all of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .dispatch import on_gpu


def apply_penalties(
    logits: Tensor,
    prompt_mask: Tensor,
    output_counts: Tensor,
    presence: Tensor,
    frequency: Tensor,
    repetition: Tensor,
    slots: Tensor | None = None,
) -> Tensor:
    """Penalise tokens that have occurred.

    Repetition (Keskar et al. 2019, CTRL) covers prompt and output: positive logits are divided by it, negative ones
    multiplied. Presence and frequency count the output only: presence is subtracted once, frequency
    per occurrence.

    Args:
        logits: [R, V] float32, changed in place.
        prompt_mask: [S, V] bool, tokens of a prompt. Without `slots`, S is R.
        output_counts: [S, V] integer, occurrences in an output.
        presence: [R] float32; 0: off.
        frequency: [R] float32; 0: off.
        repetition: [R] float32; 1: off.
        slots: [R] integer, where each row's mask and counts are; negative: the row is left as it is.

    Returns:
        `logits`.
    """
    if logits.is_cuda:
        function = on_gpu("triton_penalties", "apply_penalties")
        changed: Tensor = function(logits, prompt_mask, output_counts, presence, frequency, repetition, slots)
        return changed
    return torch_apply_penalties(logits, prompt_mask, output_counts, presence, frequency, repetition, slots)


def torch_apply_penalties(
    logits: Tensor,
    prompt_mask: Tensor,
    output_counts: Tensor,
    presence: Tensor,
    frequency: Tensor,
    repetition: Tensor,
    slots: Tensor | None = None,
) -> Tensor:
    """`apply_penalties` in torch, on any device."""
    if slots is not None:
        rows = (slots >= 0).nonzero().squeeze(1)
        own = slots[rows].long()
        factors = (presence[rows], frequency[rows], repetition[rows])
        logits[rows] = torch_apply_penalties(logits[rows], prompt_mask[own], output_counts[own], *factors)
        return logits
    produced = output_counts > 0
    factor = torch.where(prompt_mask | produced, repetition[:, None], 1.0)
    logits.copy_(torch.where(logits > 0, logits / factor, logits * factor))
    logits.sub_(frequency[:, None] * output_counts)
    return logits.sub_(presence[:, None] * produced)


def apply_logit_bias(logits: Tensor, rows: Tensor, token_ids: Tensor, values: Tensor) -> Tensor:
    """Add biases to single logits; repeated pairs add up.

    Args:
        logits: [R, V] float32, changed in place.
        rows: [N] int64; negative: not a bias, skipped.
        token_ids: [N] int64.
        values: [N] float32.

    Returns:
        `logits`.
    """
    if logits.is_cuda:
        changed: Tensor = on_gpu("triton_penalties", "apply_logit_bias")(logits, rows, token_ids, values)
        return changed
    return torch_apply_logit_bias(logits, rows, token_ids, values)


def torch_apply_logit_bias(logits: Tensor, rows: Tensor, token_ids: Tensor, values: Tensor) -> Tensor:
    """`apply_logit_bias` in torch, on any device."""
    kept = rows >= 0
    rows, token_ids, values = rows[kept], token_ids[kept], values[kept]
    return logits.index_put_((rows, token_ids), values.to(logits.dtype), accumulate=True)


def mask_tokens(logits: Tensor, rows: Tensor, token_ids: Tensor) -> Tensor:
    """Forbid single tokens (stop ids before min_tokens, the ends of bad words): their logits become -inf.

    Args:
        logits: [R, V] float32, changed in place.
        rows: [N] int64; negative: skipped.
        token_ids: [N] int64.

    Returns:
        `logits`.
    """
    if logits.is_cuda:
        changed: Tensor = on_gpu("triton_penalties", "mask_tokens")(logits, rows, token_ids)
        return changed
    return torch_mask_tokens(logits, rows, token_ids)


def torch_mask_tokens(logits: Tensor, rows: Tensor, token_ids: Tensor) -> Tensor:
    """`mask_tokens` in torch, on any device."""
    kept = rows >= 0
    return logits.index_put_((rows[kept], token_ids[kept]), logits.new_full((), -torch.inf))


def count_tokens(output_counts: Tensor, slots: Tensor, token_ids: Tensor) -> None:
    """Count one more occurrence of a token for each slot.

    Args:
        output_counts: [S, V] integer, changed in place.
        slots: [N] integer, none of 0 and above twice; negative: skipped.
        token_ids: [N] int64; negative: skipped.
    """
    if output_counts.is_cuda:
        on_gpu("triton_penalties", "count_tokens")(output_counts, slots, token_ids)
        return
    kept = (slots >= 0) & (token_ids >= 0)
    output_counts[slots[kept].long(), token_ids[kept]] += 1
