"""The closed vocabulary of the journal: every fact that the engine records is one of these structs.

Events are msgspec array-like structs: small on disk, and built in well under a microsecond. Their order in the
journal is the order in which things happened. Times (`t`) are CLOCK_MONOTONIC nanoseconds; `seq` is a sequence id,
`request` a request id. There is never an event per token: a decode token is implied by its step (see `StepPlanned`).
"""

from __future__ import annotations

from typing import Union

import msgspec

JOURNAL_VERSION = 1


class Event(msgspec.Struct, array_like=True, gc=False):
    """Base of all events. Fields are only ever appended, with defaults, so that older journals stay readable."""


class EngineStarted(Event, tag="engine.started"):
    """First event of a run."""

    t: int
    run_id: str
    wall_offset_ns: int  # wall clock (ns since 1970) minus CLOCK_MONOTONIC
    pid: int
    version: str
    model: str
    config: dict[str, Union[str, int, float, bool, None]]
    num_blocks: int
    block_size: int
    vocab_size: int
    max_model_len: int


class EngineReady(Event, tag="engine.ready"):
    """What preparing cost, by name: nanoseconds (`*_ns`), bytes (`*_bytes`) and counts. Follows `engine.started`."""

    t: int
    costs: dict[str, int]


class EngineStopped(Event, tag="engine.stopped"):
    """Last event of a run that ended in order; its absence means the process died."""

    t: int
    reason: str


class EngineError(Event, tag="engine.error"):
    """A fault of the engine itself, not of one request."""

    t: int
    step: int
    message: str


class RequestArrived(Event, tag="request.arrived"):
    """A valid request was accepted; its sequences follow as transitions to WAITING ("arrived")."""

    t: int
    request: str
    seqs: list[int]
    num_prompt_tokens: int
    max_tokens: int
    priority: int
    params: dict[str, Union[str, int, float, bool, None]]  # no content: numbers and flags only
    traceparent: str | None = None
    prompt_token_ids: list[int] | None = None  # only with journal_content


class RequestRefused(Event, tag="request.refused"):
    """A request that was turned away before any state changed."""

    t: int
    request: str
    field: str
    reason: str
    traceparent: str | None = None


class RequestFinished(Event, tag="request.finished"):
    """All sequences of a request have ended."""

    t: int
    request: str
    finish_reason: str  # stop, length, abort, error
    num_prompt_tokens: int
    num_output_tokens: int  # over all its sequences
    num_cached_tokens: int  # of the prompt, at first admission
    error: str | None = None


class StatusChanged(Event, tag="sequence.status"):
    """A transition. `old` is "" for a new sequence."""

    t: int
    step: int
    seq: int
    old: str
    new: str
    reason: str
    request: str = ""  # given on arrival only


class WaitReasonChanged(Event, tag="sequence.waits"):
    """Why a waiting sequence waits, recorded when it changes."""

    t: int
    step: int
    seq: int
    reason: str


class PrefixMatched(Event, tag="prefix.matched"):
    """The prefix-cache look-up of an admission. Counts are tokens.

    `recompute` marks the readmission of a preempted sequence: its hits are its own work found again, and never
    count as prefix hits. `never_seen + evicted + sub_block + hit == queried` for a first admission.
    """

    t: int
    step: int
    seq: int
    queried: int
    hit: int
    never_seen: int
    evicted: int
    sub_block: int
    recompute: bool


class BlocksAllocated(Event, tag="blocks.allocated"):
    """Blocks appended to a sequence's table: first `cached` (shared by reference), then `new`."""

    t: int
    step: int
    seq: int
    cached: list[int]
    new: list[int]
    evicted: list[int]  # those of `new` that held cached content, now lost
    free: int  # free blocks afterwards


class BlocksCached(Event, tag="blocks.cached"):
    """Full, computed blocks of a sequence that entered the prefix cache; `hashes` holds 8 bytes a block."""

    t: int
    step: int
    seq: int
    blocks: list[int]
    hashes: bytes


class BlocksFreed(Event, tag="blocks.freed"):
    """A sequence gave up its whole table, in this order (its tail first); shared blocks only lose a reference."""

    t: int
    step: int
    seq: int
    blocks: list[int]
    free: int  # free blocks afterwards


