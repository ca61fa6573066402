"""nano-inspect in a real terminal, under tmux: keys go in, and what the terminal shows comes out."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from screens import record

PATIENCE_S = 20.0
BEFORE = "what stood here before"
MODES = "#{alternate_on} #{mouse_any_flag} #{cursor_flag} #{bracket_paste_flag}"


class Terminal:
    """A tmux server of its own, with one terminal, in which a shell runs one command.

    Args:
        tmux: the program.
        folder: for its files.
        arguments: of nano-inspect.
        size: of the terminal.
        job_control: whether the command is typed into an interactive shell, whose prompt is "$".
    """

    def __init__(
        self, tmux: str, folder: Path, arguments: list[str], size: tuple[int, int], job_control: bool
    ) -> None:
        self._tmux = [tmux, "-L", f"nanolens-{uuid.uuid4().hex[:12]}", "-f", "/dev/null"]
        command = shlex.join([sys.executable, "-P", "-m", "nanolens.inspector.inspect_cli", *arguments])
        self._before, self._after = folder / "before", folder / "after"
        script = folder / "script"
        script.write_text(
            f"unset COLUMNS LINES\necho '{BEFORE}'\nstty -g >{shlex.quote(str(self._before))}\n{command}\ncode=$?\n"
            f'stty -g >{shlex.quote(str(self._after))}\necho "exit code $code"\nexec cat\n'
        )
        if job_control:
            self._do("new-session", "-d", "-x", str(size[0]), "-y", str(size[1]),
                     f"env -u COLUMNS -u LINES PS1='$ ' {shutil.which('bash')} --norc --noprofile -i")  # fmt: skip
            self.until(r"\$")
            self.type(f"echo '{BEFORE}'; {command}")
            self.press("Enter")
            return
        self._do("new-session", "-d", "-x", str(size[0]), "-y", str(size[1]), f"sh {shlex.quote(str(script))}")

    def _do(self, *words: str) -> str:
        done = subprocess.run([*self._tmux, *words], capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def press(self, *keys: str) -> None:
        """Keys by tmux's names of them."""
        self._do("send-keys", *keys)

    def type(self, text: str) -> None:
        """Text as it is."""
        self._do("send-keys", "-l", text)

    def screen(self) -> str:
        """What is shown."""
        return self._do("capture-pane", "-p")

    def until(self, *shown: str) -> str:
        """Wait until all of these patterns are on the screen; gives it."""
        deadline = time.monotonic() + PATIENCE_S
        while not all(re.search(pattern, text := self.screen()) for pattern in shown):
            assert time.monotonic() < deadline, f"never all of {shown}:\n{self.screen()}"
            time.sleep(0.05)
        return text

    def assert_restored(self) -> None:
        """The terminal is as it was before the command, which ended with 0."""
        text = self.until(r"exit code \d+")
        assert text.splitlines()[:2] == [BEFORE, "exit code 0"], text
        assert self.modes()[:3] == ["0", "0", "1"]
        assert self._after.read_text() == self._before.read_text()

    def modes(self) -> list[str]:
        """MODES now."""
        return self._do("display-message", "-p", MODES).split()

    def close(self) -> None:
        subprocess.run([*self._tmux, "kill-server"], capture_output=True, timeout=30)


@pytest.fixture
def open_terminal(require: Callable[[str], str], tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    tmux = require("tmux")
    opened: list[Terminal] = []

    def build(arguments: list[str], size: tuple[int, int] = (120, 40), job_control: bool = False) -> Terminal:
        opened.append(Terminal(tmux, tmp_path, arguments, size, job_control))
        return opened[-1]

    yield build
    for terminal in opened:
        terminal.close()


@pytest.mark.parametrize("size", [(80, 24), (160, 50)])
def test_a_journal_is_filtered_drilled_into_frozen_and_stepped_back(
    open_terminal: Callable[..., Terminal], tmp_path: Path, size: tuple[int, int]
) -> None:
    journal = tmp_path / "journal"
    record(journal)
    terminal = open_terminal([str(journal)], size)
    terminal.until(r"1 Sequences", r"37 live sequences", r"step 260\b", r"q quit")

    terminal.press("/")
    terminal.until(r"(?m)^ / *$")
    terminal.type("state:waiting blocks>5 request:agent")
    terminal.press("Enter")
    shown = terminal.until(r"\b1 shown", r"agent-16 +WAITING")
    assert "RUNNING" not in shown and "PAUSED" not in shown

    terminal.press("Enter")
    terminal.until(r"seq 36 of agent-16", r"10 blocks of 16 tokens, 6 shared", r"its time +\S")

    terminal.press("Space")
    terminal.until(r"FROZEN", r"g live")
    terminal.press("[")
    terminal.until(r"FROZEN", r"step 259\b")
    terminal.type("30[")
    terminal.until(r"step 229 of 260", r"preempt")
    terminal.type("{")  # to the preemption itself, which is that of the sequence on the screen
    terminal.until(r"step 22\d of 260")
    terminal.press("g")
    terminal.until(r"step 260\b")

    terminal.press("Escape")
    terminal.until(r"1 shown")
    terminal.press("q")
    terminal.assert_restored()


def test_the_demo_is_seen_live_frozen_and_left(open_terminal: Callable[..., Terminal]) -> None:
    terminal = open_terminal(["--demo"])
    terminal.until(r"LIVE", r"\d+ live sequences", r"RUNNING", r"step \d+")
    terminal.press("3")
    terminal.until(r"by owner", r"block \d+")
    terminal.press("Space")
    frozen = re.search(r"step ([\d,]+)", terminal.until(r"FROZEN"))
    assert frozen is not None
    terminal.until(rf"step {frozen[1]} of [\d,]+")  # the engine goes on
    terminal.press("[")
    terminal.until(rf"step {int(frozen[1].replace(',', '')) - 1:,} of")
    terminal.press("g")
    terminal.until(r"LIVE")
    terminal.press("q")
    terminal.assert_restored()


def test_what_is_no_journal_is_said_in_a_line_and_leaves_the_terminal_alone(
    open_terminal: Callable[..., Terminal], tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    terminal = open_terminal([str(tmp_path / "empty")])
    text = terminal.until(r"exit code 1")
    assert text.splitlines()[0] == BEFORE and "nano-inspect: " in text


def test_ctrl_z_gives_the_terminal_back_and_fg_shows_the_screen_again(
    open_terminal: Callable[..., Terminal], tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    record(journal)
    terminal = open_terminal([str(journal)], job_control=True)
    terminal.until(r"37 live sequences", r"q quit")
    terminal.press("C-z")
    text = terminal.until(r"(?i)stopped|suspended")
    assert BEFORE in text and "live sequences" not in text
    assert terminal.modes()[:3] == ["0", "0", "1"]
    terminal.press("fg", "Enter")
    terminal.until(r"37 live sequences", r"q quit")
    terminal.press("5")
    terminal.until(r"interval")
    terminal.press("q")
    terminal.until(r"(?m)^\$ *$")
    assert terminal.modes()[:3] == ["0", "0", "1"]
