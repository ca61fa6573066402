"""Log-probabilities from the model runner: of prompt tokens over chunks, and of sampled ones."""

from __future__ import annotations

from typing import Any

import pytest

from runner_host import VOCAB, Host, prompt_of


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
