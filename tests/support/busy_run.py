"""A run that goes on in a thread, in real time: a fake engine with a queue, chunks, hits, preemptions and failures.

Its steps tell of two ranks, of which now the one and now the other is the slower.
"""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from fake_engine import FakeEngine
from nanolens.engine.plan import RankTimes, StepResult
from nanolens.engine.sequence import SequenceStatus
from nanolens.errors import InvalidRequest
from nanolens.telemetry.clock import monotonic_ns
from nanolens.telemetry.journal import JournalWriter
from nanolens.telemetry.recorder import Recorder

RUN_ID = "test"  # as fake_engine.started says
STEP_S = 0.003  # what a step takes of the device
LIVE = 10  # requests at once that are not paused


class BusyRun:
    """Steps an engine in a thread from `with` to its end, and keeps its journal.

    Args:
        journal: the journal's directory.

    Attributes:
        steps: steps so far.
    """

    def __init__(self, journal: Path) -> None:
        writer = JournalWriter(journal, RUN_ID, clock=monotonic_ns)
        recorder = Recorder(writer, monotonic_ns)
        self._engine = FakeEngine(
            recorder=recorder, clock=monotonic_ns, num_blocks=32, max_num_seqs=6, max_prefill_chunk=6,
            policy="priority", host_blocks=10, disk_blocks=6, tensor_parallel_size=2,
        )  # fmt: skip
        runner = self._engine.runner
        self._collect = runner.collect
        runner.collect = self._collect_late  # type: ignore[method-assign]
        runner.fail_rows = lambda plan: {s.seq_id: "not finite" for s in plan.sequences if s.seq_id % 29 == 28}
        runner.fail_move = lambda move: "no space left" if move.move % 23 == 22 else ""
        self._count = itertools.count()
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="busy engine")
        self.steps = 0

    def __enter__(self) -> BusyRun:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the run and its journal in order; what went wrong in the thread is raised here, once."""
        self._stop.set()
        self._thread.join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                self._more_requests()
                self._disturb()
                self._engine.step()
                self.steps += 1
            self._engine.close()
        except BaseException as error:
            self._failure = error

    def _collect_late(self, handle: Any) -> StepResult:
        """A device that takes its time."""
        time.sleep(STEP_S)
        took = int(STEP_S * 1e9)
        slow = self.steps % 4 == 3  # the rank that the other one waits for
        ranks = [RankTimes(self._engine.runner.plans[-1].step, [took, took], [took // (10 if slow else 3), took // 5])]
        return replace(self._collect(handle), device_ns=took, wait_ns=took, ranks=ranks)

    def _paused(self) -> list[str]:
        requests = self._engine.core.requests
        paused = SequenceStatus.PAUSED
        return [name for name, r in requests.items() if any(s.status is paused for s in r.sequences)]

    def _more_requests(self) -> None:
        while len(self._engine.core.requests) - len(self._paused()) < LIVE:
            i = next(self._count)
            shared = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12][: 4 * (i % 4)]
            own = [100 + 10 * (i % 37) + k for k in range(1 + i % 11)]  # comes again, and was evicted by then
            self._engine.add([*shared, *own], max_tokens=4 + 6 * (i % 5), n=1 + (i % 10 == 9), priority=i % 3)

    def _disturb(self) -> None:
        """Pause, resume and abort requests, and send one that is refused; each in its turn."""
        engine, requests = self._engine, list(self._engine.core.requests)
        if self.steps % 10 == 1:
            engine.pause(requests[self.steps // 10 % len(requests)])
        for i, name in enumerate(self._paused() if self.steps % 10 == 7 else []):
            engine.resume(name, append=[50, 51] if i % 2 else None)
        if self.steps % 40 == 20:
            engine.abort(requests[-1])
        if self.steps % 50 == 30:
            try:
                engine.add([], max_tokens=4)
            except InvalidRequest:
                pass
