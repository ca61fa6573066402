"""A runner that computes nothing: what steps and moves gave, and where they failed, is read from the recording."""

from __future__ import annotations

from typing import Any

from ...engine.plan import MoveResult, StepPlan, StepResult
from ...errors import OutOfDeviceMemory
from ...telemetry.events import EngineError, StatusChanged, StepRetried, SwapFinished
from .recording import Recording
from .script import Script
from .tokens import Tokens

UNSOUND = "; the device no longer computes"
_INTERRUPTS = ("KeyboardInterrupt", "SystemExit", "GeneratorExit")


class Interrupted(BaseException):
    """Stands for what is no Exception and came out of the engine in the recorded run."""


class ScriptedRunner:
    """Gives each sampling sequence its recorded token, as far as one can tell: a stop where it stopped.

    Attributes:
        reading: the step that was collected last.
        unread: its sampling sequences whose token has not been passed on yet, with their place in the reading.
    """

    def __init__(
        self, recording: Recording, script: Script, tokens: Tokens, host_blocks: int, disk_blocks: int
    ) -> None:
        self.num_blocks = recording.started.num_blocks
        self.host_blocks, self.disk_blocks = host_blocks, disk_blocks
        self.swap_ns_per_block = recording.ready.get("swap_ns_per_block", 0)
        self.vocab_size = recording.started.vocab_size
        self.reading = 0
        self.unread: dict[int, int] = {}
        self._recording = recording
        self._script = script
        self._tokens = tokens
        self._timed: set[int] = set()
        self._place = 0

    def launch(self, plan: StepPlan) -> Any:
        """Take a plan; fail as it did."""
        event = self._script.next
        if isinstance(event, StepRetried) and event.step == plan.step:
            raise error_of(event.error)
        self._fail_as_recorded(plan)
        return plan

    def collect(self, handle: Any) -> StepResult:
        """What a plan gave, or the error that it ended with."""
        plan: StepPlan = handle
        self._fail_as_recorded(plan)
        result = StepResult(tokens=[], moved=_results(self._recording.moved.get(plan.step, [])))
        if plan.step != self.reading:  # else it is another part of it
            self.reading, self.unread, self._place = plan.step, {}, 0
        for seq, start, count, samples, epoch in zip(
            plan.sequences, plan.starts, plan.counts, plan.samples, plan.epochs, strict=True
        ):
            key = seq.seq_id, plan.step
            if key in self._recording.row_errors:
                result.failed[seq.seq_id] = self._recording.row_errors[key]
            if not samples:
                continue
            token = self._tokens.at(seq.seq_id, start + count)
            result.tokens.append(token)
            if seq.epoch == epoch:
                self.unread[seq.seq_id] = self._place
                self._place += 1
                seq.stop_token_ids = frozenset((token,)) if key in self._recording.stops else frozenset()
        read = self._recording.read.get(plan.step)
        if read is not None and plan.step not in self._timed:  # a part of it, where it was launched in parts
            self._timed.add(plan.step)
            result.device_ns, result.wait_ns = read.device_ns, read.wait_ns
        return result

    def finish_moves(self) -> list[MoveResult]:
        """The moves that are told next."""
        return _results(self._script.moves())

    def is_sound(self) -> bool:
        """Whether the engine went on after the error."""
        event = self._script.next
        return not (isinstance(event, EngineError) and event.message.endswith(UNSOUND))

    def look(self) -> str:
        """Nothing fails between two steps."""
        return ""

    def close(self) -> None:
        """There is nothing to give back."""

    def _fail_as_recorded(self, plan: StepPlan) -> None:
        event, head = self._script.next, f"step {plan.step} failed: "
        if not isinstance(event, EngineError) or event.step != plan.step or not event.message.startswith(head):
            return
        ended = next((e for e in self._script.frame if isinstance(e, StatusChanged) and e.new == "ERROR"), None)
        culprit = -1 if ended is None else ended.seq if ended.cause < 0 else ended.cause
        if culprit < 0 or any(seq.seq_id == culprit for seq in plan.sequences):  # not of the step's other part
            raise error_of(event.message.removeprefix(head))


def _results(events: list[SwapFinished]) -> list[MoveResult]:
    return [MoveResult(e.move, e.num_bytes, e.duration_ns, e.error) for e in events]


def error_of(described: str) -> BaseException:
    """An error that `describe` would tell in these words."""
    name, _, message = described.partition(": ")
    if not name.isidentifier():
        name, message = "Error", described
    base: type[BaseException] = Exception
    if name in _INTERRUPTS:
        base = Interrupted
    elif name == "OutOfDeviceMemory":
        return OutOfDeviceMemory(message)
    error: BaseException = type(name, (base,), {})(message)
    return error
