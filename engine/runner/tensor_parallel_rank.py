"""The program of a rank's process: a runner on its part of the model, plans from shared memory, results from rank 0.

It ends when the driver says so, and when the driver is gone. A runner is built by a target, `module:function`, a
function of a `RankSetup`.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import logging
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from ...errors import NanolensError
from ..config import EngineConfig
from ..messages import Fault
from ..plan import StepPlan
from .loaded import LoadedRunner
from .tensor_parallel_codec import PlanDecoder, append_sampled
from .tensor_parallel_memory import PlanReader, Progress
from .tensor_parallel_messages import (
    Close,
    Done,
    Failed,
    FinishMoves,
    Meet,
    Moved,
    Pool,
    Ready,
    Report,
    Start,
    Step,
    decode_order,
    encode,
)

BEAT_S = 0.2
MAX_TRACE = 20_000  # characters
LEAVE_S = 2.0  # for the main thread to end by itself when the driver is gone
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class BuiltRank:
    """What a target gives.

    Attributes:
        runner: computes steps.
        is_asynchronous: whether a launched step runs beside this process.
        is_done: whether collecting a launched step (its handle) would not wait.
        num_filed: blocks written to the swap file or read from it so far; from another thread.
        close: called last, after the runner was closed.
        came_ns: the sum of the times at which this rank has come to its collectives so far, by the clock that ranks
            share; always 0 where it is not known.
        waited_ns: nanoseconds that this rank has spent in collectives so far; the runner's steps count on from there.
    """

    runner: LoadedRunner
    is_asynchronous: bool = False
    is_done: Callable[[Any], bool] = field(default=lambda handle: True)
    num_filed: Callable[[], int] = field(default=lambda: 0)
    close: Callable[[], None] = field(default=lambda: None)
    came_ns: Callable[[], int] = field(default=lambda: 0)
    waited_ns: int = 0


class RankSetup:
    """What a rank is to build, and how it reaches the others while it does.

    Attributes:
        config: the engine's settings, the same for every rank.
        rank, size: this one, of how many.
        num_tokens: ids from here on are never sampled.
        move_on: to be called by the main thread within a step at places that all ranks come to, before it waits there
            for others: the rank that has come to the fewest is the one that hangs.
        enter: to be called with the index in STAGES (tensor_parallel_memory) of what is done next.
    """

    def __init__(
        self, start: Start, size: int, connection: Connection, move_on: Callable[[], None], enter: Callable[[int], None]
    ) -> None:
        self.config: EngineConfig = start.config
        self.rank, self.size = start.rank, size
        self.num_tokens = start.num_tokens
        self.move_on, self.enter = move_on, enter
        self._connection = connection

    def publish(self, address: str) -> None:
        """Tell the other ranks where they find each other. Rank 0, once."""
        self._connection.send_bytes(encode(Meet(address)))

    def address(self) -> str:
        """What rank 0 has published. The other ranks, once.

        Raises:
            EOFError: the driver is gone.
        """
        answer = decode_order(self._connection.recv_bytes())
        if not isinstance(answer, Meet):
            raise RuntimeError(f"rank {self.rank} expected an address, not {type(answer).__name__}")
        return answer.address

    def agree(self, num_blocks: int) -> int:
        """The blocks that every rank has room for, when this one has room for `num_blocks`. Every rank, once.

        Raises:
            EOFError: the driver is gone.
        """
        self._connection.send_bytes(encode(Pool(num_blocks)))
        answer = decode_order(self._connection.recv_bytes())
        if not isinstance(answer, Pool):
            raise RuntimeError(f"rank {self.rank} expected a number of blocks, not {type(answer).__name__}")
        return answer.num_blocks


class RankServer:
    """Runs the driver's plans on one rank.

    It launches in order, and reads a step only where nothing can be launched instead. On a device that computes beside
    the host it looks for the next plan and for the step's end in turn, without sleeping, while one step is in flight.
    """

    def __init__(self, connection: Connection, memory: int, progress: Progress, rank: int, built: BuiltRank) -> None:
        self._connection = connection
        self._plans = PlanReader(memory)
        self._progress = progress
        self._rank = rank
        self._runner = built.runner
        self._is_asynchronous, self._is_done = built.is_asynchronous, built.is_done
        self._collective_ns = built.waited_ns
        self._read_came_ns, self._came_ns = built.came_ns, built.came_ns()
        self._decoder = PlanDecoder()
        self._flights: deque[tuple[int, StepPlan, Any]] = deque()
        self._poll = select.poll()
        self._poll.register(connection.fileno(), select.POLLIN)

    def serve(self) -> None:
        """Take orders until the last one.

        Raises:
            EOFError: the driver is gone.
        """
        while True:
            if self._flights and not self._is_ordered():
                self._collect()
                continue
            order = decode_order(self._connection.recv_bytes())
            if isinstance(order, Step):
                self._launch(order)
            elif isinstance(order, FinishMoves):
                self._progress.take(self._rank, order.number)
                self._progress.move_on(self._rank)
                moved = self._runner.finish_moves()
                self._progress.move_on(self._rank)
                self._send(Moved(order.number, moved))
            elif isinstance(order, Close):
                return

    def _is_ordered(self) -> bool:
        """Whether an order is there, before the oldest step in flight is done. Two in flight: no plan can come."""
        if not self._is_asynchronous or len(self._flights) > 1:
            return False
        handle = self._flights[0][2]
        while not self._is_done(handle):
            if self._poll.poll(0):
                return True
        return False

    def _launch(self, order: Step) -> None:
        data = self._plans.read(order.offset, order.length)
        self._progress.take(self._rank, order.number)
        plan = self._decoder.decode(data)
        self._progress.begin_step(self._rank, plan.step)
        self._progress.move_on(self._rank)
        self._flights.append((order.number, plan, self._runner.launch(plan)))
        self._progress.move_on(self._rank)

    def _collect(self) -> None:
        number, plan, handle = self._flights.popleft()
        result = self._runner.collect(handle)
        self._progress.move_on(self._rank)
        append_sampled(plan, result.tokens)
        waited = 0
        if plan.sequences:  # moves alone read nothing back from the device
            waited, self._collective_ns = result.collective_ns - self._collective_ns, result.collective_ns
        before, self._came_ns = self._came_ns, self._read_came_ns()  # where it is known, nothing else is in flight
        self._progress.end_step(self._rank, number, result.device_ns, waited, self._came_ns - before)
        if self._rank == 0:
            self._send(Done(number, result))
        elif result.moved or not plan.sequences:
            self._send(Moved(number, result.moved))

    def _send(self, report: Report) -> None:
        self._connection.send_bytes(encode(report))


def main(connection_fd: int, memory: int, rank: int, size: int, parent: int) -> None:
    """Serve a driver, which gave these descriptors, and leave."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver decides
    logging.basicConfig(format=f"rank {rank}: %(message)s", level=logging.WARNING)
    connection = Connection(connection_fd)
    progress = Progress(memory, size)
    faulthandler.register(signal.SIGUSR1)  # the driver asks a rank that hangs where it is
    heart = Heart(connection_fd, progress, rank, parent)
    heart.start()
    code = 0
    try:
        _run(connection, memory, progress, size, heart)
    except BaseException as error:  # told to the driver, which alone knows whether it is the cause; if it is there
        code = 1
        trace = "" if isinstance(error, NanolensError) else traceback.format_exc()[-MAX_TRACE:]
        with contextlib.suppress(OSError):
            connection.send_bytes(encode(Failed(Fault.of(error), time.monotonic_ns(), trace)))
    sys.stdout.flush()
    sys.stderr.flush()
    if code:
        os._exit(code)  # nothing that waits for other ranks holds it up


