"""The model runner on a tiny random Llama: chunks, mixed batches, rows, preemption, seeds, failures, pool size."""

from __future__ import annotations

import random
from typing import Any

import pytest

from nanolens.errors import InvalidConfig
from runner_host import BLOCK, MODEL, VOCAB, Host, Spoiled, prompt_of, recomputed


def test_greedy_through_chunks_of_any_size_equals_full_recompute() -> None:
    prompt = prompt_of(23)
    expected = recomputed(prompt, 10)
    for chunk in (1, 3, 4, 7, 23):
        host = Host()
        assert host.generate(host.add(prompt), 10, chunk) == expected, f"chunks of {chunk}"


def test_mixed_batches_of_random_chunks_equal_each_alone() -> None:
    rng = random.Random(5)
    host = Host()
    sequences = [host.add(prompt_of(9 + 5 * i, i)) for i in range(4)]
    while any(len(seq.output_token_ids) < 8 for seq in sequences):
        chosen = rng.sample(sequences, rng.randint(1, 4))
        host.step(*((seq, rng.randint(1, seq.num_tokens - seq.num_computed_tokens)) for seq in chosen))
    for i, seq in enumerate(sequences):
        alone = Host()
        assert alone.generate(alone.add(prompt_of(9 + 5 * i, i)), 8) == seq.output_token_ids[:8]


def test_a_row_is_reused_after_release() -> None:
    host = Host(max_num_seqs=1)
    for salt in range(3):
        seq = host.add(prompt_of(6, salt))
        assert host.generate(seq, 5) == recomputed(prompt_of(6, salt), 5)
        host.leave(seq)


def test_more_sequences_than_rows_is_an_error() -> None:
    host = Host(max_num_seqs=1)
    with pytest.raises(RuntimeError, match="max_num_seqs=1"):
        host.step((host.add([1, 2]), 2), (host.add([3, 4]), 2))


@pytest.mark.parametrize("told", [True, False])
def test_a_preempted_sequence_comes_back_as_new(told: bool) -> None:
    """In the same plan as its release, and even where only its epoch tells."""
    host = Host()
    seq, other = host.add(prompt_of(10)), host.add(prompt_of(5, 1))
    host.generate(seq, 4)
    host.leave(seq)
    if not told:
        host.released.clear()
    host.generate(other, 6)  # takes over the blocks
    host.step((other, 1), (seq, len(seq.token_ids)))
    assert host.generate(seq, 3) == recomputed(prompt_of(10), 8)
    assert other.output_token_ids == recomputed(prompt_of(5, 1), 7)


PARAMS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.9, "top_p": 0.9},
    {"repetition_penalty": 1.7, "presence_penalty": 0.5, "frequency_penalty": 0.9},
    {"logprobs": 2, "logit_bias": {5: 3.0}},
]


def lives(
    overlap: bool = False, preempt_at: int | None = None, bad_words: tuple[list[int], ...] = ()
) -> list[list[int]]:
    """Twelve tokens for one sequence per PARAMS, with or without a step in flight; bad words for the first."""
    host = Host()
    sequences = [host.add(prompt_of(8, i), seed=i, **params) for i, params in enumerate(PARAMS)]
    sequences[0].bad_words_ids = list(bad_words)
    flying = None
    for number in range(12):
        if number == preempt_at:
            for seq in sequences:
                host.leave(seq)
        launched = host.launch(*((seq, seq.num_tokens - seq.num_computed_tokens) for seq in sequences))
        if not overlap:
            host.collect(launched)
        elif flying is not None:
            host.collect(flying)
        flying = launched
    if overlap and flying is not None:
        host.collect(flying)
    return [seq.output_token_ids for seq in sequences]


def test_a_launch_before_the_last_collect_gives_the_same_tokens() -> None:
    assert lives(overlap=True) == lives()


def test_preemption_changes_no_token_of_any_kind_of_sampling() -> None:
    assert lives(preempt_at=5) == lives()


