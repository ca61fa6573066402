"""`--vs transformers` on a tiny model with files: rows agree, and what fails is said in the table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nanolens.benchmarks.cli import main
from nanolens.benchmarks.versus import Side, compare, rows_that_agree, side_table
from nanolens.benchmarks.workload import Job, Workload, WorkloadSpec
from tiny_tokenizers import byte_level_tokenizer

JOBS = Workload(WorkloadSpec(), [Job([1, 2], 3), Job([3], 3)])


@pytest.fixture(scope="module")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    directory = tmp_path_factory.mktemp("tiny")
    tokenizer = byte_level_tokenizer()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer) + 7, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def test_all_sides_answer_the_same_requests_and_agree(
    tiny_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "f.json"
    flags = ["--vs", "transformers", "--model", str(tiny_directory), "--device", "cpu", "--dtype", "float32",
             "--num-requests", "4", "--input-len", "5:20", "--output-len", "6", "--pairs", "2", "--num-blocks", "64",
             "--json", str(path)]  # fmt: skip
    assert main(["offline", *flags]) == 0
    sides = json.loads(path.read_text())["sides"]
    assert list(sides) == ["nanolens", "transformers generate", "transformers continuous"]
    assert sides["transformers generate"]["rows_that_agree"] == 4
    assert len(sides["nanolens"]["output_tokens_per_s"]) == 2
    continuous = sides["transformers continuous"]
    assert continuous["failure"] or continuous["rows_that_agree"] == 4
    assert "rows that agree" in capsys.readouterr().out


def test_unequal_output_lengths_are_refused(tiny_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["offline", "--vs", "transformers", "--model", str(tiny_directory), "--device", "cpu",
              "--num-requests", "4", "--output-len", "3:9"])  # fmt: skip
    assert ended.value.code == 2
    assert "give --output-len N" in capsys.readouterr().err


def test_sides_run_in_turn_and_each_round_begins_with_the_next() -> None:
    order: list[str] = []

    def side(name: str) -> Side:
        return Side(name, lambda jobs: order.append(name) or [[7]] * len(jobs))  # type: ignore[func-returns-value]

    compare([side("a"), side("b")], JOBS, 2, print)
    assert order == ["a", "b", "a", "b", "b", "a"]  # the first two settle


def test_a_side_that_fails_is_named_with_its_reason_and_runs_no_more() -> None:
    calls: list[int] = []

    def fails(jobs: list[Job]) -> list[list[int]]:
        calls.append(1)
        raise ValueError("needs a GPU\nand more")

    ours, theirs = Side("ours", lambda jobs: [[1], [2]]), Side("theirs", fails)
    compare([ours, theirs], JOBS, 3, print)
    text = side_table([ours, theirs])
    assert len(calls) == 1 and len(ours.rates) == 3
    assert text.splitlines()[-1] == "theirs: ValueError: needs a GPU"


def test_rows_are_compared_one_by_one() -> None:
    assert rows_that_agree([[1, 2], [3], [4]], [[1, 2], [9], [4]]) == 2
