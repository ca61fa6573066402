"""Small dialogs: yes or no, and one of a few. They know not what for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, TypeVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

Answer = TypeVar("Answer")

DIALOG_CSS = """
{name} {{ align: center middle; background: $background 60%; }}
{name} > Vertical {{
    width: 64; max-width: 95%; height: auto; max-height: 90%;
    background: $surface; border: round $accent; border-title-color: $accent; padding: 1 2;
}}
{name} .dialog--keys {{ color: $text-muted; margin-top: 1; }}
"""


class Dialog(ModalScreen[Answer]):
    """A screen that gives an answer, once: keys that are still on their way when it ends do nothing."""

    _has_ended = False

    def end(self, answer: Answer) -> None:
        """Give the answer, and go."""
        if not self._has_ended:
            self._has_ended = True
            self.dismiss(answer)


class ConfirmScreen(Dialog[str]):
    """Asks before something happens to a running engine. Gives "yes", "always" or "no"."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y,enter", "answer('yes')", "Yes"),
        Binding("n,escape,q", "answer('no')", "No"),
        Binding("a", "answer('always')", "Always"),
    ]
    DEFAULT_CSS = DIALOG_CSS.format(name="ConfirmScreen")

    def __init__(self, title: str, question: str, always: str = "") -> None:
        """Take what to ask, and words of the key that agrees once and for all; "" for none."""
        super().__init__()
        self._title, self._question, self._always = title, question, always

    def compose(self) -> ComposeResult:
        """The question and the keys."""
        with Vertical() as box:
            box.border_title = self._title
            yield Static(self._question, markup=False, classes="dialog--question")
            yield Static(_keys(self._always), classes="dialog--keys")

    def action_answer(self, answer: str) -> None:
        """End with an answer."""
        if answer != "always" or self._always:
            self.end(answer)


class ChoiceScreen(Dialog[str]):
    """One of a few. Gives its name, or "" for none."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "give_up", "Cancel")]
    DEFAULT_CSS = (
        DIALOG_CSS.format(name="ChoiceScreen")
        + """
    ChoiceScreen OptionList { height: auto; border: none; background: $surface; padding: 0; }
    """
    )

    def __init__(self, title: str, choices: Sequence[tuple[str, str]]) -> None:
        """Take (name, words) of each choice; a choice's first letter chooses it too."""
        super().__init__()
        self._title, self._choices = title, choices

    def compose(self) -> ComposeResult:
        """The choices."""
        with Vertical() as box:
            box.border_title = self._title
            yield OptionList(*(Option(words, id=name) for name, words in self._choices), markup=False)
            yield Static("enter choose   esc cancel", classes="dialog--keys", markup=False)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """One was chosen."""
        self.end(event.option.id or "")

    def on_key(self, event: events.Key) -> None:
        """A first letter chooses, and means nothing to the screen below."""
        letter = event.character or ""
        for name, _ in self._choices:
            if letter and name.startswith(letter):
                event.stop()
                event.prevent_default()
                self.end(name)
                return

    def action_give_up(self) -> None:
        """End without a choice."""
        self.end("")


def _keys(always: str) -> Text:
    keys = [("y", "yes"), ("n", "no"), *([("a", always)] if always else [])]
    return Text("   ").join(Text.assemble((key, "bold"), f" {words}") for key, words in keys)
