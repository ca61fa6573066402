"""The rules that an investigation's Prometheus has are the project's own, faster; and the panels it asks for exist."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from nanolens.benchmarks.investigate import PANELS, VARIABLES, faster, main, panel_queries, write_config


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("for: 5m", "for: 10s"),
        ("rate(x_total[1h] offset 6h) > 0.5", "rate(x_total[120s] offset 720s) > 0.5"),
        ("for: 30s", "for: 5s"),  # no shorter than five scrapes
        ('ratio_rate5m > 30 and x{le="1.0"}', 'ratio_rate5m > 30 and x{le="1.0"}'),  # names and bounds stay
    ],
)
def test_times_in_rules_get_shorter_and_nothing_else_does(rule: str, expected: str) -> None:
    assert faster(rule) == expected


def test_prometheus_takes_the_configuration(require: Callable[[str], str], tmp_path: Path) -> None:
    path = write_config(tmp_path, "127.0.0.1:9400")
    done = subprocess.run([require("promtool"), "check", "config", path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "2 rule files found" in done.stdout, done.stdout + done.stderr
    assert json.loads(path.read_text())["scrape_configs"][0]["static_configs"][0]["targets"] == ["127.0.0.1:9400"]


@pytest.mark.parametrize(("board", "title"), PANELS)
def test_the_panels_exist_and_ask_with_known_variables(board: str, title: str) -> None:
    variables = {name for _, query in panel_queries(board, title) for name in re.findall(r"\$(\w+)", query)}
    assert variables and variables <= set(VARIABLES)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "trace.csv: can't be read"),
        ("", "it holds no times"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,3,4\n", "noon"),
        ('{"turns": ["hello"]}\n', "it holds no times"),
        ("TIMESTAMP,Tokens\n2023-11-16 18:15:46.68,374\n", "ContextTokens"),
    ],
)
def test_a_trace_that_cannot_be_served_is_said_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, said: str
) -> None:
    trace = tmp_path / "trace.csv"
    if content is not None:
        trace.write_text(content, encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path / "journal"), "--trace", str(trace), "--num-blocks", "16"])
    assert ended.value.code == 2 and said in capsys.readouterr().err.splitlines()[-1]
