"""`nano-bench kernels` on a CPU: every kernel has its line, and the figures follow from each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from nanolens.benchmarks import kernels
from nanolens.benchmarks.cli import main
from nanolens.benchmarks.kernel_shapes import Case
from nanolens.benchmarks.kernels import Figure, figure_table, time_case

KERNELS = {
    "rms_norm", "add_rms_norm", "silu_and_mul", "split_norm_rope_store", "store_kv", "norm_linear", "linear_add",
    "norm_gated_linear", "skinny_linear", "a layer's products", "decode attention", "prefill attention",
    "sampling, plain", "sampling, top-k 50, top-p 0.9", "sampling, greedy", "fill_decode_inputs",
}  # fmt: skip


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's limits take a second to measure, and no test needs the real ones."""
    monkeypatch.setattr(kernels, "_limits", lambda device, dtype: (1e9, 1e9))


def test_every_kernel_has_a_line_and_its_figures_in_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kernels.json"
    assert main(["kernels", "--quick", "--device", "cpu", "--json", str(path)]) == 0
    record, out = json.loads(path.read_text()), capsys.readouterr().out
    assert {figure["name"] for figure in record["figures"]} == KERNELS
    assert all(any(line.startswith(name) for line in out.splitlines()) for name in KERNELS)
    assert (record["what"], record["device"], record["dtype"]) == ("kernels", "cpu", "float32")
    for figure in record["figures"]:
        needed = max(figure["num_bytes"], figure["flops"]) / 1e9
        assert figure["share"] == pytest.approx(needed / (figure["microseconds"] * 1e-6))
        assert figure["limited_by"] == ("reads" if figure["num_bytes"] >= figure["flops"] else "products")


def test_each_set_of_inputs_has_its_turn() -> None:
    turns: list[int] = []
    case = Case("a", "b", [lambda: turns.append(0), lambda: turns.append(1)], num_bytes=8)
    figure = time_case(case, torch.device("cpu"), (1.0, 1.0), replays=5)
    assert turns[:4] == [0, 1, 0, 1] and len(turns) == 12
    assert figure.reference_us is None and figure.flash_us is None


def test_the_table_tells_how_many_times_faster_than_the_others_a_kernel_is() -> None:
    figure = Figure("a", "1 x 2", 10.0, 2_000_000, 0, 0.5, "reads", reference_us=45.0, flash_us=None)
    head, line = figure_table([figure]).splitlines()
    assert line.split() == ["a", "1", "x", "2", "10.00", "2.00", "-", "50.0%", "reads", "45.0", "4.50", "-", "-"]
    assert head.split()[:3] == ["kernel", "shape", "us"]


def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["kernels", "--json", "no/such/place.json"])
    assert ended.value.code == 2
    assert "json=no/such/place.json: its directory does not exist" in capsys.readouterr().err
