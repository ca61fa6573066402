"""What the views tell the app: somebody chose something. Knows neither views nor app."""

from __future__ import annotations

from textual.message import Message

from ..view import Moment


class SequenceChosen(Message):
    """A sequence is to be shown in detail.

    Attributes:
        seq: its id.
    """

    def __init__(self, seq: int) -> None:
        super().__init__()
        self.seq = seq


class StepChosen(Message):
    """The time of a step is to be shown.

    Attributes:
        step: its number.
    """

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step


class MomentChosen(Message):
    """A moment of the journal is to be shown, such as that of an event.

    Attributes:
        moment: which.
    """

    def __init__(self, moment: Moment) -> None:
        super().__init__()
        self.moment = moment
