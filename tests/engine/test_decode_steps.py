"""Decode steps on the device's own rows, run without graphs on a CPU: the same tokens as steps laid out by the host."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from nanolens.engine.runner.decode_steps import DecodeSteps, graph_sizes
from nanolens.engine.runner.split_head import SplitHead
from nanolens.kernels.attention import AttentionMetadata, build_metadata
from nanolens.models.parallel import Collectives, Shard, join_vocabulary
from runner_host import BLOCK, MODEL, VOCAB, Host
from threaded_ranks import ThreadCollectives, on_ranks

MAX_SEQS = 6
WARM = {"temperature": 0.8}


def metadata(block_tables: torch.Tensor, rows: torch.Tensor, context_lens: torch.Tensor) -> AttentionMetadata:
    """The torch backend wants lengths on the host and has no padding rows: those attend to one token of a page."""
    lengths = context_lens.clamp(min=1).tolist()
    return build_metadata(block_tables, [1] * len(lengths), lengths, BLOCK, rows)


class SharedHead:
    """The tiny model, of whose logits a rank has its own columns, and padding."""

    def __init__(self, shard: Shard, collectives: Collectives) -> None:
        self.config, self.shard, self.collectives = MODEL.config, shard, collectives
        self.forward = MODEL.forward

    def own_logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        own = MODEL.logits(hidden)[:, self.shard.vocabulary(VOCAB)]
        own = F.pad(own, (0, self.shard.vocabulary_rows(VOCAB) - own.shape[1]), value=torch.nan)
        return own if out is None else out.copy_(own)

    def join_logits(self, own: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return join_vocabulary(self.collectives.all_gather(own), VOCAB, out)

    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return self.join_logits(self.own_logits(hidden), out)


def host(with_decode_steps: bool, shared: SharedHead | None = None) -> Host:
    made = Host(shared or MODEL, max_num_seqs=MAX_SEQS)
    runner = made.runner
    runner._split = None if shared is None else SplitHead(shared, shared.collectives, VOCAB)
    if with_decode_steps:
        runner._decodes = DecodeSteps(
            shared or MODEL, runner.kv_caches, runner._rows, BLOCK, VOCAB, VOCAB, graph_sizes(MAX_SEQS), metadata,
            runner._split,
        )  # fmt: skip
    return made


def generate(
    with_decode_steps: bool,
    ahead: bool,
    own: list[dict[str, Any]],
    bad_words: tuple[list[int], ...] = (),
    shared: SharedHead | None = None,
) -> list[list[int]]:
    """Prompts of different lengths, then 20 decode steps; `ahead`: each launched before the last is read."""
    made = host(with_decode_steps, shared)
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


PLAIN: list[list[dict[str, Any]]] = [
    [{}, {}, {}],
    [{"temperature": 0.8}, {}, {"temperature": 1.2}, {"temperature": 0.5}, {}],
]
MORE: list[dict[str, Any]] = [
    {"temperature": 0.8, "top_k": 5}, {"temperature": 0.9}, {"presence_penalty": 1.0}, {"logit_bias": {3: 5.0}}
]  # fmt: skip
each_kind = pytest.mark.parametrize(
    "own", [*PLAIN, MORE], ids=["greedy", "temperatures", "filters, penalties and rules"]
)


@pytest.mark.parametrize("ahead", [False, True])
@each_kind
def test_tokens_are_those_of_steps_laid_out_by_the_host(own: list[dict[str, Any]], ahead: bool) -> None:
    assert generate(True, ahead, own) == generate(False, ahead, own)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("with_decode_steps", [False, True])
@each_kind
def test_ranks_that_share_the_head_sample_the_same(
    own: list[dict[str, Any]], with_decode_steps: bool, size: int
) -> None:
    def on_rank(shard: Shard, collectives: Collectives) -> tuple[list[list[int]], set[torch.Size]]:
        assert isinstance(collectives, ThreadCollectives)
        tokens = generate(with_decode_steps, True, own, shared=SharedHead(shard, collectives))
        return tokens, {shape for _, shape in collectives.calls}

    expected, columns = generate(False, True, own), -(-VOCAB // size)
    for tokens, gathered in on_ranks(size, on_rank):
        assert tokens == expected
        # Logits travel where somebody asks for more than a temperature, and nowhere else.
        assert any(shape[-1] == columns for shape in gathered) == (own is MORE)


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
