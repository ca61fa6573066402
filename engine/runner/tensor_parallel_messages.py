"""What a driver and the processes of its ranks say to each other: msgpack records over a pipe for each rank."""

from __future__ import annotations

from typing import Union

import msgspec

from ..config import EngineConfig
from ..messages import Fault
from ..plan import MoveResult, StepResult


class Record(msgspec.Struct, array_like=True):
    """Base of all messages."""


class Start(Record, tag="start"):
    """The first message to a rank: all of its configuration."""

    config: EngineConfig
    rank: int
    num_tokens: int  # ids from here on are never sampled
    target: str  # `module:function` that builds the runner, see `tensor_parallel_rank`
    parent: int  # the driver's process


class Meet(Record, tag="meet"):
    """Where ranks find each other: from rank 0, and on to the others."""

    address: str


class Pool(Record, tag="pool"):
    """KV blocks: as many as a rank has room for, and, back to it, as all have."""

    num_blocks: int


class Ready(Record, tag="ready"):
    """A rank has built its runner, which is like this."""

    num_blocks: int
    host_blocks: int
    disk_blocks: int
    swap_ns_per_block: int
    vocab_size: int
    max_model_len: int
    startup: dict[str, int]
    is_asynchronous: bool  # whether a launched step runs beside the rank's process


class Step(Record, tag="step"):
    """A plan is in shared memory."""

    number: int
    offset: int
    length: int


class FinishMoves(Record, tag="finish_moves"):
    """Wait for all moves; every rank answers with `Moved`."""

    number: int


class Close(Record, tag="close"):
    """End in order."""


class Done(Record, tag="done"):
    """What a step gave; from rank 0."""

    number: int
    result: StepResult


class Moved(Record, tag="moved"):
    """Moves that ended: an answer, or with a step's end."""

    number: int
    moved: list[MoveResult]


class Failed(Record, tag="failed"):
    """The rank can't go on."""

    fault: Fault
    t: int  # monotonic ns: the others fail after the first
    trace: str = ""  # where it happened, of an error that nobody expects


Order = Union[Start, Meet, Pool, Step, FinishMoves, Close]
Report = Union[Meet, Pool, Ready, Done, Moved, Failed]

encode = msgspec.msgpack.Encoder().encode
decode_order = msgspec.msgpack.Decoder(Order).decode
decode_report = msgspec.msgpack.Decoder(Report).decode
