"""Greedy tokens of the embedded model equal transformers' in every way of running them, on the shared rows and our own.

A row counts where the two best logits are always at least 0.01 apart: float32 sums in another order stay far below.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from nanolens.engine.llm import LLM
from nanolens.engine.sampling_params import SamplingParams
from real_engine import ids_of, is_idle, preemptions, recorded

pytestmark = pytest.mark.model

GREEDY = SamplingParams(temperature=0.0, max_tokens=24)
MIN_MARGIN = 0.01
SMALL_POOL = 48  # blocks of 16 tokens: sixteen of the shared rows need about 130
OWN_SMALL_POOL = 10  # our eight rows need about 40
OWN = Path(__file__).parents[1] / "references" / "smollm2_greedy.json"

Build = Callable[..., LLM]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Hardly slower at batches this small, where two threads on a busy machine spend their time waiting."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass(frozen=True)
class Row:
    """One reference: greedy continuation of a prompt by transformers in float32."""

    prompt_ids: list[int]
    output_ids: list[int]
    margin: float


def read_rows(path: Path, least: int) -> list[Row]:
    """The comparable rows of a reference file."""
    found = [
        Row(row["prompt_ids"], row["output_ids"], row["min_top1_top2_margin"])
        for row in json.loads(path.read_text())["rows"]
    ]
    rows = [row for row in found if row.margin >= MIN_MARGIN]
    assert len(rows) >= least
    return rows


@pytest.fixture
def rows(shared_data: Path) -> list[Row]:
    """The shared reference: 40 rows, of which 35 are comparable."""
    return read_rows(shared_data / "smollm2_fp32_greedy24.json", least=35)


@pytest.fixture
def own_rows() -> list[Row]:
    """The repository's own reference (references/make_smollm2_reference.py)."""
    return read_rows(OWN, least=6)


@pytest.fixture
def some_rows(request: pytest.FixtureRequest) -> list[Row]:
    """Sixteen shared rows; the repository's own where there is no shared data."""
    try:
        rows: list[Row] = request.getfixturevalue("rows")
    except pytest.skip.Exception:
        rows = request.getfixturevalue("own_rows")
    return rows[:16]


def check(llm: LLM, rows: list[Row]) -> None:
    """All rows at once give the reference's tokens, and nothing stays behind."""
    outputs = llm.generate([row.prompt_ids for row in rows], GREEDY, use_tqdm=False)
    for index, (found, row) in enumerate(zip(ids_of(outputs), rows, strict=True)):
        assert found == row.output_ids, f"row {index}"
    assert is_idle(llm.engine.snapshot())


def test_one_by_one(smollm2: Build, rows: list[Row]) -> None:
    llm = smollm2()
    for row in rows:
        check(llm, [row])


@pytest.mark.parametrize("batching", ["mixed", "prefill_first"])
def test_sixteen_at_once(smollm2: Build, rows: list[Row], batching: str) -> None:
    check(smollm2(max_num_seqs=16, batching=batching), rows)


def test_in_chunks_of_sixteen_tokens(smollm2: Build, rows: list[Row]) -> None:
    check(smollm2(max_prefill_chunk=16, max_num_seqs=16), rows)


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_in_a_pool_so_small_that_sequences_are_preempted(smollm2: Build, rows: list[Row], prefix_cache: bool) -> None:
    llm = smollm2(num_blocks=SMALL_POOL, max_num_seqs=16, prefix_cache=prefix_cache)
    events = recorded(llm)
    check(llm, rows)
    assert preemptions(events) > 0


def ways() -> Iterator[dict[str, Any]]:
    """Every combination of what must not show in the tokens."""
    for batching, cache, overlap in itertools.product(["mixed", "prefill_first"], [True, False], [True, False]):
        yield {"batching": batching, "prefix_cache": cache, "overlap": overlap}


@pytest.mark.parametrize("way", ways(), ids=lambda way: "-".join(map(str, way.values())))
def test_every_combination_preempted_and_in_chunks(smollm2: Build, some_rows: list[Row], way: dict[str, Any]) -> None:
    num_blocks = SMALL_POOL if len(some_rows) == 16 else OWN_SMALL_POOL
    llm = smollm2(num_blocks=num_blocks, max_prefill_chunk=16, max_num_batched_tokens=128, **way)
    events = recorded(llm)
    check(llm, some_rows)
    assert preemptions(events) > 0


def test_cached_prompts_give_the_same_tokens(smollm2: Build, some_rows: list[Row]) -> None:
    llm = smollm2(overlap=True)
    check(llm, some_rows)
    again = llm.generate([row.prompt_ids for row in some_rows], GREEDY, use_tqdm=False)
    assert ids_of(again) == [row.output_ids for row in some_rows]
    for output in again:
        assert output.metrics is not None
        assert output.metrics.num_cached_tokens == (len(output.prompt_token_ids) - 1) // 16 * 16


def test_the_repositorys_own_rows_alone_and_together(smollm2: Build, own_rows: list[Row]) -> None:
    llm = smollm2(prefix_cache=False)
    check(llm, own_rows)
    for row in own_rows[:3]:
        check(llm, [row])
