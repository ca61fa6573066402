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
    boot_id: str = ""  # of the kernel that counted its clock, where that tells


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


class EnginePaused(Event, tag="engine.paused"):
    """From here on nothing is planned until `engine.continued`."""

    t: int
    step: int
    cause: str  # operator, steps (those granted are done), or "breakpoint N"


class EngineContinued(Event, tag="engine.continued"):
    """Planning goes on: for `num_steps` steps, or until paused again where that is 0."""

    t: int
    step: int
    num_steps: int


class BreakpointHit(Event, tag="breakpoint.hit"):
    """An event met the predicate of a breakpoint; the event stands before this one, in the same step or the last."""

    t: int
    step: int
    breakpoint: int
    predicate: str
    event: str  # its tag
    seq: int  # the sequence that it names, or -1
    action: str  # engine (it pauses), sequence (this one pauses)


class RequestArrived(Event, tag="request.arrived"):
    """A valid request was accepted; its sequences follow as transitions to WAITING ("arrived").

    Where a fleet's router sent it, `route` holds what it decided on: `replica`, `reason` (prefix, load, no_blocks,
    only, full, pinned), `matched_blocks` (of the prompt, that it believed this replica to cache; what was found is in
    prefix.matched), `known_ms` (how old its knowledge of that cache was, at most), `best_matched_blocks` (that it
    believed any to cache), `prompt_blocks`, `load` (requests that this replica held), `least_load` (that any held),
    `replicas` (that "any" is one of: those that could have got it, or all for pinned), `attempt` (1: the first) and,
    in later ones, `left` (replicas that did not answer it).
    """

    t: int
    request: str
    seqs: list[int]
    num_prompt_tokens: int
    max_tokens: int
    priority: int
    params: dict[str, Union[str, int, float, bool, None]]  # no content: numbers and flags only
    traceparent: str | None = None
    prompt_token_ids: list[int] | None = None  # only with journal_content
    block_hashes: bytes = b""  # 8 bytes a full block of the prompt: equal ones stand for equal tokens and prefixes
    route: dict[str, Union[str, int]] | None = None  # None without a router


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
    kept: int = 0  # RUNNING -> PAUSED: computed tokens whose KV it keeps; work in flight is void
    cause: int = -1  # the sibling whose error ended this sequence, or -1


class WaitReasonChanged(Event, tag="sequence.waits"):
    """Why a waiting sequence waits, recorded when it changes."""

    t: int
    step: int
    seq: int
    reason: str


class SequenceResumed(Event, tag="sequence.resumed"):
    """A paused sequence goes on; its transition out of PAUSED follows."""

    t: int
    step: int
    seq: int
    num_appended: int  # tokens that the caller put after what the sequence had
    max_tokens: int  # tokens that it may have generated in all, from now on
    appended_token_ids: list[int] | None = None  # only with journal_content
    block_hashes: bytes = b""  # as on arrival, if tokens were appended: from the block of the last token before them on


class PriorityChanged(Event, tag="sequence.priority"):
    """A live sequence's priority; lower is more urgent."""

    t: int
    step: int
    seq: int
    priority: int


class PrefixMatched(Event, tag="prefix.matched"):
    """The prefix-cache look-up of an admission. Counts are tokens.

    `recompute` marks any admission but a sequence's first: its hits are its own work found again, and never
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


class BlocksDuplicate(Event, tag="blocks.duplicate"):
    """Full, computed blocks of a sequence whose content is cached in another block: they stay out of the cache."""

    t: int
    step: int
    seq: int
    blocks: list[int]
    hashes: bytes  # 8 bytes a block


class BlocksFreed(Event, tag="blocks.freed"):
    """A sequence gave up its whole table, in this order (its tail first); shared blocks only lose a reference.

    An entry below 0 is a slot of the swap space (see `BlocksSwapped`); slots are not in `free`.
    """

    t: int
    step: int
    seq: int
    blocks: list[int]
    free: int  # free blocks afterwards
    lost: int = 0  # computed tokens that a sequence which lives on, not preempted just now, has to compute again


class BlocksSwapped(Event, tag="blocks.swapped"):
    """Entries of a sequence's table changed their place: `targets[i]` stands where `sources[i]` stood.

    An entry >= 0 is a block on the device, -1 - s is slot s of the swap space: slots below host_blocks are in host
    memory, those from there on in the swap file. Both lists are in table order. Sources are given up at once, the last
    one first; a block that others share only loses a reference. `swap.finished` tells when the data has arrived.
    """

    t: int
    step: int
    seq: int
    kind: str  # out (device to host or disk), in (to the device), down (host to disk)
    move: int  # number of the move, from 1; 0: nothing to move, all targets were still cached on the device
    sources: list[int]
    targets: list[int]
    cached: list[int]  # of the targets of kind "in": blocks that still held the content, revived or shared
    evicted: list[int]  # of the other targets: blocks that held cached content, now lost
    free: int  # free device blocks afterwards


class SwapFinished(Event, tag="swap.finished"):
    """A move of blocks is done, or failed: the sequence's KV is then dropped (`blocks.freed`) and computed again."""

    t: int
    step: int
    seq: int
    move: int
    num_bytes: int
    duration_ns: int
    error: str = ""


