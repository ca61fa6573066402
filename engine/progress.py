"""How far an engine has come, in a few numbers that cost little to take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """An engine between two steps.

    Attributes:
        step: number of the last step that was planned.
        waiting: sequences in WAITING.
        running: sequences in RUNNING.
        paused: sequences in PAUSED.
        free_blocks: KV blocks that no sequence holds.
        engine_paused: why nothing is planned; "" while it is.
    """

    step: int
    waiting: int
    running: int
    paused: int
    free_blocks: int
    engine_paused: str

    @property
    def has_work(self) -> bool:
        """Whether a sequence waits or runs."""
        return self.waiting + self.running > 0
