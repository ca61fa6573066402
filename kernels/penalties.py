"""Changes to logits before sampling: penalties, biases, forbidden tokens. Each changes `logits` in place.

Order of use: penalties, then biases and masks, then `sampling.sample`. Logprobs are taken before all of them.
"""

from __future__ import annotations

import torch
from torch import Tensor


def apply_penalties(
    logits: Tensor,
    prompt_mask: Tensor,
    output_counts: Tensor,
    presence: Tensor,
    frequency: Tensor,
    repetition: Tensor,
) -> Tensor:
    """Penalise tokens that have occurred.

    Repetition (Keskar et al. 2019, CTRL) covers prompt and output: positive logits are divided by it, negative ones
    multiplied. Presence and frequency count the output only: presence is subtracted once, frequency
    per occurrence.

    Args:
        logits: [R, V] float32, changed in place.
        prompt_mask: [R, V] bool, tokens of the row's prompt.
        output_counts: [R, V] integer, occurrences in the row's output.
        presence: [R] float32; 0: off.
        frequency: [R] float32; 0: off.
        repetition: [R] float32; 1: off.

    Returns:
        `logits`.
    """
    produced = output_counts > 0
    factor = torch.where(prompt_mask | produced, repetition[:, None], 1.0)
    logits.copy_(torch.where(logits > 0, logits / factor, logits * factor))
    logits.sub_(frequency[:, None] * output_counts)
    return logits.sub_(presence[:, None] * produced)


def apply_logit_bias(logits: Tensor, rows: Tensor, token_ids: Tensor, values: Tensor) -> Tensor:
    """Add biases to single logits; repeated pairs add up.

    Args:
        logits: [R, V] float32, changed in place.
        rows: [N] int64.
        token_ids: [N] int64.
        values: [N] float32.

    Returns:
        `logits`.
    """
    return logits.index_put_((rows, token_ids), values.to(logits.dtype), accumulate=True)


def mask_tokens(logits: Tensor, rows: Tensor, token_ids: Tensor) -> Tensor:
    """Forbid single tokens (stop ids before min_tokens, the ends of bad words): their logits become -inf.

    Args:
        logits: [R, V] float32, changed in place.
        rows: [N] int64.
        token_ids: [N] int64.

    Returns:
        `logits`.
    """
    return logits.index_put_((rows, token_ids), logits.new_full((), -torch.inf))
