"""From a plan to index arrays: rows, block tables, order, slots, and tokens that only the device knows."""

from __future__ import annotations

import pytest

from nanolens.engine.plan import StepPlan
from nanolens.engine.runner.input_batch import ON_DEVICE, InputBatch
from nanolens.engine.sampling_params import SamplingParams
from nanolens.engine.sequence import Sequence

BLOCK = 4


def sequence(seq_id: int, tokens: list[int], blocks: list[int]) -> Sequence:
    seq = Sequence(seq_id, "r", tokens, SamplingParams(), 0, 0, lambda event: None, lambda: 0, 64)
    seq.block_table = blocks
    return seq


def plan(*work: tuple[Sequence, int, int], released: tuple[int, ...] = ()) -> StepPlan:
    """Each entry: a sequence, its first position, its tokens."""
    sequences = [seq for seq, _, _ in work]
    starts, counts = [start for _, start, _ in work], [count for _, _, count in work]
    samples = [start + count >= len(seq.token_ids) for seq, start, count in work]
    return StepPlan(1, "mixed", sequences, starts, counts, samples, [s.epoch for s in sequences], list(released))


def test_sequences_with_one_token_come_first_and_results_keep_the_plans_order() -> None:
    batch = InputBatch(4, 8, BLOCK)
    chunk = sequence(1, list(range(10, 16)), [5, 2])
    single = sequence(2, [1, 2, 3], [7])
    work = plan((chunk, 1, 5), (single, 2, 1))
    arrays = batch.arrays(work, batch.update(work)[0])
    assert arrays.order == [1, 0]
    assert arrays.input_ids.tolist() == [3, 11, 12, 13, 14, 15]
    assert arrays.positions.tolist() == [2, 1, 2, 3, 4, 5]
    assert arrays.slot_mapping.tolist() == [7 * 4 + 2, 21, 22, 23, 8, 9]
    assert (arrays.query_start, arrays.query_lens, arrays.context_lens) == ([0, 1, 6], [1, 5], [3, 6])
    assert batch.table[arrays.rows, :2].tolist() == [[7, 0], [5, 2]]
    assert arrays.samples.plan == [0, 1]
    assert arrays.sample_index.tolist() == [5, 0]
    assert arrays.samples.rows.tolist() == [0, 1]
    assert arrays.samples.positions.tolist() == [6, 3]


def test_an_unfinished_chunk_samples_nothing() -> None:
    batch = InputBatch(4, 8, BLOCK)
    work = plan((sequence(1, [1, 2, 3, 4], [0]), 0, 3))
    arrays = batch.arrays(work, batch.update(work)[0])
    assert (arrays.samples.plan, arrays.sample_index.tolist()) == ([], [])


def test_a_token_unknown_to_the_host_is_taken_from_its_row() -> None:
    batch = InputBatch(4, 8, BLOCK)
    first, second = sequence(1, [1], [0]), sequence(2, [2, 3], [1])
    batch.update(plan((first, 0, 1), (second, 0, 2)))
    work = plan((first, 0, 1), (second, 2, 1))
    arrays = batch.arrays(work, batch.update(work)[0])
    assert arrays.input_ids.tolist() == [1, ON_DEVICE]
    assert (arrays.pending_index.tolist(), arrays.pending_rows.tolist()) == ([1], [1])


def test_a_new_sequence_whose_token_nobody_knows_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="sequence 1 is new to the runner"):
        InputBatch(4, 8, BLOCK).update(plan((sequence(1, [1], [0]), 1, 1)))


def test_only_new_blocks_are_appended() -> None:
    batch = InputBatch(2, 8, BLOCK)
    seq = sequence(1, [1] * 9, [4, 5])
    batch.update(plan((seq, 0, 8)))
    seq.block_table = [0, 0, 6]  # the leading ids are not read again
    batch.update(plan((seq, 8, 1)))
    assert batch.table[0, :3].tolist() == [4, 5, 6]


@pytest.mark.parametrize("told", [True, False])
def test_a_readmitted_sequence_gets_its_whole_new_table(told: bool) -> None:
    batch = InputBatch(2, 8, BLOCK)
    seq = sequence(1, [1] * 9, [4, 5, 6])
    batch.update(plan((seq, 0, 9)))
    seq.epoch += 1
    seq.block_table = [7, 8, 9]
    rows, admitted, freed = batch.update(plan((seq, 0, 9), released=(1,) if told else ()))
    assert (rows, admitted, freed) == ([0], [0], [0] if told else [])
    assert batch.table[0, :3].tolist() == [7, 8, 9]


def test_release_of_an_unknown_sequence_is_no_error() -> None:
    batch = InputBatch(1, 8, BLOCK)
    batch.update(plan(released=(9,)))
    assert batch.update(plan((sequence(1, [1], [0]), 0, 1)))[0] == [0]
