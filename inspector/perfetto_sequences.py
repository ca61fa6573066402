"""Perfetto tracks of requests and, under each, of its sequences: states as slices, what happened to it as instants.

Knows the meaning of events as telemetry/events.py states it. Keeps what lives, and the tracks of requests that ended
lately, since the word of a slow reader may come after the end.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..telemetry.events import (
    BlockCopied,
    BlocksAllocated,
    BlocksFreed,
    BlocksSwapped,
    CallbackFailed,
    Keyframe,
    PrefixMatched,
    PriorityChanged,
    RequestArrived,
    RequestFinished,
    SequencePreempted,
    SequenceResumed,
    SequenceSnapshot,
    StatusChanged,
    StreamStalled,
    WaitReasonChanged,
)
from .perfetto_steps import words
from .perfetto_wire import BY_TIME, NO_ARGS, Arg, Args, TraceWriter
from .route_words import route_sentence

FINAL = ("FINISHED", "ERROR")
MOST_ENDED = 4096


@dataclass(slots=True)
class _Request:
    track: int
    seqs: list[int]
    live: bool = True
    stream: int = 0  # the track of its reader's delays, once it has one
    stalled_t: int = 0  # when the last of these ended


@dataclass(slots=True)
class _Sequence:
    """A sequence's track. `slices` are open on it: its state, and within that a wait's reason or a phase."""

    track: int
    request: str
    slices: int = 0


class SequenceTracks:
    """Tracks of requests and sequences.

    Attributes:
        prefilling: RUNNING sequences whose prompt is not all computed and read.
    """

    def __init__(self, writer: TraceWriter, process: int) -> None:
        self._writer = writer
        self._group = writer.track("Requests", process, children=BY_TIME)
        self._requests: dict[str, _Request] = {}
        self._sequences: dict[int, _Sequence] = {}
        self._ended: dict[str, None] = {}  # requests that ended, in that order
        self._num_preemptions = 0
        self.prefilling: set[int] = set()

    def name_of(self, seq: int) -> str:
        """The request of a sequence, or ""."""
        found = self._sequences.get(seq)
        return found.request if found is not None else ""

    # Requests

    def arrived(self, e: RequestArrived) -> None:
        """A request came."""
        args: dict[str, Arg] = {"prompt tokens": e.num_prompt_tokens, "max_tokens": e.max_tokens}
        if e.route:
            args["route"] = route_sentence(e.route)
        self._open(e.request, e.t, args | {"priority": e.priority}, e.seqs)

    def _open(self, name: str, t: int, args: Args, seqs: list[int]) -> _Request:
        if name in self._ended:  # an id that is used again
            self._forget(name)
        request = _Request(self._writer.track(name, self._group), [])
        self._requests[name] = request
        self._writer.begin(request.track, t, "request", args)
        for seq in seqs:
            self._add(seq, name)
        return request

    def _add(self, seq: int, name: str) -> _Sequence:
        request = self._requests[name]
        request.seqs.append(seq)
        track = self._writer.track(f"seq {seq}", request.track, len(request.seqs))
        found = self._sequences[seq] = _Sequence(track, name)
        return found

    def finished(self, e: RequestFinished) -> None:
        """All its sequences have ended."""
        args: dict[str, Arg] = {
            "finish_reason": e.finish_reason, "output tokens": e.num_output_tokens, "cached tokens": e.num_cached_tokens
        }  # fmt: skip
        if e.error:
            args["error"] = e.error
        self._end(e.request, e.t, args)

    def _end(self, name: str, t: int, args: Args) -> None:
        request = self._requests.get(name)
        if request is None or not request.live:
            return
        self._writer.end(request.track, t, args)
        request.live = False
        self._ended[name] = None
        if len(self._ended) > MOST_ENDED:
            self._forget(next(iter(self._ended)))

    def _forget(self, name: str) -> None:
        """Let go of a request that has ended."""
        del self._ended[name]
        for seq in self._requests.pop(name).seqs:
            self._sequences.pop(seq, None)

    def stalled(self, e: StreamStalled) -> None:
        """Its reader was slow."""
        request = self._requests.get(e.request)
        if request is None:
            request = _Request(0, [])
            parent, name = self._group, f"{e.request} stream"
        else:
            parent, name = request.track, "stream"
        if not request.stream:
            request.stream = self._writer.track(name, parent)
        begin = max(e.t - e.stalled_ns, request.stalled_t)
        self._writer.begin(request.stream, begin, "back-pressure", {"pieces": e.pieces})
        self._writer.end(request.stream, max(e.t, begin))
        request.stalled_t = max(e.t, begin)

    def callback_failed(self, e: CallbackFailed) -> None:
        """A callback of a request raised."""
        request = self._requests.get(e.request)
        self._writer.instant(request.track if request else self._group, e.t, "callback failed", {"message": e.message})

    # States

    def status(self, e: StatusChanged) -> None:
        """A transition."""
        found = self._sequences.get(e.seq)
        if found is None:
            return
        self._close(found, e.t)
        self.prefilling.discard(e.seq)
        args: dict[str, Arg] = {"reason": e.reason, "step": e.step}
        if e.kept:
            args["kept tokens"] = e.kept
        if e.cause >= 0:
            args["cause"] = f"seq {e.cause}"
        if e.new in FINAL:
            self._writer.instant(found.track, e.t, e.new, args)
            return
        self._enter(found, e.t, e.new, args)
        if e.new == "RUNNING":
            self.prefilling.add(e.seq)
            self._enter(found, e.t, "prefill")

    def waits(self, e: WaitReasonChanged) -> None:
        """The reason of a wait changed."""
        found = self._sequences.get(e.seq)
        if found is None or not found.slices:
            return
        if found.slices > 1:
            self._leave(found, e.t)
        if e.reason:
            self._enter(found, e.t, e.reason, {"step": e.step})

    def prefilled(self, seq: int, t: int) -> None:
        """All its tokens are computed, and the step that did so was read."""
        found = self._sequences.get(seq)
        if found is not None and seq in self.prefilling:
            self.prefilling.discard(seq)
            self._leave(found, t)
            self._enter(found, t, "decode")

    def first_token(self, seq: int, t: int) -> None:
        """It has a token."""
        found = self._sequences.get(seq)
        if found is not None:
            self._writer.instant(found.track, t, "first token")

    def _enter(self, found: _Sequence, t: int, name: str, args: Args = NO_ARGS) -> None:
        self._writer.begin(found.track, t, name, args)
        found.slices += 1

    def _leave(self, found: _Sequence, t: int, args: Args = NO_ARGS) -> None:
        self._writer.end(found.track, t, args)
        found.slices -= 1

    def _close(self, found: _Sequence, t: int, args: Args = NO_ARGS) -> None:
        while found.slices:
            self._leave(found, t, args)

    # What happens to a sequence

    def preempted(self, e: SequencePreempted) -> None:
        """An arrow leads from here to who gets the blocks."""
        victim, by = self._sequences.get(e.seq), self._sequences.get(e.by)
        if victim is None:
            return
        flow = 0
        if by is not None and e.by != e.seq:
            self._num_preemptions += 1
            flow = self._num_preemptions
        args: Args = {
            "by": f"seq {e.by}" if e.by != e.seq else "itself", "cause": e.cause, "mode": e.mode, "step": e.step,
            "blocks": e.num_blocks, "lost tokens": e.num_tokens, "kept tokens": e.kept,
        }  # fmt: skip
        self._writer.instant(victim.track, e.t, "preempted", args, flow)
        if by is not None and flow:
            whom: Args = {"seq": e.seq, "request": victim.request, "cause": e.cause, "step": e.step}
            self._writer.instant(by.track, e.t, "preempts", whom, flow, ends=True)

    def allocated(self, e: BlocksAllocated) -> None:
        """It took blocks."""
        args: dict[str, Arg] = {"step": e.step, "free": e.free}
        self._happened(e.seq, e.t, "blocks allocated", args | _lists(new=e.new, cached=e.cached, evicted=e.evicted))

    def freed(self, e: BlocksFreed) -> None:
        """It gave up its blocks."""
        args: dict[str, Arg] = {"step": e.step, "free": e.free, "lost tokens": e.lost}
        self._happened(e.seq, e.t, "blocks freed", args | _lists(blocks=e.blocks))

    def swapped(self, e: BlocksSwapped) -> None:
        """Its blocks change their place."""
        args: dict[str, Arg] = {"step": e.step, "free": e.free, "move": e.move}
        lists = _lists(sources=e.sources, targets=e.targets, cached=e.cached, evicted=e.evicted)
        self._happened(e.seq, e.t, f"blocks swapped {e.kind}", args | lists)

    def matched(self, e: PrefixMatched) -> None:
        """The prefix cache was asked."""
        args: Args = {
            "step": e.step, "hit": e.hit, "queried": e.queried, "never_seen": e.never_seen, "evicted": e.evicted,
            "sub_block": e.sub_block, "recompute": e.recompute,
        }  # fmt: skip
        self._happened(e.seq, e.t, "prefix matched", args)

    def copied(self, e: BlockCopied) -> None:
        """It copied a sibling's block."""
        args: Args = {"from": f"seq {e.source_seq}", "source": e.source, "target": e.target, "tokens": e.num_tokens}
        self._happened(e.seq, e.t, "block copied", args)

    def resumed(self, e: SequenceResumed) -> None:
        """It goes on."""
        self._happened(e.seq, e.t, "resumed", {"appended tokens": e.num_appended, "max_tokens": e.max_tokens})

    def reprioritised(self, e: PriorityChanged) -> None:
        """Its priority changed."""
        self._happened(e.seq, e.t, "priority", {"priority": e.priority})

    def _happened(self, seq: int, t: int, name: str, args: Args) -> None:
        found = self._sequences.get(seq)
        if found is not None:
            self._writer.instant(found.track, t, name, args)

    # Gaps

    def lose(self, t: int) -> None:
        """What is going on is not known from here on."""
        for found in self._sequences.values():
            self._close(found, t, {"cut": True})
        self.prefilling.clear()

    def join(self, e: Keyframe, lost_t: int) -> None:
        """Go on with what a keyframe holds; states that began before `lost_t`, 0 for never, begin with the keyframe."""
        live = {s.request for s in e.sequences}
        for name in [name for name, request in self._requests.items() if request.live and name not in live]:
            self._end(name, lost_t, {"cut": True})
        for s in e.sequences:
            request = self._requests.get(s.request)
            if request is None or not request.live:
                args: Args = {"prompt tokens": s.num_prompt_tokens, "max_tokens": s.max_tokens, "priority": s.priority}
                self._open(s.request, s.arrived_t, args, [])
            found = self._sequences.get(s.seq) or self._add(s.seq, s.request)
            self._take_over(found, s, max(s.status_t, lost_t), e.t)

    def _take_over(self, found: _Sequence, s: SequenceSnapshot, began: int, t: int) -> None:
        self._enter(found, began, s.status, {"reason": s.reason})
        if s.status == "RUNNING":
            decodes = s.phase == "decode" and s.first_token_t > 0
            if not decodes:
                self.prefilling.add(s.seq)
            self._enter(found, t, "decode" if decodes else "prefill")
        elif s.status == "WAITING" and s.wait_reason:
            self._enter(found, t, s.wait_reason)


def _lists(**lists: list[int]) -> dict[str, Arg]:
    """Lists that hold something: how many, and which."""
    args: dict[str, Arg] = {}
    for name, items in lists.items():
        if items:
            args[name] = len(items)
            args[f"{name} blocks" if name != "blocks" else "which"] = words(items)
    return args
