"""Log-probabilities of tokens under logits: of the chosen one, its rank, and the best alternatives."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Logprobs:
    """Natural log-probabilities for R rows.

    Attributes:
        chosen: [R] float32, of the token asked about.
        ranks: [R] int64, 1 + the number of tokens that are strictly likelier.
        top_ids: [R, n] int64, the n likeliest tokens, likeliest first.
        top_logprobs: [R, n] float32, theirs.
    """

    chosen: Tensor
    ranks: Tensor
    top_ids: Tensor
    top_logprobs: Tensor


def token_logprobs(logits: Tensor, token_ids: Tensor, num_top: int = 0) -> Logprobs:
    """Log-softmax values for the rows that ask.

    Args:
        logits: [R, V]; not changed. Select the asking rows before.
        token_ids: [R] int64.
        num_top: n, the largest number of alternatives that a row asks for; 0: none.
    """
    logits = logits.float()
    normaliser = torch.logsumexp(logits, dim=-1, keepdim=True)
    chosen = logits.gather(1, token_ids[:, None])
    top, top_ids = logits.topk(min(num_top, logits.shape[1]), dim=-1)
    return Logprobs(
        chosen=(chosen - normaliser).squeeze(1),
        ranks=(logits > chosen).sum(dim=-1) + 1,
        top_ids=top_ids,
        top_logprobs=top - normaliser,
    )
