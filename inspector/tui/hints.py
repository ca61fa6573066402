"""Which keys the footer names: those that apply to what is shown, the ones of most weight first."""

from __future__ import annotations

from collections.abc import Sequence

from .footer_bar import Hint

OWN_HINTS, OWN_LENGTH = 3, 16  # of a view: hints, characters of each


def hints(
    active: str, frozen: bool, can_steer: bool, filtered: bool, own: Sequence[tuple[str, str]], of_fleet: bool = False
) -> list[Hint]:
    """The keys that apply.

    Args:
        active: name of the view that is shown.
        frozen: whether the moment stays.
        can_steer: whether the engine can be steered.
        filtered: whether something is left out of the view.
        own: keys of the view itself.
        of_fleet: whether what is looked at is one replica of several.
    """
    found = [Hint("q", "quit", "quit"), Hint("?", "help", "help")]
    if active == "detail":
        found.append(Hint("esc", "back", "back"))
    elif filtered:
        found.append(Hint("esc", "all", "back"))
    elif of_fleet:
        found.append(Hint("esc", "fleet", "back"))
    found.append(Hint("/", "filter", "ask_filter"))
    found.append(Hint("g", "live", "live") if frozen else Hint("space", "freeze", "freeze"))
    found += [Hint("[", "back", "steps(-1)"), Hint("]", "on", "steps(1)")]
    short = [Hint(key, words) for key, words in own if key != "/" and len(words) <= OWN_LENGTH]
    found += short[:OWN_HINTS]
    if can_steer:
        found += [
            Hint("P", "pause", "pause_engine"),
            Hint("s", "step", "step_engine"),
            Hint("b", "breaks", "breakpoints"),
        ]
    found += [Hint("{ }", "event"), Hint("t", "go to", "ask_jump"), Hint("e", "kind", "ask_kind")]
    if can_steer and active in ("sequences", "detail", "queue"):
        found += [Hint("p", "pause seq", "pause_sequence"), Hint("x", "abort", "abort_sequence")]
        found.append(Hint("i", "priority", "ask_priority"))
    found += [Hint("E", "export", "export"), Hint("y", "copy id", "copy"), Hint("^p", "palette")]
    return found
