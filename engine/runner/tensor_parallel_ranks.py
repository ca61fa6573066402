"""The processes of the ranks: started, spoken to, watched, ended. Knows messages, not what is computed."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import time
from enum import Enum, auto
from multiprocessing.connection import Connection, Pipe
from typing import NoReturn

from ...errors import EngineDead, NanolensError, OutOfDeviceMemory
from ..config import EngineConfig
from ..core_link import how_it_ended
from ..request import describe
from ..standard_files import open_standard_files
from .lasting_thread import call_in_lasting_thread
from .swap_file import path_of_rank, remove_left
from .tensor_parallel_memory import STAGES, PlanWriter, Progress, make_shared_memory
from .tensor_parallel_messages import (
    Close,
    Failed,
    Meet,
    Order,
    Pool,
    Ready,
    Report,
    Start,
    Step,
    decode_report,
    encode,
)
from .tensor_parallel_watch import LOAD_HANG_S, LOOK_S, REST_LOOK_S, Watch, work_of

CLOSE_S = 10.0  # for ranks to end in order
TELL_S = 0.3  # for a rank that hangs to write down where it is
BLAME_S = 0.5  # for a process that was killed to be seen as such, after another one has told of the consequences

_SHORT = (
    "; the others wait for it within the step, so that it can't be launched again in parts: lower "
    "max_num_batched_tokens, max_num_seqs, num_blocks or gpu_memory_utilization"
)

_PROGRAM = (
    "import sys; sys.path[:] = {path!r}; "
    "from {module} import main; main({connection}, {memory}, {rank}, {size}, {parent})"
)
_MODULE = f"{__name__.rpartition('.')[0]}.tensor_parallel_rank"

logger = logging.getLogger("nanolens.engine")


class Phase(Enum):
    """What ranks are doing, and so what they are watched for."""

    LOADING = auto()  # beats may be late
    STEPPING = auto()  # they have to beat, and to get further
    RESTING = auto()  # they have to beat; nothing is due, so nothing is waited for


class Ranks:
    """`size` processes, each with a pipe, and the memory that they share with the driver.

    Args:
        size: how many.

    Attributes:
        progress: what each rank has told of itself.
        fault: why they can't be used any more; "" while they can.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.fault = ""
        self._connections: list[Connection] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._closed = False
        self._loading, self._resting = Watch(size, LOAD_HANG_S), Watch(size, look_s=REST_LOOK_S)
        self._beating, self._moving = Watch(size), Watch(1)
        self._swap_path: str | None = None
        self._patience = ""
        open_standard_files()
        self._fd = make_shared_memory(size)
        self.progress = Progress(self._fd, size)
        self._plans = PlanWriter(self._fd, size)
        try:
            for rank in range(size):
                self._spawn(rank)
        except BaseException:
            self.kill()
            raise
        self._poll = select.poll()
        self._rank_of = {connection.fileno(): rank for rank, connection in enumerate(self._connections)}
        for fd in self._rank_of:
            self._poll.register(fd, select.POLLIN)

    @property
    def pids(self) -> list[int]:
        """Of the processes."""
        return [process.pid for process in self._processes]

    def _spawn(self, rank: int) -> None:
        ours, theirs = Pipe()
        self._connections.append(ours)
        program = _PROGRAM.format(
            path=[entry or os.getcwd() for entry in sys.path], module=_MODULE, connection=theirs.fileno(),
            memory=self._fd, rank=rank, size=self.size, parent=os.getpid(),
        )  # fmt: skip
        threads = str(max(1, (os.cpu_count() or 1) // self.size))
        with theirs:

            def start() -> subprocess.Popen[bytes]:
                return subprocess.Popen(
                    [sys.executable, "-c", program],
                    stdin=subprocess.DEVNULL,
                    stdout=2,  # what a library says is not the program's output
                    pass_fds=(theirs.fileno(), self._fd),
                    env={"OMP_NUM_THREADS": threads} | os.environ,
                    start_new_session=True,  # so that a Ctrl-C in the terminal does not reach it
                )

            self._processes.append(call_in_lasting_thread(start))  # whose end would be the rank's

    def start(self, config: EngineConfig, num_tokens: int, target: str) -> list[Ready]:
        """Have every rank build its runner, and bring them together; what they are like.

        Raises:
            InvalidConfig, UnknownModel, ModelLoadError: what a rank can't work with.
            EngineDead: a rank's process ended, hangs or failed.
        """
        self._swap_path = config.swap_path
        self._moving = Watch(1, config.rank_timeout_s)
        self._patience = f"{config.rank_timeout_s:g} s (rank_timeout_s)"
        for rank in range(self.size):
            self.send(rank, Start(config, rank, num_tokens, target, os.getpid()))
        pools: dict[int, int] = {}
        ready: dict[int, Ready] = {}
        while len(ready) < self.size:
            for rank, report in self.receive(Phase.LOADING):
                if isinstance(report, Meet):
                    for other in range(1, self.size):
                        self.send(other, report)
                elif isinstance(report, Pool):
                    pools[rank] = report.num_blocks
                    if len(pools) == self.size:
                        least = min(pools.values())
                        for each in range(self.size):
                            self.send(each, Pool(least))
                elif isinstance(report, Ready):
                    ready[rank] = report
        return [ready[rank] for rank in range(self.size)]

    def send(self, rank: int, order: Order) -> None:
        """Say something to a rank. That it is gone is noticed by `receive`, which also reads its last words."""
        self._send(rank, encode(order))

    def _send(self, rank: int, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self._connections[rank].send_bytes(data)

    def send_all(self, order: Order) -> None:
        """Say something to every rank."""
        data = encode(order)
        for rank in range(self.size):
            self._send(rank, data)

    def send_plan(self, number: int, data: bytes) -> None:
        """Give every rank a plan.

        Args:
            number: of the message: from 1, rising by 1.
            data: the plan; no more than `SLOTS` of them are with the ranks, which take each before it is done.
        """
        self.send_all(Step(number, self._plans.write(number, data), len(data)))

    def receive(self, phase: Phase = Phase.STEPPING) -> list[tuple[int, Report]]:
        """What ranks say, soon: nothing after a while in which they said nothing.

        Args:
            phase: what they are doing.

        Raises:
            EngineDead: a rank has died, hangs or tells of an error; all are ended then.
            InvalidConfig, UnknownModel, ModelLoadError: what a rank can't load.
        """
        found: list[tuple[int, Report]] = []
        failed: dict[int, Failed | None] = {}
        for fd, _ in self._poll.poll(0 if phase is Phase.RESTING else LOOK_S * 1000):
            rank = self._rank_of[fd]
            try:
                report = decode_report(self._connections[rank].recv_bytes())
            except (EOFError, OSError):
                failed[rank] = None
                continue
            if isinstance(report, Failed):
                failed[rank] = report
            else:
                found.append((rank, report))
        if failed:
            self._fail(failed, starting=phase is Phase.LOADING)
        if phase is Phase.LOADING:
            self._look_at_loading()
            return found
        watch = self._beating if phase is Phase.STEPPING else self._resting
        silent = watch.look(self.progress.beats())
        if silent is not None:
            self._break(silent, "hangs: its process gives no sign of life")
        if phase is Phase.STEPPING:
            self._look()
        return found

    def begin_waiting(self) -> None:
        """What is received from here on is waited for."""
        self._beating.reset()
        self._moving.reset()

    def _look_at_loading(self) -> None:
        beats = self.progress.beats()
        rank = self._loading.look([beat + work_of(pid) for beat, pid in zip(beats, self.pids, strict=True)])
        if rank is not None:
            self._end_start(rank, f"hangs while {self._stage(rank)}: no sign of life for {LOAD_HANG_S:g} s")

    def _look(self) -> None:
        if self._moving.look([self.progress.distance()]) is None:
            return
        places = self.progress.places()
        behind = places.index(min(places))
        is_known = max(places) > places[behind]
        for process in [self._processes[behind]] if is_known else self._processes:
            process.send_signal(signal.SIGUSR1)
        time.sleep(TELL_S)
        if is_known:
            how = f"hangs: it has not got further for {self._patience}, and the others wait for it"
        else:
            how = f"waits like all others, and none has got further for {self._patience}: which one hangs can't be told"
        self._break(behind, f"{how}; its stack is on stderr")

    def _fail(self, failed: dict[int, Failed | None], starting: bool = False) -> None:
        """End with the rank that failed first: one that was killed, rather than one that tells what came of it."""
        deadline = time.monotonic() + BLAME_S
        while True:
            codes = [process.poll() for process in self._processes]
            killed = [rank for rank, code in enumerate(codes) if code is not None and code < 0]
            if killed or time.monotonic() > deadline:
                break
            time.sleep(LOOK_S / 10)
        told = [(report.t, rank, report) for rank, report in failed.items() if report is not None]
        if told and not killed:
            _, rank, report = min(told, key=lambda each: each[0])
            self._tell(rank, report, starting)
        rank = killed[0] if killed else next(iter(failed))
        code = codes[rank]
        how = "closed its pipe" if code is None else how_it_ended(code)
        if starting:
            self._end_start(rank, f"{how} while it started ({self._stage(rank)}); its messages are on stderr")
        self._break(rank, how)

    def _tell(self, rank: int, report: Failed, starting: bool) -> NoReturn:
        """End with a rank's own error."""
        error = report.fault.unpack()
        if report.trace:
            logger.error("rank %d of %d failed\n%s", rank, self.size, report.trace.rstrip())
        if not starting:
            self._break(rank, f"failed: {describe(error)}", _SHORT if isinstance(error, OutOfDeviceMemory) else "")
        if isinstance(error, NanolensError) and not isinstance(error, EngineDead):  # words for whoever starts it
            self.kill()
            raise error
        if not isinstance(error, EngineDead):
            self._end_start(rank, f"failed while {self._stage(rank)}: {describe(error)}")
        stages = self.progress.stages()  # it has waited for others in vain
        behind = [f"rank {other} is {STAGES[at]}" for other, at in enumerate(stages) if at < stages[rank]]
        self._end_start(rank, "; ".join([str(error), *behind]))

    def _stage(self, rank: int) -> str:
        return STAGES[self.progress.stages()[rank]]

    def _end_start(self, rank: int, how: str) -> NoReturn:
        self.fault = f"rank {rank} of {self.size} (process {self._processes[rank].pid}) {how}"
        self.kill()
        raise EngineDead(self.fault)

    def _break(self, rank: int, how: str, advice: str = "") -> NoReturn:
        step = self.progress.step(rank)
        last = "it has begun no step" if step is None else f"its last step was {step}"
        self.fault = f"rank {rank} of {self.size} (process {self._processes[rank].pid}) {how}; {last}{advice}"
        self.kill()
        raise EngineDead(self.fault)

    def close(self) -> None:
        """Let the ranks end in order, and end those that don't."""
        if not self.fault:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.send_bytes(encode(Close()))
            deadline = time.monotonic() + CLOSE_S
            for process in self._processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
        self.kill()

    def kill(self) -> None:
        """End the ranks at once, and let go of what was shared with them."""
        if self._closed:
            return
        self._closed = True
        self.fault = self.fault or "the ranks are closed"
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
        for rank, process in enumerate(self._processes):
            process.wait()
            if self._swap_path is not None:
                remove_left(path_of_rank(self._swap_path, rank), process.pid)
        for connection in self._connections:
            connection.close()
        self._plans.close()
        self.progress.close()
        os.close(self._fd)
