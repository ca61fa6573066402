"""A runner whose model is split over the processes of several ranks. Plans go out once; results come from rank 0.

Each rank has a runner and sequences of its own and samples the same tokens. No torch here: neither model nor device.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from dataclasses import dataclass, field

from ...errors import EngineDead
from ...models import load_config, load_generation_defaults, load_tokenizer
from ...models.parallel import check_size
from ..config import EngineConfig
from ..plan import MoveResult, RankTimes, StepPlan, StepResult
from .loaded import Loaded
from .tensor_parallel_codec import PlanEncoder
from .tensor_parallel_memory import SLOTS
from .tensor_parallel_messages import Done, FinishMoves, Moved
from .tensor_parallel_ranks import Phase, Ranks

MODEL_RANK = f"{__name__.rpartition('.')[0]}.tensor_parallel_model:build"
TIMES_S = 0.02  # for the other ranks to tell how long a step took, where nothing else is in flight: mostly 20 us do
TIMES_LOOK_S = 2e-5

logger = logging.getLogger("nanolens.engine")


@dataclass(frozen=True, slots=True)
class RankStep:
    """A step that all ranks have been given."""

    number: int  # of its message
    plan: StepPlan


@dataclass(slots=True)
class _Move:
    """What came of a move so far. It has ended when it has on every rank: none may read what another has not got."""

    waiting: set[int]
    num_bytes: int = 0
    duration_ns: int = 0
    errors: list[str] = field(default_factory=list)


class TensorParallelRunner:
    """Steps on `config.tensor_parallel_size` ranks (engine/plan.py's `Runner`).

    A rank that dies, hangs or fails ends all of them: from then on `launch` and `collect` raise, and the runner is not
    sound. So does a step that does not fit into a rank's memory, for the others wait for it in the middle of theirs.

    Args:
        config: the engine's settings.
        num_tokens: ids from here on are never sampled.
        target: builds a rank's runner in its process (see `tensor_parallel_rank`).
        ranks: processes that were started already, for this size; None starts some.

    Attributes:
        num_blocks: KV blocks in the pool: of the rank that has room for the fewest.
        host_blocks, disk_blocks: of each rank's swap space.
        swap_ns_per_block: of the slowest rank.
        vocab_size: width of the logits.
        max_model_len: longest sequence in tokens.
        startup: what preparing cost, the largest of the ranks' for each name.
        is_asynchronous: whether ranks compute beside their hosts.

    Raises:
        InvalidConfig, UnknownModel, ModelLoadError: what a rank can't work with.
        EngineDead: a rank's process ended, hangs or failed.
    """

    def __init__(
        self, config: EngineConfig, num_tokens: int, target: str = MODEL_RANK, ranks: Ranks | None = None
    ) -> None:
        self._ranks = ranks or Ranks(config.tensor_parallel_size)
        try:
            ready = self._ranks.start(config, num_tokens, target)
        except BaseException:
            self._ranks.kill()
            raise
        first = ready[0]
        self.num_blocks = first.num_blocks
        self.host_blocks, self.disk_blocks = first.host_blocks, first.disk_blocks
        self.swap_ns_per_block = max(each.swap_ns_per_block for each in ready)
        self.vocab_size, self.max_model_len = first.vocab_size, first.max_model_len
        names = {name: None for each in ready for name in each.startup}
        self.startup = {name: max(each.startup.get(name, 0) for each in ready) for name in names}
        self.is_asynchronous = first.is_asynchronous
        self._encoder = PlanEncoder()
        self._number = 0
        self._results: dict[int, StepResult] = {}
        self._answers: dict[int, set[int]] = {}  # message -> ranks that have answered, where all of them do
        self._moves: dict[int, _Move] = {}
        self._moved: list[MoveResult] = []
        self._untimed: deque[RankStep] = deque()
        self._num_in_flight = 0

    @property
    def pids(self) -> list[int]:
        """Of the ranks' processes."""
        return self._ranks.pids

    def launch(self, plan: StepPlan) -> RankStep:
        """Give the plan to the ranks; doesn't wait for them.

        Raises:
            EngineDead: a rank has died, hangs or failed.
        """
        self._require_sound()
        step = RankStep(self._number + 1, plan)
        data = self._encoder.encode(plan)
        while not self._ranks.progress.has_taken(step.number - SLOTS):  # a rank may lag where others need not wait
            self._receive()
        for move in plan.moves:
            self._moves[move.move] = _Move(set(range(self._ranks.size)))
        if not plan.sequences:
            self._answers[step.number] = set()
        self._number = step.number
        self._ranks.send_plan(step.number, data)
        self._num_in_flight += 1
        if plan.sequences:
            self._untimed.append(step)
        return step

    def collect(self, handle: RankStep) -> StepResult:
        """Wait for rank 0's result of a step, or, for a plan without sequences, for every rank's moves.

        Raises:
            EngineDead: a rank has died, hangs or failed.
        """
        self._require_sound()
        began = time.monotonic_ns()
        self._num_in_flight -= 1
        self._ranks.begin_waiting()
        if not handle.plan.sequences:
            self._wait_for_all(handle.number)
        while handle.number not in self._results:
            self._receive()
        result = self._results.pop(handle.number)
        result.wait_ns = time.monotonic_ns() - began
        result.moved, self._moved = self._moved, []
        result.ranks = self._times(handle.number)
        return result

    def finish_moves(self) -> list[MoveResult]:
        """Wait on every rank for all moves launched so far; those that no result has told of yet.

        After a rank's failure nothing is told of any: they are lost.
        """
        if not self.is_sound():
            return []
        self._number += 1
        self._answers[self._number] = set()
        self._ranks.begin_waiting()
        self._ranks.send_all(FinishMoves(self._number))
        self._wait_for_all(self._number)
        moved, self._moved = self._moved, []
        return moved

    def is_sound(self) -> bool:
        """Whether all ranks live, as far as is known."""
        return not self._ranks.fault

    def look(self) -> str:
        """Whether all ranks live and beat: why not, or ""."""
        if not self._ranks.fault:
            with contextlib.suppress(EngineDead):
                self._receive(Phase.RESTING)
        return self._ranks.fault

    def close(self) -> None:
        """End the ranks' processes."""
        self._ranks.close()

    def _require_sound(self) -> None:
        if self._ranks.fault:
            raise EngineDead(self._ranks.fault)

    def _wait_for_all(self, number: int) -> None:
        while len(self._answers[number]) < self._ranks.size:
            self._receive()
        del self._answers[number]

    def _receive(self, phase: Phase = Phase.STEPPING) -> None:
        """Take what ranks say."""
        for rank, report in self._ranks.receive(phase):
            if isinstance(report, Done):
                self._results[report.number] = report.result
                self._take_moves(rank, report.result.moved)
            elif isinstance(report, Moved):
                self._take_moves(rank, report.moved)
            else:
                continue
            if report.number in self._answers:
                self._answers[report.number].add(rank)

    def _take_moves(self, rank: int, moved: list[MoveResult]) -> None:
        for result in moved:
            move = self._moves[result.move]
            move.waiting.discard(rank)
            move.num_bytes += result.num_bytes
            move.duration_ns = max(move.duration_ns, result.duration_ns)
            if result.error:
                move.errors.append(f"rank {rank}: {result.error}")
            if not move.waiting:
                del self._moves[result.move]
                error = "; ".join(move.errors)
                self._moved.append(MoveResult(result.move, move.num_bytes, move.duration_ns, error))

    def _times(self, number: int) -> list[RankTimes]:
        """The times of steps, up to that of message `number`, that all ranks have told of.

        The last one's come with the next step, where that is in flight already, or where a rank lags by TIMES_S.
        """
        found: list[RankTimes] = []
        deadline = time.monotonic() + (0.0 if self._num_in_flight else TIMES_S)
        while self._untimed and self._untimed[0].number <= number:
            step = self._untimed[0]
            times = self._ranks.progress.times(step.number)
            if times is not None:
                found.append(RankTimes(step.plan.step, *times))
                self._untimed.popleft()
            elif time.monotonic() >= deadline:
                break
            else:
                time.sleep(TIMES_LOOK_S)
        return found


def load_ranks(config: EngineConfig) -> Loaded:
    """A runner on `config.tensor_parallel_size` ranks, each of which loads its part of the model.

    Raises:
        InvalidConfig, UnknownModel, ModelLoadError: what is wrong, in words.
        EngineDead: a rank's process ended, hangs or failed.
    """
    began = time.monotonic()
    logger.info("loading %s onto %d ranks", config.model, config.tensor_parallel_size)
    check_size(load_config(config.model), config.tensor_parallel_size)  # before any process is started
    try:
        ranks = Ranks(config.tensor_parallel_size)  # they load their libraries meanwhile
    except OSError as error:
        raise EngineDead(f"the {config.tensor_parallel_size} ranks can't be started: {error}") from error
    try:
        tokenizer = load_tokenizer(config.model)
        defaults = load_generation_defaults(config.model)
    except BaseException:
        ranks.kill()
        raise
    runner = TensorParallelRunner(config, tokenizer.vocab_size, ranks=ranks)
    logger.info("%d KV blocks on each rank; ready in %.1f s", runner.num_blocks, time.monotonic() - began)
    vocab_size = min(tokenizer.vocab_size, runner.vocab_size)
    return Loaded(runner, tokenizer, defaults, vocab_size, runner.is_asynchronous)