@pytest.mark.parametrize("overlap", [True, False])
def test_a_bad_word_is_never_completed(overlap: bool) -> None:
    plain = lives()[0]
    assert plain[3] != plain[4]
    pair = lives(overlap, bad_words=(plain[3:5],))[0]
    assert (pair[:4], pair[4] == plain[4]) == (plain[:4], False)
    triple = lives(overlap, bad_words=(plain[2:5], [VOCAB - 1, plain[3]], plain[:1] * 2, []))[0]
    assert (triple[:4], triple[4] == plain[4]) == (plain[:4], False)
    single = lives(overlap, bad_words=([plain[0]],))[0]
    assert plain[0] not in single


def test_seeded_tokens_do_not_depend_on_neighbours() -> None:
    """CASES W18 at the runner: alone, beside an unseeded one, beside a seeded one, second in the batch."""
    runs = []
    for neighbour, second in ((None, False), ({"temperature": 0.0}, False), ({"temperature": 1.0}, False), ({}, True)):
        host = Host()
        seq = host.add(prompt_of(9), seed=42, temperature=0.8)
        pair = [seq] if neighbour is None else [seq, host.add(prompt_of(12, 4), seed=7, **neighbour)]
        for _ in range(16):
            host.step(*((s, s.num_tokens - s.num_computed_tokens) for s in (pair[::-1] if second else pair)))
        runs.append(seq.output_token_ids)
    assert runs[1:] == runs[:1] * 3
    assert len(set(runs[0])) > 4  # it did sample


def test_seeds_matter() -> None:
    outputs = []
    for seed in (1, 2):
        host = Host()
        outputs.append(host.generate(host.add(prompt_of(9), seed=seed, temperature=1.0), 12))
    assert outputs[0] != outputs[1]


def test_tiny_temperatures_equal_greedy_beside_a_warm_neighbour() -> None:
    """CASES W19 at the runner."""
    host = Host()
    temperatures = (0.0, 1e-6, 1e-4, 1.0)
    sequences = [host.add(prompt_of(9), seed=i, temperature=t) for i, t in enumerate(temperatures)]
    for _ in range(12):
        host.step(*((seq, seq.num_tokens - seq.num_computed_tokens) for seq in sequences))
    greedy = recomputed(prompt_of(9), 12)
    assert [seq.output_token_ids for seq in sequences[:3]] == [greedy] * 3
    assert all(0 <= token < VOCAB for token in sequences[3].output_token_ids)


def test_non_finite_logits_fail_their_sequence_only() -> None:
    host = Host(Spoiled(90), num_blocks=8)
    good, bad = host.add([1, 2, 3]), host.add([4, 5, 90])
    result = host.step((good, 3), (bad, 3))
    assert result.failed == {bad.seq_id: "non-finite logits at position 3"}
    host.leave(bad)
    heir = host.add([6, 7])
    host.free.reverse()  # the failed sequence's block is given next
    for _ in range(6):
        result = host.step(*((seq, seq.num_tokens - seq.num_computed_tokens) for seq in (heir, good)))
        assert not result.failed
    assert good.output_token_ids == recomputed([1, 2, 3], 7)
    assert heir.output_token_ids == recomputed([6, 7], 6)


def test_a_failed_sequences_pages_are_left_finite() -> None:
    host = Host(Spoiled(90))
    host.step((host.add([4, 5, 90]), 3))
    assert all(pages.isfinite().all() for layer in host.runner.kv_caches for pages in layer)


def test_only_sampling_tokens_pass_the_head() -> None:
    rows: list[int] = []

    class Counted(Spoiled):
        def __init__(self) -> None:
            super().__init__(token_id=-1)
            self.logits = lambda hidden: rows.append(len(hidden)) or MODEL.logits(hidden)

    host = Host(Counted())
    first, second = host.add(prompt_of(12)), host.add(prompt_of(5, 1))
    host.step((first, 8), (second, 5))
    host.step((first, 4), (second, 1))
    assert rows == [1, 2]


def test_a_pool_too_small_for_max_model_len_is_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"num_blocks=4 .*max_model_len=64: give at least 16 blocks"):
        Host(num_blocks=4, max_model_len=64)


def test_a_length_beyond_the_models_positions_is_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"max_model_len=129: the model has positions for at most 128"):
        Host(max_model_len=129)


def test_the_pool_caps_the_length_where_none_is_given() -> None:
    assert Host(num_blocks=5).runner.max_model_len == 5 * BLOCK
    assert Host(num_blocks=64).runner.max_model_len == 128
