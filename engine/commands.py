"""What an engine in another process can be asked for, in a call of its own: commands that know that call.

How they get there and back is not known here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from .progress import Progress

if TYPE_CHECKING:
    from .engine import Engine


class Command(msgspec.Struct, tag=True):
    """Base of what the engine's process can be asked for."""


class EngineCommand(Command):
    """A command that is one call of the engine, in its loop, between two steps."""

    def run(self, engine: Engine) -> Any:
        """Do it; the result has to be one that msgpack can hold."""
        raise NotImplementedError


class Abort(EngineCommand):
    """`Engine.abort`."""

    request_id: str

    def run(self, engine: Engine) -> bool:
        """Whether there was such a request."""
        return engine.abort(self.request_id)


class Pause(EngineCommand):
    """`Engine.pause`."""

    request_id: str
    index: int | None
    reason: str

    def run(self, engine: Engine) -> bool:
        """Whether a sequence was paused now."""
        return engine.pause(self.request_id, self.index, self.reason)


class SetPriority(EngineCommand):
    """`Engine.set_priority`."""

    request_id: str
    priority: int

    def run(self, engine: Engine) -> None:
        """Nothing comes back."""
        engine.set_priority(self.request_id, self.priority)


class Snapshot(EngineCommand):
    """`Engine.snapshot`."""

    def run(self, engine: Engine) -> Any:
        """A Keyframe, with the run's counters up to the last step."""
        keyframe = engine.snapshot()
        keyframe.totals = engine.core.recorder.totals.snapshot()
        return keyframe


class PauseEngine(EngineCommand):
    """`Engine.pause_engine`."""

    cause: str

    def run(self, engine: Engine) -> None:
        """Nothing comes back."""
        engine.pause_engine(self.cause)


class ContinueEngine(EngineCommand):
    """`Engine.continue_engine`."""

    num_steps: int

    def run(self, engine: Engine) -> None:
        """Nothing comes back."""
        engine.continue_engine(self.num_steps)


class AddBreakpoint(EngineCommand):
    """`Engine.add_breakpoint`."""

    predicate: str
    action: str

    def run(self, engine: Engine) -> int:
        """The breakpoint's number."""
        return engine.add_breakpoint(self.predicate, self.action)


class RemoveBreakpoint(EngineCommand):
    """`Engine.remove_breakpoint`."""

    number: int

    def run(self, engine: Engine) -> bool:
        """Whether there was such a breakpoint."""
        return engine.remove_breakpoint(self.number)


class Breakpoints(EngineCommand):
    """`Engine.breakpoints`."""

    def run(self, engine: Engine) -> dict[int, str]:
        """Predicates by number."""
        return dict(engine.breakpoints)


class Mark(EngineCommand):
    """`Engine.mark`."""

    text: str
    origin: str

    def run(self, engine: Engine) -> None:
        """Nothing comes back."""
        engine.mark(self.text, self.origin)


class NoteStall(EngineCommand):
    """`Engine.note_stall`."""

    request_id: str
    stalled_ns: int
    pieces: int
    end_t: int

    def run(self, engine: Engine) -> None:
        """Nothing comes back."""
        engine.note_stall(self.request_id, self.stalled_ns, self.pieces, self.end_t)


class AskProgress(EngineCommand):
    """`Engine.progress`."""

    def run(self, engine: Engine) -> Progress:
        """The numbers now."""
        return engine.progress


class Locate(EngineCommand):
    """`Engine.locate`."""

    seq: int

    def run(self, engine: Engine) -> list[tuple[str, int]]:
        """The request and the index, if it lives."""
        found = engine.locate(self.seq)
        return [] if found is None else [found]
