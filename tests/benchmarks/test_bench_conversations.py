"""`nano-bench conversations`: what each mode computes, that all answer the same, and its flags, on a dummy model."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from nanolens.benchmarks import conversations
from nanolens.benchmarks.cli import main
from nanolens.benchmarks.talks import MODES, TalkSpec, draw

SPEC = TalkSpec(conversations=8, turns=3, first_len=24, next_len=8, output_len=8, resident=2)
SMALL = ("--model", "dummy:llama-tiny", "--device", "cpu", "--conversations", "8", "--first-len", "24",
         "--next-len", "8", "--output-len", "8", "--resident", "2", "--block-size", "4")  # fmt: skip


def bench(*flags: str) -> int:
    return main(["conversations", *flags])


def run(tmp_path: Path, *flags: str) -> dict[str, Any]:
    path = tmp_path / "figures.json"
    assert bench(*SMALL, *flags, "--json", str(path)) == 0
    record: dict[str, Any] = json.loads(path.read_text())
    return record


def test_the_least_is_every_token_once_but_the_last() -> None:
    assert SPEC.tokens_each == 24 + 2 * 8 + 3 * 8
    assert SPEC.least_computed == 8 * (64 - 1)
    assert (SPEC.blocks_each(4), SPEC.blocks_each(60)) == (16, 2)
    assert (SPEC.prompt_tokens, SPEC.output_tokens) == (8 * 40, 8 * 24)


def test_a_seed_draws_the_same_conversations_and_orders() -> None:
    talks = draw(SPEC, 100)
    assert talks == draw(SPEC, 100) != draw(TalkSpec(8, 3, 24, 8, 8, 2, seed=1), 100)
    assert [[len(said) for said in each] for each in talks.said] == [[24, 8, 8]] * 8
    assert all(0 <= token < 100 for each in talks.said for said in each for token in said)
    assert [sorted(order) for order in talks.orders] == [list(range(8))] * 3
    assert talks.orders[0] != talks.orders[1]


def test_every_mode_answers_the_same_and_pausing_with_a_swap_space_computes_nothing_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = run(tmp_path, "--modes", *MODES, "--runs", "1")
    assert record["same_answers"] and record["differing_conversations"] == {}
    of = {name: runs[0] for name, runs in record["results"].items()}
    least = SPEC.least_computed
    for result in of.values():
        assert result["num_recomputed_tokens"] == result["num_computed_tokens"] - least
    # Each turn sends all again and computes it but for the last token that it samples.
    assert of["no_cache"]["num_computed_tokens"] == 8 * ((24 + 7) + (24 + 16 + 7) + (24 + 32 + 7))
    assert 0 < of["prefix_cache"]["num_recomputed_tokens"] < of["no_cache"]["num_recomputed_tokens"]
    assert of["pause_swap"]["num_recomputed_tokens"] == 0
    assert of["pause_swap"]["num_blocks_out"] >= of["pause_swap"]["num_blocks_in"] > 0
    assert of["pause_recompute"]["num_recomputed_tokens"] > 0
    assert all(result["num_preemptions"] == 0 for result in of.values())
    out = capsys.readouterr().out
    assert all(name in out for name in MODES) and f"beyond the {least:,} that no engine is spared" in out


def test_a_pool_that_holds_all_recomputes_only_the_ends_of_blocks(tmp_path: Path) -> None:
    record = run(tmp_path, "--resident", "8", "--runs", "1")
    of = {name: runs[0] for name, runs in record["results"].items()}
    assert of["pause_swap"]["num_recomputed_tokens"] == of["pause_swap"]["num_blocks_out"] == 0
    # A turn's last block lacks the token that was sampled last: its other three are computed again, twice.
    assert of["prefix_cache"]["num_recomputed_tokens"] == 8 * 2 * 3


def test_modes_run_in_turn_and_every_other_time_backwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran, once = [], conversations.run_once

    def spying(plan: Any, parts: Any, talks: Any, mode: Any) -> Any:
        ran.append(mode.about)
        return once(plan, parts, talks, mode)

    monkeypatch.setattr(conversations, "run_once", spying)
    record = run(tmp_path, "--modes", "prefix_cache", "no_cache", "--runs", "2")
    cached, bare = MODES["prefix_cache"].about, MODES["no_cache"].about
    assert ran == [cached, bare, bare, cached]
    assert all(len(runs) == 2 for runs in record["results"].values())
    assert record["workload"]["requests"] == 24 and {"commit", "cpu", "threads"} <= record["environment"].keys()
    assert (record["config"]["num_blocks"], record["config"]["max_num_seqs"]) == (32, 2)


def test_other_answers_in_float32_end_with_status_1_and_keep_the_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    once, calls = conversations.run_once, itertools.count()

    def changing(plan: Any, parts: Any, talks: Any, mode: Any) -> Any:
        result, answers = once(plan, parts, talks, mode)
        if next(calls) == 1:
            answers[3][0][0] += 1
        return result, answers

    monkeypatch.setattr(conversations, "run_once", changing)
    path = tmp_path / "figures.json"
    assert bench(*SMALL, "--modes", "prefix_cache", "no_cache", "--runs", "1", "--json", str(path)) == 1
    record = json.loads(path.read_text())
    assert not record["same_answers"] and record["differing_conversations"] == {"no_cache": 1}
    assert "no_cache answered 1 of 8 conversations otherwise than prefix_cache" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--turns", "0"), "turns=0: must be at least 1"),
        (("--resident", "0"), "resident=0: must be at least 1"),
        (("--runs", "0"), "runs=0: must be at least 1"),
        (("--modes", "best"), "invalid choice: 'best'"),
        (("--num-blocks", "9"), "unrecognized arguments: --num-blocks"),
        (("--block-size", "0"), "block_size=0: must be a whole number of at least 1"),
        (("--max-model-len", "60", "--modes", "no_cache"), "a conversation takes 64 tokens, and the engine holds 60"),
        (("--json", "no/such/place.json"), "json=no/such/place.json: its directory does not exist"),
    ],
)
def test_bad_flags_end_with_status_2_and_say_why(
    capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        bench(*SMALL, *flags)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
