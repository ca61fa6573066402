"""`nano-bench offline` from its flags to its JSON, on a dummy model."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from nanolens.benchmarks.cli import main
from nanolens.engine.config import EngineConfig

SMALL = ("--model", "dummy:llama-tiny", "--device", "cpu", "--num-requests", "4", "--input-len", "20:40",
         "--output-len", "4:9", "--num-blocks", "64")  # fmt: skip


def bench(*flags: str) -> int:
    return main(["offline", *flags])


def refused(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    """What is said of flags that can't be used; the exit status is 2."""
    with pytest.raises(SystemExit) as ended:
        bench(*flags)
    assert ended.value.code == 2
    return capsys.readouterr().err


def run(tmp_path: Path, *flags: str) -> dict:
    path = tmp_path / "figures.json"
    assert bench(*SMALL, *flags, "--json", str(path)) == 0
    return json.loads(path.read_text())


def test_the_first_line_says_what_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(*SMALL) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == (
        "4 requests, 20 to 40 prompt and 4 to 9 output tokens, seed 0; model dummy:llama-tiny, temperature 0.6"
    )
    for figure in ("output tokens/s", "total tokens/s", "requests/s", "time to first token", "inter-token", "queued",
                   "preemptions", "cached tokens", "steps", "floor"):  # fmt: skip
        assert any(line.startswith(figure) for line in out), figure


def test_the_json_file_holds_figures_settings_and_environment(tmp_path: Path) -> None:
    record = run(tmp_path, "--no-prefix-cache", "--policy", "sjf")
    assert {"what", "workload", "config", "environment", "result", "floor"} <= record.keys()
    assert (record["config"]["prefix_cache"], record["config"]["policy"]) == (False, "sjf")
    assert {"commit", "cpu", "gpu", "threads", "versions", "nanolens", "python"} <= record["environment"].keys()
    work, result = record["result"]["work"], record["result"]
    assert work["num_requests"] == 4
    assert work["num_prompt_tokens"] == record["workload"]["prompt_tokens"]
    assert work["num_output_tokens"] == record["workload"]["output_tokens"]
    assert result["ttft_ms"]["count"] == result["queue_ms"]["count"] == 4
    assert (result["itl_of"], result["itl_ms"]["count"]) == ("tokens", work["num_output_tokens"] - 4)


def test_without_recording_the_intervals_are_each_requests_mean(tmp_path: Path) -> None:
    result = run(tmp_path, "--recording", "off")["result"]
    assert (result["itl_of"], result["itl_ms"]["count"]) == ("requests", 4)


def test_the_same_seed_does_the_same(tmp_path: Path) -> None:
    first, second, other = (run(tmp_path, "--seed", seed)["result"] for seed in ("3", "3", "4"))
    assert first["ids_sha256"] == second["ids_sha256"] != other["ids_sha256"]
    assert first["work"] == second["work"]


def test_a_shared_prefix_and_a_small_pool_show_in_the_counts(tmp_path: Path) -> None:
    shared = run(tmp_path, "--shared-prefix", "0.9", "--max-num-seqs", "1")["result"]["work"]
    assert shared["num_cached_tokens"] > 0
    crowded = run(tmp_path, "--num-blocks", "16", "--block-size", "4", "--output-len", "20", "--input-len", "12")
    assert crowded["result"]["work"]["num_preemptions"] > 0


def test_a_trace_runs(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("ContextTokens,GeneratedTokens\n64,8\n32,4\n99,9\n")
    path = tmp_path / "f.json"
    flags = ("--model", "dummy:llama-tiny", "--device", "cpu", "--num-blocks", "64", "--json", str(path))
    assert bench(*flags, "--trace", str(trace), "--limit", "2", "--scale-lengths", "1/2") == 0
    work = json.loads(path.read_text())["result"]["work"]
    assert (work["num_prompt_tokens"], work["num_output_tokens"]) == (48, 6)


def test_a_pair_does_the_same_work_with_and_without_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = run(tmp_path, "--recording", "pair", "--pairs", "3")
    assert len(record["pairs"]) == 3 and record["same_work"]
    works = [pair[side]["work"] for pair in record["pairs"] for side in ("on", "off")]
    digests = {pair[side]["ids_sha256"] for pair in record["pairs"] for side in ("on", "off")}
    assert all(work == works[0] for work in works) and len(digests) == 1
    assert record["ratio_of_medians"] > 0
    assert "ratio of medians, recording on over off:" in capsys.readouterr().out


def test_a_journal_is_kept_where_asked_for(tmp_path: Path) -> None:
    run(tmp_path, "--journal", str(tmp_path / "journal"))
    assert list((tmp_path / "journal").glob("*.journal"))


def test_every_engine_setting_has_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        bench("--help")
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for field in dataclasses.fields(EngineConfig):
        assert "--" + field.name.replace("_", "-") in text
    assert "--no-prefix-cache" in text and "tokens in a KV block" in text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--bogus",), "unrecognized arguments: --bogus"),
        (("--block-size", "many"), "argument --block-size: invalid int value: 'many'"),
        (("--block-size", "0"), "block_size=0: must be a whole number of at least 1"),
        (("--policy", "best"), "argument --policy: invalid choice"),
        (("--input-len", "9:3"), "'9:3': must be MIN:MAX with 1 <= MIN <= MAX"),
        (("--input-len", "a:b"), "'a:b': must be MIN:MAX or N"),
        (("--scale-lengths", "1/0"), "'1/0': must be a number, or a fraction"),
        (("--num-requests", "0"), "num_requests=0: must be at least 1"),
        (("--shared-prefix", "2"), "shared_prefix=2.0: must be from 0 to 1"),
        (("--temperature", "-1"), "temperature=-1.0: must be at least 0"),
        (("--limit", "3"), "--limit counts rows of a trace"),
        (("--trace", "x.csv", "--num-requests", "3"), "--num-requests draws requests; --limit cuts a trace"),
        (("--trace", "nothing-here.csv"), "nothing-here.csv: can't be read"),
        (("--pairs", "3"), "--pairs counts runs of a comparison"),
        (("--recording", "pair", "--pairs", "0"), "pairs=0: must be at least 1"),
        (("--recording", "pair", "--vs", "transformers"), "are two comparisons"),
        (("--recording", "pair", "--journal", "j"), "--journal is chosen by --recording pair"),
        (("--recording", "off", "--journal", "j"), "journal='j' with recording=False"),
        (("--vs", "transformers", "--temperature", "1"), "--temperature must be 0 with --vs"),
        (("--vs", "transformers"), "needs files, not dummy:llama-tiny"),
        (("--model", "dummy:nothing"), "'dummy:nothing' is no dummy model; there are dummy:"),
        (("--num-blocks", "2"), "request 0 of the workload takes"),
        (("--json", "no/such/place.json"), "json=no/such/place.json: its directory does not exist"),
    ],
)
def test_bad_flags_end_with_status_2_and_say_why(
    capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], message: str
) -> None:
    assert message in refused(capsys, "--model", "dummy:llama-tiny", "--device", "cpu", *flags)
