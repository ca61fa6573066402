"""What events mean for the tracks of the latency model that say nothing of steps: blocks, moves, waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .events import (
    BlockCopied,
    BlocksAllocated,
    BlocksFreed,
    BlocksSwapped,
    BreakpointHit,
    EngineContinued,
    EngineError,
    EnginePaused,
    PrefixMatched,
    RequestFinished,
    StepRanks,
    StepRetried,
    StreamStalled,
    SwapFinished,
    WaitReasonChanged,
)
from .rank_skew import rank_skew
from .tracks import FailedStep, part_of_wait

if TYPE_CHECKING:
    from .latency_tracks import LatencyTracks


def _request_finished(tracks: LatencyTracks, e: RequestFinished) -> None:
    request = tracks.requests.get(e.request)
    if request is None:
        return
    request.finished = e
    failed = tracks.failed
    if failed is None or e.error is None or not e.error.startswith(failed.message):
        return
    for seq in request.seqs:
        track = tracks.tracks[seq]
        if track.status == "ERROR":  # a sibling may have ended before
            track.failed = failed


def _matched(tracks: LatencyTracks, e: PrefixMatched) -> None:
    if not e.recompute:
        tracks.tracks[e.seq].matched = e


def _allocated(tracks: LatencyTracks, e: BlocksAllocated) -> None:
    tracks.tracks[e.seq].hold(e.t, len(e.cached) + len(e.new))


def _copied(tracks: LatencyTracks, e: BlockCopied) -> None:
    track = tracks.tracks[e.seq]
    if not any(run.chunks for run in track.runs):
        track.num_copied_tokens = e.num_tokens


def _freed(tracks: LatencyTracks, e: BlocksFreed) -> None:
    tracks.tracks[e.seq].hold(e.t, -sum(1 for entry in e.blocks if entry >= 0))


def _swapped(tracks: LatencyTracks, e: BlocksSwapped) -> None:
    came = sum(1 for entry in e.targets if entry >= 0) - sum(1 for entry in e.sources if entry >= 0)
    tracks.tracks[e.seq].hold(e.t, came)


def _swap_finished(tracks: LatencyTracks, e: SwapFinished) -> None:
    track = tracks.tracks.get(e.seq)
    if track is not None:
        track.swaps.append(e)


def _engine_paused(tracks: LatencyTracks, e: EnginePaused) -> None:
    if not tracks.pauses or tracks.pauses[-1][1]:
        tracks.pauses.append((e.t, 0, e.cause))


def _engine_continued(tracks: LatencyTracks, e: EngineContinued) -> None:
    if tracks.pauses and not tracks.pauses[-1][1]:
        begin, _, cause = tracks.pauses[-1]
        tracks.pauses[-1] = (begin, e.t, cause)


def join_pause(tracks: LatencyTracks, cause: str, lost_t: int) -> None:
    """The engine is paused now for this cause, or ("") is not; what happened since `lost_t` is missing."""
    open_ = bool(tracks.pauses) and not tracks.pauses[-1][1]
    if cause and not open_:
        tracks.pauses.append((tracks.t, 0, cause))
    elif open_ and not cause:
        begin, _, before = tracks.pauses[-1]
        tracks.pauses[-1] = (begin, lost_t, before)


def _breakpoint_hit(tracks: LatencyTracks, e: BreakpointHit) -> None:
    tracks.predicates[e.breakpoint] = e.predicate


def _stalled(tracks: LatencyTracks, e: StreamStalled) -> None:
    request = tracks.requests.get(e.request)
    if request is not None:
        request.stalls.append((e.t, e.stalled_ns))


def _ranks(tracks: LatencyTracks, e: StepRanks) -> None:
    skew = rank_skew(e)
    if skew is not None:
        tracks.skews.extend((e.step, skew.slowest, skew.excess_ns))


def _failed(tracks: LatencyTracks, e: EngineError) -> None:
    """A step's requests end with this message, and where the engine ends with it, all with one that begins with it."""
    before = tracks.failed
    if before is not None and e.message.startswith(before.message):
        return
    work = tracks.planned.pop(e.step, None)
    if work is None:  # it was not planned, or has been read: something else went wrong
        tracks.failed = None
        return
    reason = e.message.removeprefix(f"step {e.step} failed: ")
    tracks.failed = FailedStep(e.step, max(work[0], tracks.steps.last_t), reason, e.message)


def _retried(tracks: LatencyTracks, e: StepRetried) -> None:
    tracks.odd.steps.add(e.step)


def _waits(tracks: LatencyTracks, e: WaitReasonChanged) -> None:
    track = tracks.tracks[e.seq]
    if track.status == "WAITING":
        track.stop(e.t)
        track.rest(part_of_wait(e.reason, track.reason), e.t, e.reason, track.reason)
    if e.reason in _HEAD_REASONS:
        tracks.set_head(e.t, e.seq, e.reason)
    elif e.seq == tracks.head:
        tracks.set_head(e.t, -1, "")


_HEAD_REASONS = frozenset({"no_blocks", "sequence_cap", "token_budget", "engine_paused"})
TRACK_HANDLERS: dict[type, Callable[[LatencyTracks, Any], None]] = {
    RequestFinished: _request_finished,
    PrefixMatched: _matched,
    BlocksAllocated: _allocated,
    BlockCopied: _copied,
    BlocksFreed: _freed,
    BlocksSwapped: _swapped,
    SwapFinished: _swap_finished,
    EnginePaused: _engine_paused,
    EngineContinued: _engine_continued,
    BreakpointHit: _breakpoint_hit,
    EngineError: _failed,
    StepRanks: _ranks,
    StepRetried: _retried,
    StreamStalled: _stalled,
    WaitReasonChanged: _waits,
}
