"""The Queue view, until it is written."""

from __future__ import annotations

from typing import ClassVar

from textual.widgets import Static

from ..export import Table
from ..view import View


class QueueView(Static):
    """Shows the step alone."""

    HELP: ClassVar[list[tuple[str, str]]] = []
    can_focus = True

    def show(self, view: View) -> None:
        """Take a view."""
        self.update(f"queue at step {view.keyframe.step}")

    def apply_filter(self, text: str) -> str:
        """Nothing can be filtered here."""
        return "nothing to filter here" if text else ""

    def exported(self) -> Table:
        """Nothing."""
        return Table("queue", [], [])

    @property
    def selected_seq(self) -> int | None:
        """The sequence under the cursor."""
        return None

    @property
    def selected_id(self) -> str:
        """What `y` copies."""
        return ""
