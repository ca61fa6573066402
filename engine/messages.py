"""What an engine's process and the one that uses it say to each other: msgpack records over a pipe, no pickles.

What the single commands mean to an engine is not known here, nor how messages get there and back.
"""

from __future__ import annotations

import re
from typing import Union

import msgspec

from .. import errors
from ..errors import InvalidRequest, NanolensError
from ..telemetry.events import EngineStarted
from . import commands as c
from .commands import Command
from .config import EngineConfig
from .outputs import Delta
from .request import describe
from .sampling_params import SamplingParams

_BUILTIN = (TypeError, ValueError, LookupError, OSError, ImportError, MemoryError, NotImplementedError, RuntimeError)
_KINDS: dict[str, type[Exception]] = {kind.__name__: kind for kind in _BUILTIN} | {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, NanolensError)
}
_UNPACKABLE = (TypeError, ValueError, OverflowError)  # what msgpack has no form for
_FIELD = re.compile(r" - at `\$\.(\w+)")


class Fault(msgspec.Struct, array_like=True):
    """An exception on its way between processes."""

    kind: str  # its class
    message: str
    field: str = ""  # of an InvalidRequest

    @classmethod
    def of(cls, error: BaseException) -> Fault:
        """Pack an exception: as the closest of the classes that the other side can raise."""
        known = next((kind.__name__ for kind in type(error).__mro__ if _KINDS.get(kind.__name__) is kind), None)
        message = describe(error)
        if known is not None:
            message = message.removeprefix(f"{type(error).__name__}: ")
        return cls(known or "NanolensError", message, error.field if isinstance(error, InvalidRequest) else "")

    def unpack(self) -> Exception:
        """The exception, to be raised."""
        kind = _KINDS.get(self.kind, NanolensError)
        return kind(self.field, self.message) if issubclass(kind, InvalidRequest) else kind(self.message)


class Start(msgspec.Struct):
    """The first message to the engine's process."""

    config: EngineConfig


class Envelope(msgspec.Struct, array_like=True):
    """What carries a command: so that one which can't be read can still be answered."""

    call: int  # number of the call, which its answer repeats; 0: no answer is wanted
    body: msgspec.Raw


class Add(Command):
    """Queue a request; answered by its id. Its outputs carry the number of this call as their stream."""

    prompt: Union[str, list[int]]
    params: SamplingParams
    request_id: str
    traceparent: str | None
    deltas: bool  # whether someone reads each piece, or only the end
    route: dict[str, Union[str, int]] | None = None


class Resume(Command):
    """Continue a paused request; its outputs stay in their stream."""

    request_id: str
    append: Union[str, list[int], None]
    max_tokens: int | None
    index: int | None
    deltas: bool


class Finish(Command):
    """End a paused request; answered by its RequestOutput."""

    request_id: str


class Abandon(Command):
    """Abort the request of a stream that nobody reads any more."""

    stream: int


class Refuse(Command):
    """Record a request that can't be sent, for its parameters are none that a message holds."""

    request_id: str
    field: str
    message: str
    traceparent: str | None


class Ping(Command):
    """Answered at once, whatever the loop does: seconds since its last turn began."""


class Close(Command):
    """End the engine and its process in order."""


AnyCommand = Union[
    Add, Resume, Finish, Abandon, Refuse, Ping, Close, c.Abort, c.Pause, c.SetPriority, c.Snapshot, c.PauseEngine,
    c.ContinueEngine, c.AddBreakpoint, c.RemoveBreakpoint, c.Breakpoints, c.Mark, c.NoteStall, c.AskProgress, c.Locate,
]  # fmt: skip


class Ready(msgspec.Struct, tag=True, array_like=True):
    """The model is loaded; commands are taken."""

    started: EngineStarted
    metrics_port: int | None = None  # where the exporter's process serves them


class StartFailed(msgspec.Struct, tag=True, array_like=True):
    """There will be no engine; the process ends."""

    fault: Fault


class Answer(msgspec.Struct, tag=True, array_like=True):
    """A call's result; whoever called knows its type."""

    call: int
    result: msgspec.Raw


class Failed(msgspec.Struct, tag=True, array_like=True):
    """A call's exception."""

    call: int
    fault: Fault


class Outputs(msgspec.Struct, tag=True, array_like=True):
    """What one turn of the loop gave, over all streams. An end, or a pause, comes after the deltas before it."""

    deltas: list[tuple[int, Delta]]  # (stream, piece)
    ends: list[tuple[int, msgspec.Raw]]  # (stream, RequestOutput of a request that has ended or is paused)


class Gone(msgspec.Struct, tag=True, array_like=True):
    """The last message: the engine has ended, and why."""

    reason: str


Report = Union[Ready, StartFailed, Answer, Failed, Outputs, Gone]

encode = msgspec.msgpack.Encoder().encode
decode_start = msgspec.msgpack.Decoder(Start).decode
decode_report = msgspec.msgpack.Decoder(Report).decode
_decode_envelope = msgspec.msgpack.Decoder(Envelope).decode
_decode_command = msgspec.msgpack.Decoder(AnyCommand).decode


def pack(value: object) -> msgspec.Raw:
    """A value as it is now; later changes of it don't reach the other side."""
    return msgspec.Raw(encode(value))


def encode_command(call: int, command: Command) -> bytes:
    """A command's bytes.

    Raises:
        InvalidRequest: naming the field that no message can hold.
    """
    try:
        return encode(Envelope(call, pack(command)))
    except _UNPACKABLE:
        for field in command.__struct_fields__:
            try:
                encode(getattr(command, field))
            except _UNPACKABLE as error:
                raise InvalidRequest(field, f"{field}: {error}") from None
        raise


def decode_command(data: bytes) -> tuple[int, AnyCommand | Fault]:
    """The number of a call and its command, or what is wrong with it."""
    envelope = _decode_envelope(data)
    try:
        return envelope.call, _decode_command(envelope.body)
    except msgspec.ValidationError as error:
        found = _FIELD.search(str(error))
        field = found[1] if found else "command"
        return envelope.call, Fault.of(InvalidRequest(field, f"{field}: {str(error).partition(' - at ')[0]}"))
