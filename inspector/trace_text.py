"""Words, widths and colours of what nano-trace prints to a terminal."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

from .units import duration, printable

if TYPE_CHECKING:
    from ..telemetry.step_costs import StepCostModel

BOLD, DIM, RED, GREEN, YELLOW = "1", "2", "31", "32", "33"
NARROWEST = 80
_BAR = " ▏▎▍▌▋▊▉█"


class Paint:
    """Colours, where the output is a terminal and NO_COLOR is not set."""

    def __init__(self) -> None:
        self._on = sys.stdout.isatty() and not os.environ.get("NO_COLOR")

    def __call__(self, text: str, *codes: str) -> str:
        """The text in a colour."""
        return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if self._on and codes else text


def width() -> int:
    """Columns of the terminal, at least NARROWEST."""
    return max(NARROWEST, shutil.get_terminal_size((NARROWEST, 24)).columns)


def time(ns: float) -> str:
    """A duration; 0 as `0`."""
    return duration(round(ns)) if abs(ns) >= 0.5 else "0"


def change(ns: float) -> str:
    """A duration with its sign."""
    return f"{'+' if ns > 0 else '-'}{duration(round(abs(ns)))}" if abs(ns) >= 0.5 else "0"


def bar(value: float, largest: float, columns: int) -> str:
    """A bar of eighths of a column; what is not 0 shows at least the thinnest."""
    if value <= 0 or largest <= 0 or columns < 1:
        return ""
    eighths = max(1, round(min(1.0, value / largest) * columns * 8))
    return "█" * (eighths // 8) + (_BAR[eighths % 8] if eighths % 8 else "")


def cost_words(model: StepCostModel) -> str:
    """How far the division of shared steps can be trusted."""
    if not model.num_steps:
        return "no step's time on the device was measured"
    if not tells_error(model):
        steps = "1 step" if model.num_steps == 1 else f"{model.num_steps} steps"
        return f"a step's cost was fitted to {steps}, too few to tell its error"
    return f"a step's cost, fitted to {model.num_steps} steps, is known to {model.median_error:.0%}"


def tells_error(model: StepCostModel) -> bool:
    """Whether it was fitted to more steps than it has coefficients: with fewer it meets them all, right or wrong."""
    return model.num_steps > len(model.coefficients)


def fold(text: str, columns: int, indent: str = "") -> str:
    """Words on as many lines as they need; all but the first begin with `indent`."""
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > columns:
            lines.append(line)
            line = indent + word
        else:
            line = f"{line} {word}" if line else word
    return "\n".join([*lines, line])


def safe(text: str, columns: int = 40) -> str:
    """A name that came from outside, without a terminal's commands, cut to fit."""
    shown = printable(text)
    return shown if len(shown) <= columns else shown[: columns - 1] + "…"
