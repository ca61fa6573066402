"""Log-probabilities of prompt tokens over a chunk, and of either kind as the host hands them on."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...kernels.logprobs import Logprobs, token_logprobs
from ..plan import StepPlan, TokenLogprobs
from .input_batch import StepArrays

SLICE_ELEMENTS = 1 << 24  # logits held at once while a prompt's are computed: 64 MiB in float32


def prompt_token_logprobs(
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    hidden: torch.Tensor,
    targets: torch.Tensor,
    num_top: int,
    vocab_size: int,
) -> list[Logprobs]:
    """Log-probabilities of `targets`, slice by slice, so that [N, vocab] logits never exist at once.

    Args:
        logits_of: [n, H] hidden states -> [n, vocab] logits.
        hidden: [N, H], of the positions before the targets'.
        targets: [N] int64 prompt tokens.
        num_top: alternatives asked for.
        vocab_size: width of the logits.
    """
    rows = max(1, SLICE_ELEMENTS // vocab_size)
    return [
        token_logprobs(logits_of(hidden[start : start + rows]).float(), targets[start : start + rows], num_top)
        for start in range(0, len(targets), rows)
    ]


def prompt_targets(
    plan: StepPlan, rows: list[int], tops: dict[int, int], arrays: StepArrays
) -> list[tuple[int, list[int], int, int]]:
    """Which prompt tokens a step tells of: of each chunk that asks, those at positions start + 1 to start + count.

    Args:
        plan: the step.
        rows: of the running batch, of each planned sequence.
        tops: row -> alternatives asked for.
        arrays: the step, laid out.

    Returns:
        For each chunk: plan index, tokens, alternatives, and the token of the step whose state gives the first of them
        (the token at p comes from p - 1).
    """
    found = []
    for place, index in enumerate(arrays.order):
        seq, start, num_top = plan.sequences[index], plan.starts[index], tops.get(rows[index])
        end = min(start + 1 + plan.counts[index], seq.num_prompt_tokens)
        if num_top is not None and start + 1 < end:
            found.append((index, seq.token_ids[start + 1 : end], num_top, arrays.query_start[place]))
    return found


def on_host(values: Logprobs, token_ids: list[int], num_top: list[int]) -> list[TokenLogprobs]:
    """The rows of `values` (tensors on the host) for these tokens, each with as many alternatives as it asked for."""
    columns = zip(
        token_ids,
        values.chosen.tolist(),
        values.ranks.tolist(),
        values.top_ids.tolist(),
        values.top_logprobs.tolist(),
        num_top,
        strict=True,
    )
    return [
        TokenLogprobs(token, chosen, rank, list(zip(ids[:top], best[:top], strict=True)))
        for token, chosen, rank, ids, best, top in columns
    ]
