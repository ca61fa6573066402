"""What a step takes in a simulation: time on the device and on the host, as a recorded run's own steps tell.

Both are linear in the step's work (telemetry/step_costs.py), then scaled so that the recorded steps together take as
long as they did: a fit to the usual step leaves out stalls, which are part of what the run took. A machine is faster at
one time than at another, so the device's scale is one of each second: its pace.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

import numpy as np
from numpy.typing import NDArray

from ...engine.plan import BlockMove, StepPlan
from ...errors import AuditError, JournalError
from ...telemetry.events import BlocksSwapped, StatusChanged, StepFinished, SwapFinished
from ...telemetry.latency import Latency
from ...telemetry.latency_tracks import LatencyTracks
from ...telemetry.step_costs import Floats, StepCostModel, fit, pairs_of
from ...telemetry.tracks import StepTable
from .recording import Recording

MIN_STEPS = 8  # fewer tell nothing
PACE_NS = 1_000_000_000  # of the run, that have a pace of their own
_BUSY = ("WAITING", "RUNNING")


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Nanoseconds.

    Attributes:
        device: of a step.
        device_scale: factor on it, over the whole run.
        since: when the run began.
        pace: factor on it in each PACE_NS since then; over again behind the last one. Empty: `device_scale`.
        host: beside the device, of a step, the engine being busy: from reading one step on, until the next is launched.
        host_scale: factor on it.
        swap_ns_per_block: to move a block between the device and the swap space; 0: not known.
    """

    device: StepCostModel
    device_scale: float = 1.0
    host: StepCostModel = field(default_factory=StepCostModel)
    host_scale: float = 1.0
    since: int = 0
    pace: tuple[float, ...] = ()
    swap_ns_per_block: float = 0.0

    def of(self, plan: StepPlan, now: int) -> tuple[int, int]:
        """(host, device) of a step that is launched now."""
        tokens = pairs = decodes = context = 0
        for seq, start, count in zip(plan.sequences, plan.starts, plan.counts, strict=True):
            if start >= seq.prefill_target:
                decodes += 1
                context += start + 1
            else:
                tokens += count
                pairs += pairs_of(start, count)
        host = self.host_scale * self.host.predict(tokens, 0, decodes, 0)
        scale = self.pace[(now - self.since) // PACE_NS % len(self.pace)] if self.pace else self.device_scale
        device = scale * self.device.predict(tokens, pairs, decodes, context) if plan.sequences else 0.0
        return round(host), round(device)

    def of_move(self, move: BlockMove) -> int:
        """Of a move of blocks."""
        return round(self.swap_ns_per_block * len(move.sources))


def tracks_of(recording: Recording) -> LatencyTracks:
    """The pass of the latency model over a recorded run.

    Raises:
        JournalError: its events contradict each other.
    """
    tracks = LatencyTracks()
    try:
        for event in recording.events:
            tracks.apply(event)
    except AuditError as error:
        raise JournalError(f"run {recording.run}: {error}") from None
    tracks.finish()
    return tracks


def measure(recording: Recording) -> StepTimes:
    """The times of a recorded run.

    Raises:
        JournalError: it has too few steps.
    """
    windows = Latency(tracks_of(recording)).windows
    if int(windows.seen.sum()) < MIN_STEPS:
        raise JournalError(
            f"run {recording.run}: {int(windows.seen.sum())} steps were read: a what-if needs at least {MIN_STEPS} to "
            "tell what a step takes"
        )
    columns = windows.columns
    work = np.stack([columns[name] for name in StepTable.WORK], axis=1)
    features: Floats = np.concatenate([np.ones((len(work), 1)), work], axis=1).astype(np.float64)
    if recording.overlap:  # the device hides it: what the host itself did is all that can be told
        host = columns["plan_ns"] + columns["launch_ns"] + np.maximum(columns["collect_ns"] - columns["wait_ns"], 0)
        busy = windows.seen
    else:
        host = windows.host
        busy = windows.seen & (windows.paused == 0) & ~_idle_before(recording)
    measured = windows.device if not recording.overlap else columns["device_ns"]
    of_host = fit(features[busy] * (1.0, 1.0, 0.0, 1.0, 0.0), host[busy].astype(np.float64))
    predicted = features @ windows.model.coefficients
    scale = _scale(measured[windows.seen], predicted[windows.seen])
    since = recording.started.t
    return StepTimes(
        windows.model, scale, of_host, _scale(host[busy], features[busy] @ of_host.coefficients), since,
        _pace(windows.end_t[windows.seen] - since, measured[windows.seen], predicted[windows.seen], scale),
        _swap_ns(recording),
    )  # fmt: skip


def _scale(measured: NDArray[np.int64], predicted: Floats) -> float:
    total = float(predicted.sum())
    return float(measured.sum()) / total if total > 0 else 1.0


def _pace(read: NDArray[np.int64], measured: NDArray[np.int64], predicted: Floats, scale: float) -> tuple[float, ...]:
    """The scale of each PACE_NS, by when steps were read; the whole run's where none was."""
    second = read // PACE_NS
    size = int(second[-1]) + 1
    took, expected = np.bincount(second, measured, size), np.bincount(second, predicted, size)
    found = np.where(expected > 0, took / np.where(expected > 0, expected, 1.0), scale)
    return tuple(float(value) for value in found)


def _idle_before(recording: Recording) -> NDArray[np.bool_]:
    """[steps that were read]: whether nobody ran or waited at some time since the step before was read."""
    busy: set[int] = set()
    idle, found = True, []
    for event in recording.events:
        if isinstance(event, StatusChanged):
            if event.new in _BUSY:
                busy.add(event.seq)
            else:
                busy.discard(event.seq)
                idle = idle or not busy
        elif isinstance(event, StepFinished):
            found.append(idle)
            idle = not busy
    return np.array(found, dtype=bool)


def _swap_ns(recording: Recording) -> float:
    """The usual time of a block's move; as measured at the start where none was recorded."""
    blocks = {e.move: len(e.sources) for e in recording.events if isinstance(e, BlocksSwapped) and e.move}
    moves = [e for e in recording.events if isinstance(e, SwapFinished) and not e.error]
    times = [e.duration_ns / blocks[e.move] for e in moves if blocks.get(e.move)]
    return float(median(times)) if times else float(recording.ready.get("swap_ns_per_block", 0))
