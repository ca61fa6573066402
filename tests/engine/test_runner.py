"""The model runner on a tiny random Llama: chunks, mixed batches, rows, preemption, failures, and log-probabilities."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from nanolens.engine.config import EngineConfig
from nanolens.engine.plan import StepPlan, StepResult
from nanolens.engine.runner.model_runner import ModelRunner
from nanolens.engine.sampling_params import SamplingParams
from nanolens.engine.sequence import Sequence
from nanolens.errors import InvalidConfig
from nanolens.models.config import ModelConfig
from nanolens.models.transformer import Transformer

VOCAB = 97
BLOCK = 4


def tiny_model() -> Transformer:
    """A random Llama whose logits are far enough apart for greedy tokens to be stable."""
    raw = {
        "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 48,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCAB, "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "torch_dtype": "float32", "tie_word_embeddings": False,
    }  # fmt: skip
    model = Transformer(ModelConfig.from_hf(raw), torch.float32, torch.device("cpu"))
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model


MODEL = tiny_model()


class Host:
    """The least that a core does: blocks in scattered order, plans from explicit work, tokens appended when read."""

    def __init__(self, model: Any = MODEL, max_num_seqs: int = 4, num_blocks: int = 64, **options: Any) -> None:
        config = EngineConfig(max_num_seqs=max_num_seqs, num_blocks=num_blocks, block_size=BLOCK, **options)
        self.runner = ModelRunner(model, config, torch.device("cpu"))
        self.free = list(range(num_blocks))
        random.Random(3).shuffle(self.free)
        self.released: list[int] = []
        self.steps = self.sequences = 0

    def add(self, prompt: list[int], seed: int = 0, **params: Any) -> Sequence:
        params = {"temperature": 0.0} | params
        resolved = SamplingParams(**params)
        self.sequences += 1
        return Sequence(self.sequences, "r", prompt, resolved, seed, 0, lambda event: None, lambda: 0, 128)

    def launch(self, *work: tuple[Sequence, int]) -> tuple[StepPlan, Any]:
        """Plan `count` tokens of each sequence and launch them."""
        self.steps += 1
        plan = StepPlan(self.steps, "mixed", [], [], [], [], [], self.released)
        self.released = []
        for seq, count in work:
            start = seq.num_computed_tokens
            while len(seq.block_table) * BLOCK < start + count:
                seq.block_table.append(self.free.pop())
            plan.sequences.append(seq)
            plan.starts.append(start)
            plan.counts.append(count)
            plan.samples.append(start + count == seq.num_tokens)
            plan.epochs.append(seq.epoch)
            seq.num_computed_tokens += count
            seq.num_pending += plan.samples[-1]
        return plan, self.runner.launch(plan)

    def collect(self, launched: tuple[StepPlan, Any]) -> StepResult:
        """Read a step and append its tokens."""
        plan, handle = launched
        result = self.runner.collect(handle)
        tokens = iter(result.tokens)
        for seq, samples in zip(plan.sequences, plan.samples, strict=True):
            if samples:
                seq.num_pending -= 1
                seq.token_ids.append(next(tokens))
        return result

    def step(self, *work: tuple[Sequence, int]) -> StepResult:
        return self.collect(self.launch(*work))

    def generate(self, seq: Sequence, count: int, chunk: int = 1000) -> list[int]:
        """Run one sequence alone until it has `count` more tokens."""
        goal = len(seq.token_ids) + count
        while len(seq.token_ids) < goal:
            self.step((seq, min(chunk, seq.num_tokens - seq.num_computed_tokens)))
        return seq.output_token_ids

    def leave(self, seq: Sequence, new_epoch: bool = True) -> None:
        """Preempt (or end) a sequence: its blocks go back, what it computed is lost."""
        self.free[:0] = seq.block_table
        seq.block_table = []
        seq.num_computed_tokens = 0
        seq.epoch += new_epoch
        self.released.append(seq.seq_id)


def prompt_of(length: int, salt: int = 0) -> list[int]:
    return [(7 * i + 31 * salt + i * i) % VOCAB for i in range(length)]


def recomputed(prompt: list[int], count: int) -> list[int]:
    """Greedy tokens, each from a whole prefill in a fresh pool."""
    tokens = list(prompt)
    for _ in range(count):
        host = Host()
        tokens += host.generate(host.add(tokens), 1)
    return tokens[len(prompt) :]


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


class Spoiled:
    """The tiny model, with NaN in the hidden state of one token id."""

    config = MODEL.config

    def __init__(self, token_id: int) -> None:
        self.token_id = token_id
        self.logits: Callable[[torch.Tensor], torch.Tensor] = MODEL.logits

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, batch: Any) -> torch.Tensor:
        hidden = MODEL.forward(input_ids, positions, batch)
        slots = batch.slot_mapping[input_ids == self.token_id]
        for keys, values in batch.kv_caches:
            keys.flatten(0, 1)[slots] = math.nan
            values.flatten(0, 1)[slots] = math.nan
        return torch.where((input_ids == self.token_id)[:, None], math.nan, hidden)


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


def prompt_entries(host: Host, length: int, chunks: list[int], **params: Any) -> list[tuple[int, float, int]]:
    seq = host.add(prompt_of(length), prompt_logprobs=1, **params)
    entries = []
    for chunk in chunks:
        entries += host.step((seq, chunk)).prompt_logprobs.get(seq.seq_id, [])
    assert all(len(entry.top) == 1 for entry in entries)
    return [(entry.token_id, entry.logprob, entry.rank) for entry in entries]


def test_prompt_logprobs_do_not_depend_on_chunking() -> None:
    """CASES W22, the runner's part: entry 0 is the caller's, the others follow the prompt."""
    cold = prompt_entries(Host(), 33, [33])
    assert [token for token, _, _ in cold] == prompt_of(33)[1:]
    for chunks in ([16, 17], [1] * 33, [5, 11, 16, 1]):
        again = prompt_entries(Host(), 33, chunks)
        assert [(t, r) for t, _, r in again] == [(t, r) for t, _, r in cold]
        assert [p for _, p, _ in again] == pytest.approx([p for _, p, _ in cold], abs=1e-4)


def test_prompt_logprobs_in_slices_equal_those_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cold = prompt_entries(Host(), 33, [33])
    monkeypatch.setattr("nanolens.engine.runner.logprobs.SLICE_ELEMENTS", VOCAB * 5)
    sliced = prompt_entries(Host(), 33, [33])
    assert [p for _, p, _ in sliced] == pytest.approx([p for _, p, _ in cold], abs=1e-4)


def test_a_sequence_with_output_reports_its_prompt_no_second_time() -> None:
    host = Host()
    seq = host.add(prompt_of(6), prompt_logprobs=0)
    assert len(host.step((seq, 6)).prompt_logprobs[seq.seq_id]) == 5
    host.leave(seq)
    assert not host.step((seq, 7)).prompt_logprobs


def test_logprobs_are_of_the_unmodified_logits() -> None:
    host = Host()
    plain, biased = host.add(prompt_of(6), logprobs=3), host.add(prompt_of(6), logprobs=3, logit_bias={8: 100.0})
    result = host.step((plain, 6), (biased, 6))
    first, second = result.logprobs[plain.seq_id], result.logprobs[biased.seq_id]
    assert (first.rank, first.top[0]) == (1, (first.token_id, pytest.approx(first.logprob)))
    assert second.token_id == 8
    assert [token for token, _ in second.top] == [token for token, _ in first.top]
    assert second.logprob < first.logprob
    assert len(second.top) == 3


def test_each_row_gets_the_alternatives_that_it_asked_for() -> None:
    host = Host()
    sequences = [host.add(prompt_of(6, i), logprobs=n) for i, n in enumerate((0, 5, None))]
    logprobs = host.step(*((seq, 6) for seq in sequences)).logprobs
    assert {seq_id: len(entry.top) for seq_id, entry in logprobs.items()} == {1: 0, 2: 5}


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
