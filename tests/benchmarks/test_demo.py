"""The demo on a dummy model: all answers, a preemption, the lives in its journal, the commands."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from nanolens.benchmarks import demo
from nanolens.benchmarks.demo_screen import Answer, LiveScreen, Screen, make_screen
from nanolens.benchmarks.life_table import life_table, read_lives
from nanolens.engine.outputs import CompletionOutput, Delta, RequestOutput


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run_demo(journal: Path, out: io.StringIO) -> str:
    assert demo.main(["--model", "dummy:llama-tiny", "--max-tokens", "24", "--journal", str(journal)], out) == 0
    return out.getvalue()


def ended(reason: str) -> RequestOutput:
    return RequestOutput("a", None, [1], [CompletionOutput(0, "", [], reason)], True)


def test_it_answers_every_question_and_tells_their_lives(tmp_path: Path) -> None:
    text = run_demo(tmp_path, io.StringIO())
    for question in demo.QUESTIONS:
        assert question in text
    assert "first token: " in text and "after the start" in text
    lives = read_lives(tmp_path)
    assert len(lives) == 8 and all(life.ended for life in lives)
    assert life_table(lives) in text
    for command in ("nano-trace tail", "nano-trace check", "nano-bench offline", "from nanolens import LLM"):
        assert command in text


def test_its_pool_forces_a_preemption_and_its_prompts_share_a_prefix(tmp_path: Path) -> None:
    text = run_demo(tmp_path, io.StringIO())
    lives = read_lives(tmp_path)
    assert sum(life.num_preemptions for life in lives) > 0 and "preemption(s)" in text
    assert lives[0].num_cached_tokens == 0
    assert all(life.num_cached_tokens >= demo.BLOCK_SIZE for life in lives[1:])
    assert any(life.preempted_ns for life in lives)


def test_on_a_terminal_the_answers_grow_in_place(tmp_path: Path) -> None:
    text = run_demo(tmp_path, Terminal())
    assert "\x1b[" in text  # the cursor moves
    assert "Why is the sea salty?" in text


def test_no_terminal_gets_each_answer_once() -> None:
    out, answers = io.StringIO(), [Answer("One?"), Answer("Two?")]
    screen = make_screen(answers, out)
    answers[1].take(Delta(0, "Two,\n indeed", [5]))
    screen.show(1.5)
    answers[1].finish(ended("length"))
    screen.show(2.0)
    screen.show(2.5)
    assert type(screen) is Screen and screen.first_token_s == 1.5
    assert out.getvalue() == "[2] Two?\n    Two, indeed ...\n"
    assert type(make_screen(answers, Terminal())) is LiveScreen


def test_an_unknown_model_is_an_error_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["--model", "dummy:nothing", "--journal", str(tmp_path)], io.StringIO()) == 1
    assert "demo: 'dummy:nothing' is no dummy model" in capsys.readouterr().err


def test_the_journal_of_an_earlier_demo_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    journal = demo.prepare_journal(None)
    assert journal == tmp_path / "nanolens" / "journals" / "demo"
    (journal / "old-1.journal").write_text("x")
    (journal / "note.txt").write_text("mine")
    assert demo.prepare_journal(None) == journal
    assert [path.name for path in journal.iterdir()] == ["note.txt"]


def test_an_unwritable_cache_sends_the_journal_to_a_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert demo.prepare_journal(None).parent == tmp_path


@pytest.mark.parametrize(("lengths", "common", "most"), [([64, 70, 80], 40, 48), ([20], 0, 48), ([16] * 8, 16, 16)])
def test_the_pool_holds_all_prompts_and_any_sequence_alone(lengths: list[int], common: int, most: int) -> None:
    blocks = demo.small_pool(lengths, common, most)
    shared = common // 16
    assert blocks >= shared + sum(-(-length // 16) - shared for length in lengths)
    assert blocks * 16 >= max(lengths) + most


def test_the_common_beginning_is_counted() -> None:
    assert demo.common_length([[1, 2, 3], [1, 2, 4], [1, 2, 3, 5]]) == 2
    assert demo.common_length([[1, 2], [1, 2, 3]]) == 2


def test_the_process_has_been_running_for_a_while() -> None:
    assert 0 < demo.since_start() <= demo.since_start()
