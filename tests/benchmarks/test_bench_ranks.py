"""Models split over ranks in benchmarks: the floor of a part, figures from `step.ranks`, and a run from its flags."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from nanolens.benchmarks import floor as floors
from nanolens.benchmarks.cli import main
from nanolens.benchmarks.floor import exchanged_bytes, head_weights, layer_weights, workload_floor
from nanolens.benchmarks.ranks import RankFigures
from nanolens.benchmarks.scaling import main as compare
from nanolens.benchmarks.workload import Job
from nanolens.engine.engine import Engine
from nanolens.models import load_config
from nanolens.models.parallel import Shard
from nanolens.telemetry.events import StepPlanned, StepRanks

SMALL = ("offline", "--model", "dummy:llama-tiny", "--device", "cpu", "--num-requests", "4", "--input-len", "20:40",
         "--output-len", "4:9", "--num-blocks", "64")  # fmt: skip
JOBS = [Job([1] * 50, 40), Job([2] * 30, 20)]


@pytest.fixture
def known_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that reads 1e9 bytes, multiplies 1e12 times and sends 1e6 bytes a second."""
    monkeypatch.setattr(floors, "read_bandwidth", lambda device: 1e9)
    monkeypatch.setattr(floors, "matmul_rate", lambda dtype, device: 1e12)
    monkeypatch.setattr(floors, "link_rate", lambda device: 1e6)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_parts_of_a_model_add_up(size: int) -> None:
    shape = load_config("dummy:qwen3-8b")
    parts = [Shard(rank, size).config(shape) for rank in range(size)]
    assert sum(map(layer_weights, parts)) == layer_weights(shape)
    assert size * head_weights(shape, size) == head_weights(shape)


@pytest.mark.usefixtures("known_machine")
def test_two_ranks_need_half_the_time_where_all_divides() -> None:
    shape, cpu = load_config("dummy:qwen3-0.6b"), torch.device("cpu")
    one, two = (workload_floor(JOBS, 0, shape, torch.bfloat16, cpu, size) for size in (1, 2))
    assert (one.tensor_parallel_size, one.exchange_bytes, one.exchange_seconds) == (1, 0, 0.0)
    assert two.decode_bytes * 2 == one.decode_bytes
    assert two.flops * 2 == one.flops
    assert two.exchange_seconds == two.exchange_bytes / 1e6
    assert two.seconds == max(one.seconds / 2, two.exchange_seconds)


@pytest.mark.usefixtures("known_machine")
def test_keys_and_values_that_ranks_share_are_read_by_each() -> None:
    shape, cpu = load_config("dummy:llama-tiny"), torch.device("cpu")
    two, four = (workload_floor(JOBS, 0, shape, torch.float32, cpu, size) for size in (2, 4))
    assert four.decode_bytes > two.decode_bytes / 2  # 2 KV heads: four ranks hold one each


def test_what_ranks_exchange() -> None:
    shape = load_config("dummy:llama-tiny")
    computed, sampled = 80 + 39 + 19, 60
    assert exchanged_bytes(JOBS, 0, shape, 4, 1) == 0
    assert exchanged_bytes(JOBS, 0, shape, 4, 2) == 4 * 5 * 64 * computed + 12 * sampled
    assert exchanged_bytes(JOBS, 0, shape, 4, 4) == 3 * (2 * 5 * 64 * computed + 12 * sampled)
    assert exchanged_bytes(JOBS, 30, shape, 4, 2) == 4 * 5 * 64 * (computed - 30) + 12 * sampled


def planned(step: int, kind: str) -> StepPlanned:
    return StepPlanned(0, step, kind, [], 0, [], 0, 0, 0)


def test_shares_of_collectives_and_skew() -> None:
    figures = RankFigures.of(
        [
            planned(1, "prefill"), StepRanks(1, [8_000, 10_000], [4_000, 2_000]),
            planned(2, "decode"), StepRanks(2, [6_000, 6_000], [1_000, 2_000]),
        ]
    )  # fmt: skip
    assert figures is not None
    assert (figures.num_steps, figures.device_s) == (2, 16e-6)
    assert figures.collective_share == 9 / 30
    assert figures.exchange_share == 2 * 3 / 30
    assert (figures.decode.device_us.p50, figures.decode.collective_us.p50, figures.decode.skew_us.p50) == (6, 1.5, 1)
    assert figures.all.skew_us.max == 4


def test_skew_is_lateness_where_that_is_known() -> None:
    figures = RankFigures.of([planned(1, "decode"), StepRanks(1, [6_000, 6_000], [1_000, 2_000], [0, 3_000])])
    assert figures is not None and figures.decode.skew_us.p50 == 3


def test_one_rank_has_no_figures() -> None:
    assert RankFigures.of([planned(1, "decode")]) is None


def test_a_run_on_two_ranks_says_what_they_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for size in ("1", "2"):
        path = tmp_path / f"{size}.json"
        assert main([*SMALL, "--tensor-parallel-size", size, "--temperature", "0", "--json", str(path)]) == 0
        found.append(json.loads(path.read_text()))
    out = capsys.readouterr().out
    for figure in (
        "model dummy:llama-tiny on 2 ranks",
        "exchange ",
        "in collectives ",
        "decode step us ",
        "device busy ",
    ):
        assert figure in out
    one, two = (record["result"] for record in found)
    assert one["ids_sha256"] == two["ids_sha256"]
    assert one["ranks"] is None and two["ranks"]["num_steps"] >= two["work"]["num_steps"] - 1
    assert 0 < two["ranks"]["collective_share"] < 1
    assert compare([str(tmp_path / "1.json"), str(tmp_path / "2.json"), str(tmp_path / "none.json")]) == 0
    told = capsys.readouterr()
    assert [line.split()[:3] for line in told.out.splitlines()[1:]] == [
        ["dummy:llama-tiny", "1", "1"], ["dummy:llama-tiny", "2", "1"],
    ]  # fmt: skip
    assert "none.json: not a run" in told.err


@pytest.mark.usefixtures("known_machine")
def test_the_machine_is_measured_while_the_engine_has_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    close = Engine.close

    def closing(engine: Engine) -> None:
        told.append("closed")
        close(engine)

    monkeypatch.setattr(floors, "read_bandwidth", lambda device: told.append("measured") or 1e9)
    monkeypatch.setattr(Engine, "close", closing)
    assert main([*SMALL]) == 0
    assert told == ["measured", "closed"]


def test_comparisons_take_one_rank(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*SMALL, "--tensor-parallel-size", "2", "--recording", "pair"])
    assert "tensor_parallel_size=2: must be 1 in comparisons" in capsys.readouterr().err
