"""Compiled sampling from parts of the vocabulary, all of them on one GPU: the tokens of the whole rows, to the bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
pytest.importorskip("triton", reason="needs triton, which is not here")

from nanolens.kernels.sampling import sample_checked  # noqa: E402
from sampling_rows import make_params, mixed_params  # noqa: E402
from split_sampling import sample_in_parts  # noqa: E402

VOCAB = 151_936


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("size", "vocab", "num_tokens"), [(2, VOCAB, 151_669), (4, 151_937, 151_937), (3, 32_003, 20_000)]
)
@pytest.mark.parametrize("rows", [1, 9, 256])
def test_tokens_are_those_of_the_whole_rows(
    rows: int, size: int, vocab: int, num_tokens: int, dtype: torch.dtype
) -> None:
    logits, params = (torch.randn(rows, vocab, device="cuda") * 3).to(dtype), mixed_params(rows, "cuda")
    expected = sample_checked(logits[:, :num_tokens], params).tolist()
    assert sample_in_parts(logits, params, size, num_tokens) == [expected] * size


@pytest.mark.parametrize("any_random", [False, True])
def test_of_equal_logits_the_lowest_token_is_taken_whichever_rank_has_it(any_random: bool) -> None:
    logits = torch.randn(64, VOCAB, device="cuda").round()
    params = replace(mixed_params(64, "cuda"), temperature=torch.zeros(64, device="cuda"), any_random=any_random)
    best = (logits == logits.amax(-1, keepdim=True)).int().argmax(-1)
    assert sample_in_parts(logits, params, 4) == [best.tolist()] * 4


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_bad_logit_of_one_rank_fails_the_row_on_all(bad: float) -> None:
    logits, params = torch.randn(16, VOCAB, device="cuda"), mixed_params(16, "cuda")
    expected = sample_checked(logits, params).tolist()
    logits[3, VOCAB - 1], logits[12, 0] = bad, bad
    logits[5] = -torch.inf
    expected = [-1 if row in (3, 5, 12) else token for row, token in enumerate(expected)]
    assert sample_in_parts(logits, params, 2) == [expected] * 2


def test_many_draws_are_those_of_the_whole_rows() -> None:
    """Flat rows, whose clocks ring close to each other: a rounding that is not the same would show."""
    params = replace(make_params(20_000, device="cuda"), any_top_k=False, any_top_p=False, any_min_p=False)
    logits = torch.randn(20_000, 4001, device="cuda")
    assert sample_in_parts(logits, params, 2) == [sample_checked(logits, params).tolist()] * 2
