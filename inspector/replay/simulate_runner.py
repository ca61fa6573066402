"""A runner that computes nothing and takes modelled time on a virtual clock. What its steps give was recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...engine.plan import MoveResult, StepPlan, StepResult
from .simulate_costs import StepTimes
from .simulate_story import Life
from .tokens import Tokens


class VirtualClock:
    """Stands still until it is moved. `now` is in nanoseconds."""

    def __init__(self, now: int) -> None:
        self.now = now

    def __call__(self) -> int:
        """The time."""
        return self.now

    def wait_until(self, t: int) -> None:
        """Move on; never back."""
        self.now = max(self.now, t)


class SimulatedRunner:
    """Steps and moves of blocks on a device that does one after the other.

    The host's part of a step comes before its launch. Moves come before their step and last as long as its device does
    not get on with it.

    Args:
        clock: is moved.
        times: what steps take.
        lives: by sequence, where it stops.
        tokens: by sequence and position.
        num_blocks, host_blocks, disk_blocks, vocab_size: as of a runner.

    Attributes:
        reads: told of each step before it is read: does what has to come before.
    """

    def __init__(
        self, clock: VirtualClock, times: StepTimes, lives: Mapping[int, Life], tokens: Tokens, *,
        num_blocks: int, host_blocks: int, disk_blocks: int, vocab_size: int,
    ) -> None:  # fmt: skip
        self.num_blocks, self.host_blocks, self.disk_blocks = num_blocks, host_blocks, disk_blocks
        self.vocab_size = vocab_size
        self.swap_ns_per_block = round(times.swap_ns_per_block)
        self.reads: Callable[[StepPlan], None] = lambda plan: None
        self._clock, self._times, self._lives, self._tokens = clock, times, lives, tokens
        self._free_t = 0  # when the device is done with what it was given
        self._moved: list[tuple[int, MoveResult]] = []  # (when, what)

    def launch(self, plan: StepPlan) -> Any:
        """Take a plan and the time that the host takes for it."""
        host, device = self._times.of(plan, self._clock.now)
        self._clock.now += host
        self._free_t = max(self._free_t, self._clock.now)
        for move in plan.moves:
            duration = self._times.of_move(move)
            self._free_t += duration
            self._moved.append((self._free_t, MoveResult(move.move, 0, duration)))
        self._free_t += device
        return plan, device, self._free_t

    def collect(self, handle: Any) -> StepResult:
        """Wait for a step; its tokens, each a stop where its sequence stopped."""
        plan, device, done_t = handle
        self._clock.wait_until(done_t)
        self.reads(plan)
        result = StepResult(tokens=[], device_ns=device, moved=self._ended())
        for seq, start, count, samples, epoch in zip(
            plan.sequences, plan.starts, plan.counts, plan.samples, plan.epochs, strict=True
        ):
            if not samples:
                continue
            token = self._tokens.at(seq.seq_id, start + count)
            result.tokens.append(token)
            if seq.epoch == epoch:
                life, had = self._lives[seq.seq_id], seq.num_read_output_tokens
                seq.stop_token_ids = frozenset((token,)) if had + 1 in life.stops else frozenset()
        return result

    def finish_moves(self) -> list[MoveResult]:
        """Wait for all moves."""
        for ended, _ in self._moved:
            self._clock.wait_until(ended)
        return self._ended()

    def is_sound(self) -> bool:
        """It is."""
        return True

    def look(self) -> str:
        """Nothing can fail."""
        return ""

    def close(self) -> None:
        """There is nothing to give back."""

    def _ended(self) -> list[MoveResult]:
        """The moves that have ended by now."""
        now = self._clock.now
        ended = [result for t, result in self._moved if t <= now]
        self._moved = [(t, result) for t, result in self._moved if t > now]
        return ended
