"""The sampler on made-up logits: what each parameter does to them, and what it remembers of a sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from nanolens.engine.plan import StepPlan
from nanolens.engine.runner.input_batch import InputBatch, SampleRows
from nanolens.engine.runner.sampler import Sampled, Sampler
from nanolens.engine.runner.staging import Staging
from nanolens.engine.sampling_params import SamplingParams
from nanolens.engine.sequence import Sequence

VOCAB = 12


def sequence(prompt: list[int], output: tuple[int, ...] = (), seq_id: int = 1, **params: Any) -> Sequence:
    params = {"temperature": 0.0} | params
    seq = Sequence(seq_id, "r", prompt, SamplingParams(**params), 5, 0, lambda event: None, lambda: 0, 64)
    seq.token_ids += output
    seq.block_table = list(range(4))
    return seq


def decode(sequences: list[Sequence], pending: int = 0) -> SampleRows:
    """The rows of a step that samples one token of each."""
    ends = [len(seq.token_ids) + pending for seq in sequences]
    plan = StepPlan(
        1, "decode", sequences, [end - 1 for end in ends], [1] * len(ends), [True] * len(ends), [0] * len(ends), []
    )
    batch = InputBatch(8, 4, 16)
    if pending:  # a sequence is new with its tokens on the host
        first = StepPlan(
            0, "decode", sequences, [0] * len(ends), [1] * len(ends), [False] * len(ends), [0] * len(ends), []
        )
        batch.update(first)
    return batch.arrays(plan, batch.update(plan)[0]).samples


def sampler_for(*sequences: Sequence, num_tokens: int = VOCAB) -> Sampler:
    sampler = Sampler(8, num_tokens, torch.zeros(8, dtype=torch.int64), Staging(torch.device("cpu")))
    for row, seq in enumerate(sequences):
        sampler.admit(row, seq)
    return sampler


def run(sampler: Sampler, logits: torch.Tensor, *sequences: Sequence, pending: int = 0) -> Sampled:
    rows = decode(list(sequences), pending)
    sampled = sampler.sample(logits, list(sequences), rows)
    sampler.keep(rows.rows, sampled.tokens)
    return sampled


def scores(**at: float) -> torch.Tensor:
    """One row of zeros but for t3=..., t5=..."""
    row = torch.zeros(1, VOCAB)
    for name, value in at.items():
        row[0, int(name[1:])] = value
    return row


@pytest.mark.parametrize(
    ("params", "prompt_logit", "expected"),
    [
        ({"presence_penalty": 2.0}, 4.0, 4.0),
        ({"frequency_penalty": 2.0}, 4.0, 4.0),
        ({"repetition_penalty": 2.0}, 4.0, 2.0),
        ({"repetition_penalty": 2.0}, -4.0, -8.0),
    ],
)
def test_only_repetition_counts_the_prompt(params: dict[str, Any], prompt_logit: float, expected: float) -> None:
    """CASES W24: the prompt holds token 3 five times and there is no output yet."""
    seq = sequence([3] * 5, **params)
    logits = scores(t3=prompt_logit)
    run(sampler_for(seq), logits, seq)
    assert logits[0, 3].item() == expected


@pytest.mark.parametrize(
    ("params", "expected"),
    [({"presence_penalty": 2.0}, 2.0), ({"frequency_penalty": 2.0}, 2.0), ({"repetition_penalty": 2.0}, 2.0)],
)
def test_a_readmitted_sequences_output_counts_once(params: dict[str, Any], expected: float) -> None:
    """CASES W24: preempted with token 3 generated once, having counted more before."""
    seq = sequence([3] * 5, (3,), **params)
    sampler = sampler_for(seq)
    run(sampler, scores(t3=9.0), seq)  # samples a 3 that the preemption voids
    sampler.admit(0, seq)
    logits = scores(t3=4.0)
    run(sampler, logits, seq)
    assert logits[0, 3].item() == expected


def test_sampled_tokens_are_counted_before_the_host_reads_them() -> None:
    seq = sequence([1, 2], frequency_penalty=1.0)
    sampler = sampler_for(seq)
    assert run(sampler, scores(t3=9.0), seq).tokens.tolist() == [3]
    logits = scores(t3=9.0)
    run(sampler, logits, seq, pending=1)
    assert logits[0, 3].item() == 8.0


def test_penalties_touch_no_other_row() -> None:
    sequences = [sequence([1], (3,), seq_id=i, presence_penalty=p) for i, p in enumerate((0.0, 1.5, 0.0))]
    logits = torch.ones(3, VOCAB)
    run(sampler_for(*sequences), logits, *sequences)
    assert logits[:, 3].tolist() == [1.0, -0.5, 1.0]
    assert logits[:, 4].tolist() == [1.0, 1.0, 1.0]


def test_counts_of_many_rows_survive_growth_and_reuse() -> None:
    sampler = sampler_for()
    sequences = [sequence([1], (i,), seq_id=i, presence_penalty=1.0) for i in range(8)]
    for row, seq in enumerate(sequences):
        sampler.admit(row, seq)
    sampler.release(2)
    sampler.admit(2, sequence([1], (9, 9), seq_id=9, presence_penalty=1.0))
    held = [sampler.counts.output_counts[sampler.counts.slot(row)].nonzero().flatten().tolist() for row in range(8)]
    assert held == [[0], [1], [9], [3], [4], [5], [6], [7]]


def test_ends_are_masked_until_min_tokens() -> None:
    logits = scores(t7=9.0, t8=8.0, t2=1.0)
    for output, expected in (((), 2), ((1,), 2), ((1, 1), 7)):
        seq = sequence([1], output, min_tokens=2)
        seq.stop_token_ids = frozenset({7, 8})
        assert run(sampler_for(seq), logits.clone(), seq).tokens.tolist() == [expected]


def resumed(prompt: list[int], output: list[int], appended: list[int], more: list[int], **params: Any) -> Sequence:
    """A sequence that was paused after its output, got tokens appended, and generated more."""
    seq = sequence(prompt, tuple(output), **params)
    seq.append(appended)
    seq.token_ids += more
    return seq


@pytest.mark.parametrize(
    ("params", "seen", "expected"),
    [
        ({"frequency_penalty": 1.0}, 5, 4.0),  # appended twice: given, not generated
        ({"frequency_penalty": 1.0}, 3, 2.0),  # generated before and after
        ({"presence_penalty": 1.0}, 5, 4.0),
        ({"repetition_penalty": 2.0}, 5, 2.0),
        ({"repetition_penalty": 2.0}, 1, 2.0),
        ({"repetition_penalty": 2.0}, 9, 4.0),
    ],
)
def test_appended_tokens_count_as_prompt(params: dict[str, Any], seen: int, expected: float) -> None:
    seq = resumed([1, 2], [3], [5, 5], [3], **params)
    logits = scores(**{f"t{seen}": 4.0})
    run(sampler_for(seq), logits, seq)
    assert logits[0, seen].item() == expected


def test_min_tokens_are_generated_ones() -> None:
    logits = scores(t7=9.0, t2=1.0)
    for more, expected in (([], 2), ([1], 2), ([1, 1], 7)):
        seq = resumed([1], [1], [4, 4, 4, 4], more, min_tokens=3)
        seq.stop_token_ids = frozenset({7})
        assert run(sampler_for(seq), logits.clone(), seq).tokens.tolist() == [expected]


def test_a_bad_word_does_not_reach_over_appended_tokens() -> None:
    logits = scores(t7=9.0, t2=1.0)
    for word, more, expected in (([4, 7], [], 7), ([4, 6, 7], [6], 7), ([6, 7], [6], 2), ([5, 6, 7], [5, 6], 2)):
        seq = resumed([1], [5], [5, 4], more)
        seq.bad_words_ids = [word]
        assert run(sampler_for(seq), logits.clone(), seq).tokens.tolist() == [expected]


def test_a_bias_moves_a_logit() -> None:
    seq = sequence([1], logit_bias={4: 5.0, 6: -100.0})
    assert run(sampler_for(seq), scores(t6=9.0, t3=4.0), seq).tokens.tolist() == [4]


def test_a_bias_of_plus_infinity_does_not_undo_a_mask() -> None:
    seq = sequence([1], min_tokens=5, logit_bias={7: 100.0})
    seq.stop_token_ids = frozenset({7})
    assert run(sampler_for(seq), scores(t3=1.0), seq).tokens.tolist() == [3]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_ids_beyond_the_tokenizers_are_never_sampled(temperature: float) -> None:
    seq = sequence([1], temperature=temperature, logit_bias={11: 50.0})
    seq.bad_words_ids, seq.stop_token_ids = [[11]], frozenset({11})
    sampler = sampler_for(seq, num_tokens=10)
    logits = torch.zeros(1, VOCAB)
    logits[0, 10:] = 50.0
    assert run(sampler, logits, seq).tokens.item() < 10


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("params", [{}, {"temperature": 0.7, "top_p": 0.9, "top_k": 5}])
def test_a_non_finite_row_is_reported_and_harms_no_other(value: float, params: dict[str, Any]) -> None:
    sequences = [sequence([1], seq_id=i, **params) for i in range(3)]
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(0))
    clean = run(sampler_for(*sequences), logits.clone(), *sequences)
    logits[1, 4] = value
    spoiled = run(sampler_for(*sequences), logits, *sequences)
    assert spoiled.tokens[1] == -1
    assert spoiled.tokens[[0, 2]].tolist() == clean.tokens[[0, 2]].tolist()


def test_unset_parameters_are_neutral() -> None:
    """temperature None is 1.0: over many positions, both tokens of a 3:1 distribution come up."""
    seq = sequence([1], temperature=None)
    sampler = sampler_for(seq)
    logits = torch.full((1, VOCAB), -1e4)
    logits[0, 2], logits[0, 5] = float(np.log(3)), 0.0
    drawn = []
    for _ in range(40):
        drawn.append(int(run(sampler, logits.clone(), seq).tokens))
        seq.token_ids.append(drawn[-1])
    assert set(drawn) == {2, 5}
    assert drawn.count(2) > drawn.count(5)
