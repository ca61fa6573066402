"""Runs the real scheduler and block manager on a recorded run, and compares every decision with what was recorded.

The recorded events lead: each command is given again where the recording has it, and between commands the engine steps.
What users and devices did is taken from the recording; what the engine decided is decided anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ...engine.breakpoint_hits import act_on_hits
from ...engine.breakpoints import Hit
from ...engine.core import EngineCore
from ...engine.outputs import Delta, RequestOutput
from ...engine.plan import StepPlan
from ...engine.request import describe
from ...engine.sequence import Sequence
from ...errors import InvalidRequest, JournalError
from ...telemetry.events import (
    AnyEvent,
    BreakpointHit,
    EngineContinued,
    EngineError,
    EnginePaused,
    EngineStopped,
    PriorityChanged,
    RequestArrived,
    SequenceResumed,
    StatusChanged,
    StepFinished,
    SwapFinished,
)
from ...telemetry.recorder import NullRecorder
from .callbacks import Callbacks, is_pause
from .comparison import tag
from .recording import Recording
from .requests import ReplayRequest, check_pool, config_of, params_of
from .runner import Interrupted, ScriptedRunner, error_of
from .script import Divergence, Script
from .tokens import Tokens


@dataclass(frozen=True)
class Result:
    """What came of a replay.

    Attributes:
        decisions: events that came out the same.
        steps: the last step that was planned.
        divergence: the first one that did not; None: all did.
    """

    decisions: int
    steps: int
    divergence: Divergence | None


def replay(recording: Recording) -> Result:
    """Decide a recorded run again.

    Raises:
        JournalError: the recording can't be replayed: its settings, or no hashes of the prompts' blocks.
    """
    wrong = check_pool(recording.started.num_blocks, config_of(recording.started))
    if wrong:
        raise JournalError(f"run {recording.run}: {wrong}")
    return Replay(recording).run()


class JudgingRecorder(NullRecorder):
    """Hands each event to the script."""

    on = True

    def __init__(self, script: Script) -> None:
        super().__init__()
        self.record = script.record  # type: ignore[method-assign]


class ReplayCore(EngineCore):
    """The engine's core, with time and breakpoints as recorded."""

    script: Script

    def flush(self) -> None:
        """Nothing is written; breakpoints act where the recording has their hits."""

    def drain(self) -> None:
        """Read what is in flight."""
        self._drain()

    def act_on(self, hits: list[Hit]) -> None:
        """Do what follows from breakpoints that were hit."""
        act_on_hits(hits, self.recorder.record, self.clock, self.scheduler, self.book, self._drain)

    @property
    def in_flight_step(self) -> int:
        """The step to be read next; 0: none."""
        return self._in_flight[0].plan.step if self._in_flight else 0

    @property
    def is_reading(self) -> bool:
        """Whether a step's tokens are being dealt with."""
        return self._reading

    def _launch(self, plan: StepPlan) -> None:
        super()._launch(plan)
        read = self.script.recording.read.get(plan.step)
        if read is not None and self._in_flight and self._in_flight[-1].plan is plan:
            self._in_flight[-1].launch_ns = read.launch_ns  # what `auto` measures a prefill by

    def _is_due(self) -> bool:
        return self.script.expects_expiry and super()._is_due()


