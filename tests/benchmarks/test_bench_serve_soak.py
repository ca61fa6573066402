"""`nano-bench serve` against a real nano-serve on the tiny model: clients that misbehave leave nothing behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from nanolens.benchmarks.cli import main
from serve import NAME, Server

# Caches of compiled products, one for each number of rows, fill for minutes otherwise and look like growth.
FEW_SHAPES = {"LRU_CACHE_CAPACITY": "16", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16"}
MISBEHAVIOUR = ("--early-close", "0.1", "--bad-requests", "0.05", "--slow-readers", "0.05", "--slow-pause", "0.2")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path, environment=FEW_SHAPES, num_blocks=1024) as running:
        yield running


def bench(server: Server, tmp_path: Path, *flags: str) -> tuple[int, dict]:
    path = tmp_path / "figures.json"
    status = main(["serve", server.url, *flags, "--check", "--json", str(path)])
    return status, json.loads(path.read_text())


def test_misbehaving_clients_leave_nothing_behind(server: Server, tmp_path: Path) -> None:
    status, record = bench(server, tmp_path, "--num-requests", "60", "--max-concurrency", "12", *MISBEHAVIOUR)
    assert [each for each in record["check"] if each["holds"] is False] == []
    assert status == 0
    assert record["model_id"] == NAME
    assert {"whole", "left", "refused"} <= record["outcomes"].keys()
    held = {each["name"] for each in record["check"] if each["holds"]}
    assert {"gauges are back at zero", "no sequence, no block held", "equal prompts, equal texts"} <= held


def test_every_kind_of_bad_request_is_refused(server: Server, tmp_path: Path) -> None:
    status, record = bench(server, tmp_path, "--num-requests", "28", "--bad-requests", "1")
    assert (status, record["outcomes"]) == (0, {"refused": 28})


@pytest.mark.slow
def test_a_soak_of_sixteen_streams(server: Server, tmp_path: Path) -> None:
    flags = ("--duration", "8", "--max-concurrency", "16", "--output-len", "32:96", *MISBEHAVIOUR)
    status, record = bench(server, tmp_path, *flags)
    assert {each["name"]: each["detail"] for each in record["check"] if not each["holds"]} == {}
    assert status == 0
    assert record["completed"] > 20
