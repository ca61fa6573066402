"""How the demo shows answers: in place on a terminal, one by one as they end elsewhere. Knows no engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from ..engine.outputs import Delta, RequestOutput

SHOW_EVERY_S = 0.05


@dataclass
class Answer:
    """A question and what has come of its answer."""

    question: str
    text: str = ""
    finish_reason: str | None = None

    def take(self, delta: Delta) -> None:
        """Add a piece."""
        self.text += delta.text

    def finish(self, output: RequestOutput) -> None:
        """Note the end."""
        self.finish_reason = output.outputs[0].finish_reason

    @property
    def failed(self) -> bool:
        """Whether it ended in an error."""
        return self.finish_reason == "error"

    @property
    def line(self) -> str:
        """The answer so far in one line; one that its length cut off says so."""
        return " ".join(self.text.split()) + (" ..." if self.finish_reason == "length" else "")


class Screen:
    """Prints each answer when it has ended, and the first token's time when it comes."""

    def __init__(self, answers: list[Answer], out: TextIO) -> None:
        self.answers = answers
        self.out = out
        self.first_token_s = 0.0
        self._told: set[int] = set()

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def say(self, text: str) -> None:
        """Print a line of its own."""
        print(text, file=self.out, flush=True)

    def show(self, now_s: float) -> None:
        """Bring the screen up to date; called after each step.

        Args:
            now_s: seconds since the start.
        """
        if not self.first_token_s and any(answer.text for answer in self.answers):
            self.first_token_s = now_s
        for number, answer in enumerate(self.answers):
            if answer.finish_reason is not None and number not in self._told:
                self._told.add(number)
                self.say(f"[{number + 1}] {answer.question}\n    {answer.line}")


class LiveScreen(Screen):
    """All answers at once, growing in place."""

    def __init__(self, answers: list[Answer], out: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__(answers, out)
        self._live = Live(console=Console(file=out), auto_refresh=False)
        self._shown_s = 0.0

    def __enter__(self) -> Screen:
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.update(self._table(), refresh=True)
        self._live.stop()

    def show(self, now_s: float) -> None:
        """Bring the screen up to date, a few times a second at most."""
        if not self.first_token_s and any(answer.text for answer in self.answers):
            self.first_token_s = now_s
        if now_s - self._shown_s >= SHOW_EVERY_S:
            self._shown_s = now_s
            self._live.update(self._table(), refresh=True)

    def _table(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, show_header=False, padding=(0, 1))
        for number, answer in enumerate(self.answers):
            style = "default" if answer.finish_reason else "bold"
            table.add_row(str(number + 1), Text(answer.question, "cyan"), Text(answer.line, style))
        return table


def make_screen(answers: list[Answer], out: TextIO) -> Screen:
    """The screen that suits where the output goes."""
    return LiveScreen(answers, out) if out.isatty() else Screen(answers, out)
