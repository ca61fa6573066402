"""Sampling: what each parameter leaves in the draw, in which proportions, and what a token depends on."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nanolens.kernels import sampling
from nanolens.kernels.sampling import SamplingTensors, sample


def params(
    rows: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seeds: Tensor | None = None,
    positions: Tensor | None = None,
) -> SamplingTensors:
    """The same parameters for all rows; seeds 0, 1, ... and position 0 unless given."""
    return SamplingTensors(
        torch.full((rows,), temperature),
        torch.full((rows,), top_k),
        torch.full((rows,), top_p),
        torch.full((rows,), min_p),
        torch.arange(rows) if seeds is None else seeds,
        torch.zeros(rows, dtype=torch.int64) if positions is None else positions,
    )


def gaussian(rows: int, vocab: int, spread: float = 3.0, seed: int = 0) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


def draws(logits: list[float], count: int = 20_000, **options: float) -> Tensor:
    """How often each token of one distribution is drawn, over seeds and positions."""
    many = torch.tensor(logits).expand(count, -1)
    positions = torch.arange(count) % 100
    chosen = sample(many, params(count, seeds=torch.arange(count) // 100, positions=positions, **options))  # type: ignore[arg-type]
    return chosen.bincount(minlength=len(logits))


def allowed(logits: Tensor, **options: float) -> list[int]:
    """The tokens that are drawn at all from one row, at a temperature that makes all of them likely."""
    return sorted(set(draws(logits.tolist(), 4000, **options).nonzero().flatten().tolist()))


def test_temperature_zero_is_exactly_argmax() -> None:
    logits = gaussian(64, 1000)
    assert torch.equal(sample(logits, params(64, temperature=0.0)), logits.argmax(-1))


def test_temperature_zero_draws_no_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> Tensor:
        raise RuntimeError("random numbers for greedy rows")

    monkeypatch.setattr(sampling, "exponential_noise", forbidden)
    monkeypatch.setattr(sampling, "exponential_noise_at", forbidden)
    logits = gaussian(4, 100)
    assert torch.equal(sample(logits, params(4, temperature=0.0, top_k=5, top_p=0.5)), logits.argmax(-1))


@pytest.mark.parametrize("temperature", [1e-4, 1e-5, 1e-10, 1e-38])
@pytest.mark.parametrize("options", [{}, {"top_p": 0.9}, {"top_k": 40, "min_p": 0.01}])
def test_tiny_temperatures_equal_argmax_where_the_margin_allows(temperature: float, options: dict[str, float]) -> None:
    logits = gaussian(256, 500) * 10
    logits[:, 7] = -torch.inf
    best = logits.topk(2).values
    clear = best[:, 0] - best[:, 1] > 0.01
    tokens = sample(logits, params(256, temperature=temperature, **options))  # type: ignore[arg-type]
    assert int(clear.sum()) > 200
    assert torch.equal(tokens[clear], logits.argmax(-1)[clear])


@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.0])
def test_draws_follow_the_softmax(temperature: float) -> None:
    logits = [2.0, 0.0, 1.0, -1.0, 0.5, 2.0, -torch.inf]
    counts = draws(logits, temperature=temperature)
    expected = (torch.tensor(logits).double() / temperature).softmax(0) * counts.sum()
    chi_square = ((counts - expected)[:6] ** 2 / expected[:6]).sum()
    assert counts[6] == 0
    assert chi_square < 20.5  # exceeded once in a thousand fair samples with 5 degrees of freedom


@pytest.mark.parametrize("options", [{"top_k": 3}, {"top_p": 0.75}, {"min_p": 0.3}])
def test_filtered_draws_follow_the_softmax_of_what_is_left(options: dict[str, float]) -> None:
    logits = [2.0, 0.0, 1.0, -1.0, 0.9, -3.0]
    left = torch.tensor([0, 2, 4])
    counts = draws(logits, **options)
    expected = torch.tensor(logits)[left].double().softmax(0) * counts.sum()
    assert counts.sum() == counts[left].sum()
    assert ((counts[left] - expected) ** 2 / expected).sum() < 13.9  # once in a thousand, 2 degrees of freedom


@pytest.mark.parametrize("top_k", [-1, 0, 300, 301, 10**6])
def test_top_k_off_in_every_spelling_changes_nothing(top_k: int) -> None:
    logits = gaussian(50, 300)
    assert torch.equal(sample(logits, params(50, top_k=top_k)), sample(logits, params(50)))


def test_top_p_one_and_min_p_zero_change_nothing() -> None:
    logits = gaussian(50, 300)
    everything = sample(logits, params(50))
    assert torch.equal(sample(logits, params(50, top_p=1.0, min_p=0.0)), everything)
    assert torch.equal(sample(logits, params(50, top_k=299, top_p=0.9999999, min_p=1e-30)), everything)


@pytest.mark.parametrize("top_k", [1, 2, 5, 19])
def test_top_k_leaves_the_k_best(top_k: int) -> None:
    logits = gaussian(1, 20, spread=0.1)[0]
    assert allowed(logits, top_k=top_k) == sorted(logits.topk(top_k).indices.tolist())


def test_top_k_one_is_argmax_even_for_equal_logits() -> None:
    logits = torch.zeros(100, 50)
    logits[:, 10:20] = 1.0
    assert sample(logits, params(100, top_k=1)).unique().tolist() == [10]


@pytest.mark.parametrize("options, left", [({"top_k": 3}, [0, 1, 2]), ({"top_p": 0.5}, [0, 1, 2, 3])])
def test_of_equal_logits_the_lower_indices_stay(options: dict[str, float], left: list[int]) -> None:
    assert allowed(torch.zeros(8), **options) == left


@pytest.mark.parametrize("top_p, left", [(1e-9, 1), (0.39, 1), (0.41, 2), (0.69, 2), (0.71, 3), (0.89, 3), (0.91, 4)])
def test_top_p_leaves_the_fewest_tokens_that_reach_it(top_p: float, left: int) -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert allowed(logits, top_p=top_p) == list(range(left))


def test_top_p_looks_at_the_distribution_after_temperature() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert allowed(logits, top_p=0.5, temperature=0.5) == [0]  # 0.16 / 0.30 = 0.53
    assert allowed(logits, top_p=0.5, temperature=2.0) == [0, 1]


def test_top_p_looks_at_what_top_k_left() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert allowed(logits, top_p=0.55) == [0, 1]
    assert allowed(logits, top_p=0.55, top_k=2) == [0]  # 0.4 / 0.7 = 0.57


def test_top_p_looks_at_what_min_p_left() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert allowed(logits, top_p=0.55, min_p=0.6) == [0]


@pytest.mark.parametrize("min_p, left", [(0.2, 4), (0.26, 3), (0.51, 2), (0.76, 1), (1.0, 1)])
def test_min_p_is_a_share_of_the_best_probability(min_p: float, left: int) -> None:
    assert allowed(torch.tensor([0.4, 0.3, 0.2, 0.1]).log(), min_p=min_p) == list(range(left))


@pytest.mark.parametrize("top_p, spread", [(0.3, 3.0), (0.95, 3.0), (0.9, 0.1), (0.99999, 1.0)])
def test_top_p_in_a_large_vocabulary_equals_a_full_sort(top_p: float, spread: float) -> None:
    logits = gaussian(3, 20_000, spread)
    ordered = logits.double().softmax(-1).sort(dim=-1, descending=True, stable=True)
    before = ordered.values.cumsum(-1) - ordered.values
    expected = torch.zeros(3, 20_000, dtype=torch.bool).scatter_(1, ordered.indices, before < top_p)
    costs = logits.amax(-1, keepdim=True) - logits
    kept = sampling._kept(costs, params(3, top_p=top_p))
    # float32 costs against float64 probabilities: the last token or two may differ, all others not.
    assert int((kept != expected).sum(-1).max()) <= 2


def test_forbidden_tokens_are_never_drawn() -> None:
    logits = torch.full((2000, 30), -torch.inf)
    logits[:, 4], logits[:, 21] = 0.0, -1.0
    for options in ({}, {"top_k": 10}, {"top_p": 0.999}, {"min_p": 1e-6}):
        assert set(sample(logits, params(2000, **options)).tolist()) == {4, 21}  # type: ignore[arg-type]


MIXED = SamplingTensors(
    torch.tensor([0.0, 1.0, 0.8, 1.5, 1e-6, 1.0, 0.7, 1.0]),
    torch.tensor([0, 0, 50, 0, 0, 3, 700, -1]),
    torch.tensor([1.0, 1.0, 0.9, 0.95, 1.0, 1.0, 0.99, 1.0]),
    torch.tensor([0.0, 0.0, 0.0, 0.0, 0.5, 0.0, 0.01, 0.1]),
    torch.tensor([3, 3, 1 << 40, 5, 6, 7, 8, (1 << 63) - 1]),
    torch.tensor([0, 1, 2, 3, 1000, 5, 6, 7]),
)


def test_a_token_does_not_depend_on_its_row_or_its_neighbours() -> None:
    logits = gaussian(8, 5000)
    together = sample(logits, MIXED)
    order = torch.tensor([5, 2, 7, 0, 6, 1, 4, 3])
    assert torch.equal(sample(logits[order], sampling._select(MIXED, order)), together[order])
    for row in range(8):
        one = torch.tensor([row])
        assert torch.equal(sample(logits[one], sampling._select(MIXED, one)), together[one])


def test_seed_and_position_each_change_the_token() -> None:
    logits = torch.zeros(1, 10_000).expand(200, -1)
    same, other = torch.full((200,), 9), torch.arange(200)
    assert len(sample(logits, params(200, seeds=same, positions=same)).unique()) == 1
    assert len(sample(logits, params(200, seeds=other, positions=same)).unique()) > 190
    assert len(sample(logits, params(200, seeds=same, positions=other)).unique()) > 190


def test_logits_are_left_as_they_are() -> None:
    logits = gaussian(8, 200)
    before = logits.clone()
    sample(logits, MIXED)
    assert torch.equal(logits, before)


def test_strided_logits_give_the_same_tokens() -> None:
    wide = gaussian(8, 220)  # a padded vocabulary, cut
    assert torch.equal(sample(wide[:, :200], MIXED), sample(wide[:, :200].contiguous(), MIXED))


def test_a_row_of_nan_leaves_the_others_alone() -> None:
    logits = gaussian(8, 200)
    healthy = sample(logits, MIXED)
    logits[[1, 2]] = torch.nan
    tokens = sample(logits, MIXED)
    rest = [0, 3, 4, 5, 6, 7]
    assert torch.equal(tokens[rest], healthy[rest])
    assert int(tokens.min()) >= 0 and int(tokens.max()) < 200