class BlockCopied(Event, tag="block.copied"):
    """Copy on write: a sibling's partly filled block was copied into a block of this sequence's own.

    `num_tokens` of it count as computed, behind those that `prefix.matched` found.
    """

    t: int
    step: int
    seq: int
    source_seq: int
    source: int
    target: int
    num_tokens: int


class SequencePreempted(Event, tag="sequence.preempted"):
    """A running sequence lost its place; its transition to WAITING follows, then blocks.freed or blocks.swapped."""

    t: int
    step: int
    seq: int
    by: int  # the sequence that gets the blocks; the victim itself when it was the last one
    cause: str  # no_blocks, priority, swap_failed
    mode: str  # recompute, swap
    num_blocks: int
    num_tokens: int  # computed tokens lost
    kept: int = 0  # computed tokens kept in the swap space


class StepPlanned(Event, tag="step.planned"):
    """What a step computes. `t` is when planning ended; what planning did (admissions, allocations) stands before it.

    `chunks` lists prefill work as (sequence, first position, tokens). Every RUNNING sequence in its decode phase
    computes one token in this step unless it is in `idle` or `decodes` is 0.
    A sequence samples one token when the step brings its computed tokens up to all the tokens it has.
    """

    t: int
    step: int
    kind: str  # decode, prefill, mixed, moves (of blocks alone)
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


class StepRanks(Event, tag="step.ranks"):
    """What a step took on each rank, where several share the model. It may come after the next step has ended.

    A rank's own work is what it computed beside the collectives: device_ns - collective_ns. How late it came to them
    (`late_ns`: later than the rank that came first, added up over the step's collectives, on balance) is known on CPUs.
    """

    step: int
    device_ns: list[int]
    collective_ns: list[int]
    late_ns: list[int] = []


class StepRetried(Event, tag="step.retried"):
    """A step did not fit into memory and was launched again in parts; `step.finished` covers them all."""

    t: int
    step: int
    error: str
    parts: int


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


class StreamStalled(Event, tag="stream.stalled"):
    """The reader of a request's stream held it up for `stalled_ns`, until `t`; the engine did not wait for it.

    Stalls are added up: an event holds those since the event before it, of which the last one ended at `t`, which may
    be earlier than events before it in the journal, and later than the end of the request.
    """

    t: int
    request: str
    stalled_ns: int
    pieces: int  # that waited, at most


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
    block_table: list[int]  # blocks, or slots of the swap space as -1 - slot
    first_token_t: int = 0  # 0: none yet
    last_token_t: int = 0
    num_appended_tokens: int = 0  # put in by `resume`, counted neither with the prompt nor with the output


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
    engine_paused: str = ""  # why nothing is planned


AnyEvent = Union[
    EngineStarted, EngineReady, EngineStopped, EngineError, EnginePaused, EngineContinued, BreakpointHit,
    RequestArrived, RequestRefused, RequestFinished, StatusChanged, WaitReasonChanged, SequenceResumed,
    PriorityChanged, PrefixMatched, BlocksAllocated, BlocksCached, BlocksDuplicate, BlocksFreed, BlocksSwapped,
    SwapFinished, BlockCopied, SequencePreempted, StepPlanned, StepFinished, StepRanks, StepRetried, TokensSampled,
    CallbackFailed, JournalDropped, StreamStalled, Mark, Keyframe,
]  # fmt: skip
