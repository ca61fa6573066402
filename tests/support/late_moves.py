"""A fake runner whose moves to the device take as long as a real one's."""

from __future__ import annotations

from fake_engine import FakeEngine
from nanolens.engine.plan import BlockMove, MoveResult


class LateMoves:
    """Makes a fake runner's moves to the device slow: their data arrives when their end is told, no sooner.

    What a move reads is fixed when it is launched. Until then its targets hold nothing, and for good if it failed.
    """

    def __init__(self, engine: FakeEngine) -> None:
        self.runner = engine.runner
        self.arriving: list[tuple[int, dict[int, tuple[int, int]]]] = []
        self._finish = self.runner.finish_moves
        self._move = self.runner._move
        self.runner._move = self.move  # type: ignore[method-assign]
        self.runner.finish_moves = self.finish_moves  # type: ignore[method-assign]

    def move(self, move: BlockMove) -> None:
        self._move(move)
        if move.kind != "in":
            return
        failed = bool(self.runner.moved[-1].error)
        for target in move.targets:
            page = self.runner._page(target)
            self.runner._put(target, {})
            if not failed:
                self.arriving.append((target, page))

    def finish_moves(self) -> list[MoveResult]:
        for target, page in self.arriving:
            self.runner._put(target, page)
        self.arriving = []
        return self._finish()
