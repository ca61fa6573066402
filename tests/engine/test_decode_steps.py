"""Decode steps on the device's own rows, run without graphs on a CPU: the same tokens as steps laid out by the host."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nanolens.engine.runner.decode_steps import DecodeSteps, graph_sizes
from nanolens.kernels.attention import AttentionMetadata, build_metadata
from runner_host import BLOCK, MODEL, VOCAB, Host

MAX_SEQS = 6
WARM = {"temperature": 0.8}


def metadata(block_tables: torch.Tensor, rows: torch.Tensor, context_lens: torch.Tensor) -> AttentionMetadata:
    """The torch backend wants lengths on the host and has no padding rows: those attend to one token of a page."""
    lengths = context_lens.clamp(min=1).tolist()
    return build_metadata(block_tables, [1] * len(lengths), lengths, BLOCK, rows)


def host(with_decode_steps: bool) -> Host:
    made = Host(max_num_seqs=MAX_SEQS)
    if with_decode_steps:
        runner = made.runner
        runner._decodes = DecodeSteps(
            MODEL, runner.kv_caches, runner._rows, BLOCK, VOCAB, VOCAB, graph_sizes(MAX_SEQS), metadata
        )
    return made


def generate(
    with_decode_steps: bool, ahead: bool, own: list[dict[str, Any]], bad_words: tuple[list[int], ...] = ()
) -> list[list[int]]:
    """Prompts of different lengths, then 20 decode steps; `ahead`: each launched before the last is read."""
    made = host(with_decode_steps)
    sequences = [made.add(list(range(3 + i, 9 + 2 * i)), seed=i, **params) for i, params in enumerate(own)]
    sequences[0].bad_words_ids = list(bad_words)
    made.step(*[(seq, len(seq.token_ids)) for seq in sequences])
    flying = []
    for _ in range(20):
        flying.append(made.launch(*[(seq, 1) for seq in sequences]))
        if len(flying) > ahead:
            made.collect(flying.pop(0))
    for step in flying:
        made.collect(step)
    return [seq.token_ids for seq in sequences]


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(
    "own",
    [
        [{}, {}, {}],
        [{"temperature": 0.8}, {}, {"temperature": 1.2}, {"temperature": 0.5}, {}],
        [{"temperature": 0.8, "top_k": 5}, {"temperature": 0.9}, {"presence_penalty": 1.0}, {"logit_bias": {3: 5.0}}],
    ],
    ids=["greedy", "temperatures", "filters, penalties and rules"],
)
def test_tokens_are_those_of_steps_laid_out_by_the_host(own: list[dict[str, Any]], ahead: bool) -> None:
    assert generate(True, ahead, own) == generate(False, ahead, own)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_bad_word_is_never_completed_by_a_decode_step(ahead: bool) -> None:
    plain = generate(False, False, [WARM])[0][6:]
    change = next(i for i in range(3, 20) if plain[i] != plain[i + 1])
    words = (plain[change : change + 2], plain[change - 2 : change + 1])
    expected = generate(False, False, [WARM], words)[0][6:]
    assert expected != plain
    assert generate(True, ahead, [WARM], words)[0][6:] == expected


def test_a_step_is_padded_to_the_next_size_and_says_so() -> None:
    made = host(True)
    sequences = [made.add([5, 6, 7 + i]) for i in range(3)]
    made.step(*[(seq, 3) for seq in sequences])
    _, handle = made.launch(*[(seq, 1) for seq in sequences])
    assert made.runner.collect(handle).padding == 1


@pytest.mark.parametrize("most", [1, 2, 7, 8, 9, 100, 256, 257, 1000])
def test_graph_sizes_rise_to_the_cap_itself(most: int) -> None:
    sizes = graph_sizes(most)
    assert sizes == sorted(set(sizes)) and sizes[0] == 1 and sizes[-1] == most
