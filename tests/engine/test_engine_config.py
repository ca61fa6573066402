"""Every engine setting is checked for type and range, by name, value and what is allowed."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nanolens.benchmarks.cli import main as nano_bench
from nanolens.engine.config import EngineConfig
from nanolens.engine.runner.load import load, pick_device
from nanolens.errors import InvalidConfig
from real_engine import TINY, tiny_parts

COUNTS = ["block_size", "num_blocks", "max_num_seqs", "max_num_batched_tokens", "max_prefill_chunk", "max_model_len"]
SWITCHES = ["prefix_cache", "overlap", "recording", "journal_content", "audit", "enforce_eager"]
CHOICES = ["dtype", "batching", "policy", "attention"]
HUGE = 10**5000  # has no text in Python
NONSENSE: list[Any] = ["", "x", "\ud800", "a\0b", b"x", -1, 0.5, math.nan, math.inf, 10**30, HUGE, [], {}, object()]


class Text(str):
    """A text that msgspec does not encode as it is."""


class Whole(int):
    """A whole number that msgspec does not encode as it is."""


def refused(name: str, value: object) -> str:
    with pytest.raises(InvalidConfig) as caught:
        EngineConfig(**{name: value})  # type: ignore[arg-type]
    message = str(caught.value)
    assert message.startswith(f"{name}=")
    assert ": must " in message
    assert len(message) < 400
    message.encode()
    return message


@pytest.mark.parametrize("value", [*NONSENSE, None, True, False, 1], ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(EngineConfig)])
def test_any_value_is_taken_or_refused_in_words(name: str, value: object) -> None:
    partner = {"swap_path": {"disk_blocks": 1}, "disk_blocks": {"swap_path": "swap"}}.get(name, {})
    try:
        config = EngineConfig(**({name: value} | partner))  # type: ignore[arg-type]
    except InvalidConfig as error:
        assert str(error).startswith(f"{name}=")
    else:
        msgspec.msgpack.encode(config.as_record())


@pytest.mark.parametrize("value", [0, 1, "yes", [], 1.0])
@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_is_a_bool(name: str, value: object) -> None:
    assert "must be True" in refused(name, value)


def test_only_overlap_may_be_none() -> None:
    assert EngineConfig(overlap=None).overlap is None
    for name in set(SWITCHES) - {"overlap"}:
        refused(name, None)


@pytest.mark.parametrize(
    "value", [0, -1, True, 1.0, "1", math.nan, 2**31, HUGE], ids=lambda value: type(value).__name__
)
@pytest.mark.parametrize("name", COUNTS)
def test_a_count_is_a_whole_number_from_1(name: str, value: object) -> None:
    assert "whole number of at least 1 and at most " in refused(name, value)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        *((name, 1, 1 << 20 if name == "max_num_seqs" else 2**31 - 1) for name in COUNTS),
        ("journal_cap", 1 << 16, 2**63 - 1),
        ("seed", -(2**63), 2**63 - 1),
    ],
)
def test_the_bounds_themselves_are_allowed(name: str, least: int, most: int) -> None:
    for value in (least, most):
        assert getattr(EngineConfig(**{name: value}), name) == value  # type: ignore[arg-type]
    for value in (least - 1, most + 1):
        refused(name, value)


@pytest.mark.parametrize("value", [True, False, math.nan, math.inf, 0, 0.0, -0.5, 1.01, "0.5", None, 10**400, [0.5]])
def test_the_share_of_memory_is_a_number_above_0_and_at_most_1(value: object) -> None:
    refused("gpu_memory_utilization", value)


@pytest.mark.parametrize("value", [1, Fraction(1, 2), 0.25])
def test_the_share_of_memory_becomes_a_float(value: Any) -> None:
    kept = EngineConfig(gpu_memory_utilization=value).gpu_memory_utilization
    assert type(kept) is float
    assert kept == value


@pytest.mark.parametrize("value", [True, math.nan, math.inf, 0, -1.0, 1_000_001, "60", None])
def test_the_patience_with_ranks_is_a_number_of_seconds(value: object) -> None:
    refused("rank_timeout_s", value)
    assert EngineConfig(rank_timeout_s=90).rank_timeout_s == 90.0


@pytest.mark.parametrize("value", ["", "x" * 4097, "a\0b", "a\ud800", None, 5, b"smollm2", Path("m")])
def test_a_model_is_a_text_that_can_name_a_file(value: object) -> None:
    refused("model", value)


@pytest.mark.parametrize("value", ["", "x" * 4097, "a\0b", "a\udcff", 5, b"run1", True])
def test_a_journal_is_a_path_that_can_be_written_down(value: object) -> None:
    refused("journal", value)


def test_a_journal_given_as_a_path_object_becomes_text() -> None:
    assert EngineConfig(journal=Path("runs", "one")).journal == str(Path("runs", "one"))  # type: ignore[arg-type]


def test_a_swap_file_needs_its_path_and_its_size() -> None:
    assert EngineConfig(swap_path=Path("swap"), disk_blocks=1).swap_path == "swap"  # type: ignore[arg-type]
    for options in ({"swap_path": "swap"}, {"disk_blocks": 1}, {"swap_path": "swap", "disk_blocks": 0}):
        with pytest.raises(InvalidConfig, match=r"swap_path=.*disk_blocks=.*needs both"):
            EngineConfig(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_names_what_there_is(name: str) -> None:
    for value in ("x", None, [], 1):
        assert "must be one of " in refused(name, value)


@pytest.mark.parametrize("value", ["mps", "meta", "x", "", "cuda:", "cuda:-1", "cuda:1000", "CPU", "cpu:0", None, 0])
def test_a_device_that_the_engine_does_not_run_on(value: Any) -> None:
    assert "must be auto, cpu, cuda, or cuda:N" in refused("device", value)
    with pytest.raises(InvalidConfig, match="must be auto, cpu, cuda, or cuda:N"):
        pick_device(value, True)


def test_a_device_that_the_engine_runs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert [pick_device(EngineConfig(device=name).device, True) for name in ("auto", "cpu", "cuda", "cuda:1")] == [
        "cuda", "cpu", "cuda", "cuda:1"]  # fmt: skip
    with pytest.raises(InvalidConfig, match=r"device='cuda:2': torch sees 2 GPUs"):
        pick_device("cuda:2", True)
    with pytest.raises(InvalidConfig, match="torch sees no GPU"):
        pick_device("cuda", False)


def test_tables_that_do_not_fit_into_memory_are_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise MemoryError("Unable to allocate 512. GiB")

    monkeypatch.setattr("nanolens.engine.runner.load.ModelRunner", full)
    with pytest.raises(InvalidConfig, match=r"max_num_seqs=1048576: the tables .*512\. GiB"):
        load(EngineConfig(model=TINY, max_num_seqs=1 << 20), tiny_parts())


def test_values_are_kept_in_plain_types() -> None:
    config = EngineConfig(
        model=Text("m"),
        device=Text("cpu"),
        journal=Text("j"),
        policy=Text("sjf"),
        seed=Whole(3),
        block_size=Whole(8),  # type: ignore[arg-type]
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(config.as_record())) == config.as_record()


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--device", "mps"], "device='mps': must be"),
        (["--device", "meta"], "device='meta': must be"),
        (["--journal", ""], "journal='': must be"),
        (["--model", ""], "model='': must be"),
        (["--block-size", "0"], "block_size=0: must be"),
        (["--num-blocks", str(2**31)], f"num_blocks={2**31}: must be"),
        (["--max-model-len", str(10**30)], "max_model_len=1"),
        (["--journal-cap", str(2**63)], f"journal_cap={2**63}: must be"),
        (["--gpu-memory-utilization", "nan"], "gpu_memory_utilization=nan: must be"),
        (["--seed", str(2**70)], f"seed={2**70}: must be"),
    ],
)
def test_nano_bench_ends_with_2_and_the_message(
    flags: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        nano_bench(["offline", *flags])
    assert caught.value.code == 2
    assert named in capsys.readouterr().err


def test_a_driver_whose_gpu_torch_does_not_see_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driver = tmp_path / "version"
    monkeypatch.setattr("nanolens.engine.runner.load.NVIDIA_DRIVER", str(driver))
    assert pick_device("auto", False) == "cpu" and not caplog.records
    driver.write_text("535.0")
    assert pick_device("auto", False) == "cpu"
    assert "driver may be too old" in caplog.text
    caplog.clear()
    assert pick_device("auto", True) == "cuda" and not caplog.records