def _run(connection: Connection, memory: int, progress: Progress, size: int, heart: Heart) -> None:
    start = decode_order(connection.recv_bytes())
    if not isinstance(start, Start):
        raise RuntimeError(f"a rank's first message is {type(start).__name__}, not its start")
    _die_with_parent(start.parent)
    enter = partial(progress.enter, start.rank)
    enter(1)
    module, _, function = start.target.partition(":")
    build: Callable[[RankSetup], BuiltRank] = getattr(importlib.import_module(module), function)
    built = build(RankSetup(start, size, connection, partial(progress.move_on, start.rank), enter))
    runner, heart.num_filed = built.runner, built.num_filed
    gc.collect()
    gc.freeze()  # what loading left lives as long as the rank
    ready = Ready(
        runner.num_blocks, runner.host_blocks, runner.disk_blocks, runner.swap_ns_per_block, runner.vocab_size,
        runner.max_model_len, runner.startup, built.is_asynchronous,
    )  # fmt: skip
    connection.send_bytes(encode(ready))
    try:
        RankServer(connection, memory, progress, start.rank, built).serve()
    finally:
        runner.close()
    built.close()


class Heart(threading.Thread):
    """Gives signs of life; ends the process where the driver is gone and the main thread doesn't notice.

    Attributes:
        num_filed: see `BuiltRank`.
    """

    def __init__(self, connection_fd: int, progress: Progress, rank: int, parent: int) -> None:
        super().__init__(name="beat", daemon=True)
        self.num_filed: Callable[[], int] = int
        self._connection_fd, self._progress, self._rank, self._parent = connection_fd, progress, rank, parent

    def run(self) -> None:
        """Beat until the driver is gone."""
        poll = select.poll()
        poll.register(self._connection_fd, select.POLLHUP)
        while not poll.poll(BEAT_S * 1000) and os.getppid() == self._parent:
            self._progress.beat(self._rank)
            self._progress.tell_moved(self._rank, self.num_filed())
        time.sleep(LEAVE_S)
        os._exit(1)


def _die_with_parent(parent: int) -> None:
    """Be killed by the system when the thread that started this process ends; Linux."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