class SequencePreempted(Event, tag="sequence.preempted"):
    """A running sequence lost its blocks; its transition to WAITING and BlocksFreed follow."""

    t: int
    step: int
    seq: int
    by: int  # the sequence that gets the blocks; the victim itself when it was the last one
    cause: str  # no_blocks, priority
    mode: str  # recompute, swap
    num_blocks: int
    num_tokens: int  # computed tokens lost


class StepPlanned(Event, tag="step.planned"):
    """What a step computes. `t` is when planning ended; what planning did (admissions, allocations) stands before it.

    `chunks` lists prefill work as (sequence, first position, tokens). Every RUNNING sequence in its decode phase
    computes one token in this step unless it is in `idle` or `decodes` is 0.
    A sequence samples one token when the step brings its computed tokens up to all the tokens it has.
    """

    t: int
    step: int
    kind: str  # decode, prefill, mixed
    chunks: list[tuple[int, int, int]]
    decodes: int
    idle: list[int]
    waiting: int
    running: int
    free: int


class StepFinished(Event, tag="step.finished"):
    """The tokens of a step were read. Durations in nanoseconds; `t` is when they were read.

    `wasted` lists sequences whose sampled token was thrown away, because they had ended or been preempted meanwhile,
    or because it was not valid.
    """

    t: int
    step: int
    plan_ns: int
    launch_ns: int
    device_ns: int
    collect_ns: int
    num_tokens: int
    num_sampled: int
    wasted: list[int]
    graph: bool = False
    padding: int = 0
    wait_ns: int = 0  # of collect_ns, what the host waited for the device


class TokensSampled(Event, tag="tokens.sampled"):
    """The tokens of a step, in the order of its sampling sequences; only with journal_content."""

    step: int
    seqs: list[int]
    tokens: list[int]


class CallbackFailed(Event, tag="callback.failed"):
    """A user's callback raised; the engine went on."""

    t: int
    request: str
    message: str


class JournalDropped(Event, tag="journal.dropped"):
    """Frames that could not be written (disk full, directory gone), or events that can't be encoded, were lost here."""

    t: int
    events: int
    frames: int
    reason: str


class Mark(Event, tag="mark"):
    """A note put into the journal by a person or a tool."""

    t: int
    text: str
    origin: str


class SequenceSnapshot(msgspec.Struct, array_like=True, gc=False):
    """One live sequence, as the engine itself sees it."""

    seq: int
    request: str
    status: str
    phase: str  # prefill, decode
    reason: str  # of the last transition
    wait_reason: str  # "" unless WAITING
    residency: str  # none, device, host, disk
    priority: int
    arrived_t: int
    status_t: int  # when it entered its status
    num_prompt_tokens: int
    num_output_tokens: int  # sampled and read
    num_computed_tokens: int  # planned steps count as done
    num_cached_tokens: int  # of the prompt, at first admission
    prefill_target: int  # the prefill phase ends when num_computed_tokens reaches it
    max_tokens: int
    num_preemptions: int
    block_table: list[int]
    first_token_t: int = 0  # 0: none yet
    last_token_t: int = 0


class Keyframe(Event, tag="keyframe"):
    """The whole state at one point between events, so that a reader can join here.

    `cached_blocks` lists the blocks with cached content, `cached_hashes` 8 bytes and `cached_by` the filling
    sequence for each. `free_blocks` is the free list, next to be reused first.
    """

    t: int
    step: int
    started: EngineStarted
    sequences: list[SequenceSnapshot]  # every live one
    waiting: list[int]  # in queue order
    running: list[int]  # by id
    cached_blocks: list[int]
    cached_hashes: bytes
    cached_by: list[int]
    free_blocks: list[int]
    totals: dict[str, int]  # counters since the run began; names in telemetry/state.py


AnyEvent = Union[
    EngineStarted, EngineReady, EngineStopped, EngineError, RequestArrived, RequestRefused, RequestFinished,
    StatusChanged, WaitReasonChanged, PrefixMatched, BlocksAllocated, BlocksCached, BlocksFreed, SequencePreempted,
    StepPlanned, StepFinished, TokensSampled, CallbackFailed, JournalDropped, Mark, Keyframe,
]  # fmt: skip