class Replay:
    """One replay; `run` once."""

    def __init__(self, recording: Recording) -> None:
        started = recording.started
        self.config = config_of(started)
        _require_hashes(recording, self.config.prefix_cache)
        self.script = Script(recording)
        self._recording = recording
        self._tokens = Tokens(recording.hashes, started.block_size)
        self._runner = ScriptedRunner(
            recording, self.script, self._tokens, self.config.host_blocks, self.config.disk_blocks
        )
        self._ending: set[str] = set()  # requests whose abort is under way
        self.core = ReplayCore(
            self.config, self._runner, JudgingRecorder(self.script), started, overlap=recording.overlap,
            clock=self.script.clock,
        )  # fmt: skip
        self.core.script = self.script
        self._callbacks = Callbacks(recording, self.script, self._runner, self.core)
        self.script.snapshot = self.core.keyframe

    def run(self) -> Result:
        """Replay to the end of the recording, or to the first divergence."""
        script, found = self.script, None
        with _quiet():
            try:
                while (event := script.next) is not None:
                    at = script.index
                    try:
                        self._perform(event)
                    except Interrupted:
                        pass  # as it did in the recorded run; the engine went on
                    except Exception as error:
                        script.diverge(None, [f"the engine raises {describe(error)}"])
                    script.check_read()
                    if script.index == at:
                        script.diverge(None, [f"{tag(event)} was recorded, the engine does nothing"])
            except Divergence as divergence:
                found = divergence
        return Result(script.index, self.core.scheduler.step, found)

    def _perform(self, event: AnyEvent) -> None:
        """Give the command that an event tells of, or let the engine step."""
        core = self.core
        if isinstance(event, SwapFinished):  # of moves that something waits for
            event = self.script.after_moves() or event
        if self._command(event):
            return
        if isinstance(event, BreakpointHit):
            hits = self._hits()
            self._callbacks.pausing = {hit.seq for hit in hits if hit.action == "sequence"}
            core.act_on(hits)
            self._callbacks.pausing = set()
        elif isinstance(event, EngineStopped):
            core.close(event.reason)
        elif isinstance(event, EngineError) and not event.message.startswith(f"step {core.in_flight_step} failed: "):
            core.die(event.message)
        elif isinstance(event, StepFinished | EngineError):
            core.drain()  # a step that finds nothing to plan comes to the same
        else:
            core.step()

    def _command(self, event: AnyEvent) -> bool:
        """Give the command that an event tells of; False where it tells of none."""
        core = self.core
        if isinstance(event, RequestArrived):
            self._add(event)
        elif isinstance(event, PriorityChanged):
            core.set_priority([self._live(event.seq)], event.priority)
        elif isinstance(event, SequenceResumed):
            seq = self._live(event.seq)
            start = len(seq.token_ids)
            appended = self._tokens.span(seq.seq_id, start, start + event.num_appended)
            core.resume([seq], appended, [event.max_tokens])
        elif isinstance(event, EnginePaused) and event.cause != "steps":
            core.pause_engine(event.cause)
        elif isinstance(event, EngineContinued):
            core.continue_engine(event.num_steps)
        elif isinstance(event, StatusChanged) and event.reason == "aborted":
            self._abort(self._live(event.seq).request_id)
        elif isinstance(event, StatusChanged) and event.reason == "delivered":
            core.finish([self._live(event.seq)])
        elif is_pause(event):
            core.pause([self._live(event.seq)], event.reason)
        else:
            return False
        return True

    def _abort(self, request: str) -> None:
        self._ending.add(request)
        try:
            self.core.abort(request)
        finally:
            self._ending.discard(request)

    def _add(self, event: RequestArrived) -> None:
        first = event.seqs[0] if event.seqs else -1
        request = ReplayRequest(
            event.request, None, self._tokens.span(first, 0, event.num_prompt_tokens), params_of(event),
            on_output=self._hook(event.request), on_finish=self._hook(event.request),
            on_pause=self._hook(event.request), fails=self._fail_text, delivered=self._delivered,
        )  # fmt: skip
        try:
            self.core.add(request)
        except InvalidRequest as error:
            self.script.diverge(None, [f"request {event.request} is refused now: {error}"])
        for seq in request.sequences[1:]:  # the end of a prompt, which fills no block, may be a full block's beginning
            seq.token_ids = self._tokens.span(seq.seq_id, 0, len(seq.token_ids))

    def _hits(self) -> list[Hit]:
        """The breakpoints that were hit."""
        found = []
        for event in self.script.frame:
            if not isinstance(event, BreakpointHit):
                break
            found.append(Hit(event.breakpoint, event.predicate, event.action, event.event, event.seq))
        return found

    def _live(self, seq_id: int) -> Sequence:
        seq = self.core.book.live_sequence(seq_id)
        if seq is None:
            self.script.diverge(None, [f"sequence {seq_id} is not live now"])
            raise AssertionError
        return seq

    # Within callbacks

    def _hook(self, request: str) -> Callable[[Delta | RequestOutput], None]:
        return lambda output: self._called_back(request)

    def _called_back(self, request: str) -> None:
        """Give the commands that came out of a callback: they are in the frame of what called it."""
        script, core = self.script, self.core
        while (event := script.next) is not None:
            if isinstance(event, SwapFinished):
                if event.error and event.error == script.failure:
                    return  # lost with the step that failed, once all have been called back
                event = script.after_moves() or event
            at = script.index
            if not script.goes_on or not self._callbacks.is_due(event, self._ending):
                return
            reads = isinstance(event, StepFinished) and self._callbacks.reads(request)
            if not self._command(event):
                if reads:
                    core.drain()
                elif self._callbacks.settles(event, request):
                    self._abort(event.request)
            if script.index == at:
                return

    def _delivered(self, request: ReplayRequest, index: int) -> None:
        self._runner.unread.pop(request.sequences[index].seq_id, None)

    def _fail_text(self, request: ReplayRequest, index: int) -> None:
        why, event = self._recording.text_errors.get(request.sequences[index].seq_id), self.script.next
        if why is None or not isinstance(event, StatusChanged) or event.new != "ERROR":
            return
        if any(seq.seq_id == event.seq for seq in request.sequences):
            raise error_of(why)


def _require_hashes(recording: Recording, prefix_cache: bool) -> None:
    size = recording.started.block_size
    for arrived in recording.arrivals if prefix_cache else ():
        if arrived.num_prompt_tokens >= size and not arrived.block_hashes:
            raise JournalError(
                f"request {arrived.request} arrived without the hashes of its blocks: the journal of nanolens "
                f"{recording.started.version} does not hold them, and a replay can't tell which prompts share"
            )


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the engine's own log silent: it would tell errors of the recorded run as if they were of now."""
    logger = logging.getLogger("nanolens.engine")

    def drop(record: logging.LogRecord) -> bool:
        return False

    logger.addFilter(drop)
    try:
        yield
    finally:
        logger.removeFilter(drop)
