"""The counter-based generator against known answers, and its numbers against the distribution that they claim."""

from __future__ import annotations

import math

import pytest
import torch

from nanolens.kernels import philox
from nanolens.kernels.philox import exponential_noise, exponential_noise_at, philox4x32

MASK = 0xFFFFFFFF

# From the known-answer file of Random123, the authors' own implementation: (rounds, counter, key, result).
KNOWN_ANSWERS = [
    (7, (0,) * 4, (0,) * 2, (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)),
    (10, (0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (10, (MASK,) * 4, (MASK,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
]


def philox_by_hand(counter: tuple[int, int, int, int], key: tuple[int, int], rounds: int) -> list[int]:
    """One counter, in whole numbers."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(rounds):
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & MASK, (a >> 32) ^ c3 ^ k1, a & MASK
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return [c0, c1, c2, c3]


@pytest.mark.parametrize("rounds, counter, key, result", KNOWN_ANSWERS)
def test_known_answers(rounds: int, counter: tuple[int, ...], key: tuple[int, ...], result: tuple[int, ...]) -> None:
    c0, c1, c2, c3 = (torch.tensor([value]) for value in counter)
    k0, k1 = (torch.tensor([value]) for value in key)
    assert [int(word) for word in philox4x32((c0, c1, c2, c3), (k0, k1), rounds)] == list(result)


def test_words_equal_those_by_hand_for_any_counter_and_key() -> None:
    generator = torch.Generator().manual_seed(3)
    values = torch.randint(0, 1 << 32, (6, 50), generator=generator)
    words = torch.stack(philox4x32((values[0], values[1], values[2], values[3]), (values[4], values[5])))
    for column in range(50):
        c0, c1, c2, c3, k0, k1 = (int(v) for v in values[:, column])
        assert words[:, column].tolist() == philox_by_hand((c0, c1, c2, c3), (k0, k1), 7)


def test_noise_is_a_function_of_seed_position_and_index() -> None:
    seeds, positions = torch.tensor([5, (7 << 32) + 11]), torch.tensor([3, 40_000])
    noise = exponential_noise(seeds, positions, 10)
    for row in range(2):
        seed, position = int(seeds[row]), int(positions[row])
        for index in range(10):
            word = philox_by_hand((index // 4, position, 0, 0), (seed & MASK, seed >> 32), 7)[index % 4]
            expected = -math.log1p(-(word + 0.5) / 2**32)
            assert math.isclose(float(noise[row, index]), expected, rel_tol=1e-5)


def test_noise_of_single_tokens_is_that_of_the_whole_row() -> None:
    seeds, positions = torch.arange(3) * 10**15, torch.tensor([0, 1, 99])
    noise = exponential_noise(seeds, positions, 77)
    rows, tokens = torch.tensor([0, 0, 1, 2, 2]), torch.tensor([0, 76, 4, 2, 75])
    single = exponential_noise_at(seeds[rows], positions[rows], tokens)
    torch.testing.assert_close(single, noise[rows, tokens], rtol=1e-6, atol=0)


def test_noise_of_a_large_vocabulary_equals_its_parts() -> None:
    seeds, positions = torch.arange(16), torch.arange(16)
    whole = exponential_noise(seeds, positions, 40_001)  # worked out in several chunks
    torch.testing.assert_close(whole[:, :500], exponential_noise(seeds, positions, 500), rtol=1e-6, atol=0)
    torch.testing.assert_close(whole[5:6], exponential_noise(seeds[5:6], positions[5:6], 40_001), rtol=1e-6, atol=0)


def test_noise_is_exponential() -> None:
    noise = exponential_noise(torch.arange(64), torch.arange(64) * 7, 4096).double().flatten()
    count = noise.numel()
    assert noise.min() > 0 and noise.isfinite().all()
    assert abs(float(noise.mean()) - 1) < 5 / count**0.5
    # Kolmogorov-Smirnov against 1 - exp(-x): 1.95 / sqrt(n) is exceeded once in a thousand fair samples.
    ordered = 1 - (-noise.sort().values).exp()
    steps = torch.arange(count + 1, dtype=torch.float64) / count
    distance = torch.maximum(ordered - steps[:-1], steps[1:] - ordered).max()
    assert distance < 1.95 / count**0.5


def test_the_extreme_words_give_finite_numbers_above_zero() -> None:
    noise = philox._exponential(torch.tensor([0, 1, 2**32 - 1]).to(torch.float32)).double()
    assert noise.isfinite().all()
    torch.testing.assert_close(noise[:2], torch.tensor([0.5, 1.5], dtype=torch.float64) / 2**32)
    assert 16 < float(noise[2]) < 17


@pytest.mark.parametrize("what", ["seed", "position", "index"])
def test_neighbouring_numbers_are_uncorrelated(what: str) -> None:
    seeds = torch.arange(256) if what != "position" else torch.zeros(256, dtype=torch.int64)
    positions = torch.arange(256) if what == "position" else torch.zeros(256, dtype=torch.int64)
    noise = exponential_noise(seeds, positions, 1024).double() - 1
    pairs = (noise[:, :-1], noise[:, 1:]) if what == "index" else (noise[:-1], noise[1:])
    assert abs(float((pairs[0] * pairs[1]).mean())) < 5 / pairs[0].numel() ** 0.5
