"""What serving costs: where a token's delay is read off, and one comparison from its flags to its figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nanolens.benchmarks.cli import main
from nanolens.benchmarks.serve_delay import Spelling, delays, token_times
from nanolens.benchmarks.serve_load import Answer
from nanolens.benchmarks.serve_process import ServerProcess
from nanolens.benchmarks.serve_requests import COMPLETIONS, Ask
from nanolens.engine.llm import LLM
from nanolens.engine.sampling_params import SamplingParams
from nanolens.errors import EngineDead

MS = 1_000_000
TINY = ("--model", "dummy:llama-tiny", "--device", "cpu", "--num-blocks", "64")


def answer(pieces: list[str], times_ms: list[int]) -> Answer:
    ask = Ask(0, 0.0, COMPLETIONS, b"", 0, 4)
    times = [at * MS for at in times_ms]
    return Answer(ask, "sent", 0, times[-1], 200, times, times[-1], pieces, "length", 3, 4, "", "", frozenset({"r"}))


def test_a_piece_is_late_by_the_time_since_its_last_token() -> None:
    known = [Spelling("abcd", [1, 2, 3, 4])]
    found = delays([answer(["a", "bc", "d"], [12, 33, 41])], known, {"r": [10 * MS, 20 * MS, 30 * MS, 40 * MS]})
    assert (found.added_ms, found.num_compared, found.num_others) == ([2.0, 3.0, 1.0], 1, 0)


def test_text_that_was_held_back_is_its_last_tokens() -> None:
    known = [Spelling("aé!", [1, 1, 2, 3])]  # the second token is half a character
    found = delays([answer(["a", "é", "!"], [11, 31, 42])], known, {"r": [10 * MS, 20 * MS, 30 * MS, 40 * MS]})
    assert found.added_ms == [1.0, 1.0, 2.0]


def test_answers_with_another_text_or_without_a_journal_are_left_out() -> None:
    other = delays([answer(["x"], [11])], [Spelling("a", [1])], {"r": [10 * MS]})
    unknown = delays([answer(["a"], [11])], [Spelling("a", [1])], {"q": [10 * MS]})
    assert [(found.added_ms, found.num_others) for found in (other, unknown)] == [([], 1), ([], 1)]


def test_the_journal_has_the_time_of_each_token(tmp_path: Path) -> None:
    with LLM("dummy:llama-tiny", device="cpu", num_blocks=32, journal=str(tmp_path)) as llm:
        (output,) = llm.generate([[1, 2, 3]], SamplingParams(max_tokens=5, ignore_eos=True), use_tqdm=False)
    (times,) = token_times(tmp_path).values()
    assert len(times) == 5 and times == sorted(times)
    assert output.metrics is not None
    assert (times[0], times[-1]) == (output.metrics.first_token_t, output.metrics.last_token_t)


def test_a_server_that_can_not_start_says_why() -> None:
    with pytest.raises(EngineDead, match=r"(?s)did not start.*'dummy:nothing' is no dummy model"):
        ServerProcess("dummy:nothing", {})


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--rounds", "0"), "rounds=0: must be at least 1"),
        (("--streams", "0"), "streams=0: must be at least 1"),
        (("--block-size", "0"), "block_size=0"),
        (("--json", "no/such/place.json"), "its directory does not exist"),
    ],
)
def test_bad_flags_end_with_status_2(capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], message: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serving-cost", *TINY, *flags])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_both_sides_do_the_same_and_the_ratio_is_theirs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "figures.json"
    lengths = ("--num-requests", "4", "--input-len", "5:9", "--output-len", "6:9")
    assert main(["serving-cost", *TINY, *lengths, "--rounds", "2", "--streams", "2", "--json", str(path)]) == 0
    record = json.loads(path.read_text())
    assert len(record["rounds"]) == 2 and record["other_answers"] == 0
    assert record["ratio_of_medians"] > 0
    assert record["added_ms"]["count"] > 0 and record["added_ms"]["p50"] > 0
    assert "ratio of medians, server over LLM.generate" in capsys.readouterr().out
