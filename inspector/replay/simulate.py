"""A what-if: the requests of a recorded run through the real scheduler and block manager with other settings, timed by
what its steps took, on a virtual clock. Knows no text and no device.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from ...engine.config import EngineConfig
from ...engine.core import EngineCore
from ...engine.sequence import SequenceStatus
from ...errors import InvalidConfig, JournalError
from ...telemetry.events import AnyEvent, EnginePaused, EngineStarted, RequestArrived, StatusChanged
from ...telemetry.latency_tracks import LatencyTracks
from ...telemetry.recorder import NullRecorder
from .recording import Recording
from .requests import ReplayRequest, params_of
from .simulate_costs import StepTimes, measure, tracks_of
from .simulate_figures import Figures, figures
from .simulate_runner import SimulatedRunner, VirtualClock
from .simulate_settings import Setting, changed_start
from .simulate_story import read_story
from .simulate_users import Users
from .tokens import Tokens


@dataclass(frozen=True, slots=True)
class Simulated:
    """What came of a simulation.

    Attributes:
        settings: what was changed.
        config: all settings.
        figures: of its requests.
        tracks: the pass of the latency model over its events.
        unended: request that could not end -> why.
    """

    settings: list[Setting]
    config: EngineConfig
    figures: Figures
    tracks: LatencyTracks
    unended: dict[str, str]


class WhatIf:
    """A recorded run, ready to be simulated with any settings.

    Args:
        recording: the run.
        times: what its steps take; None measures it.

    Attributes:
        recorded: the run's own figures.

    Raises:
        JournalError: it can't be simulated: too few steps, no hashes, or nothing that ended.
    """

    def __init__(self, recording: Recording, times: StepTimes | None = None) -> None:
        if not recording.arrivals:
            raise JournalError(f"run {recording.run}: no request arrived: there is nothing to simulate")
        self.recording = recording
        self.times = measure(recording) if times is None else times
        self.story = read_story(recording)
        self.recorded = figures(tracks_of(recording), self.story.cut)
        if not self.recorded.requests:
            raise JournalError(f"run {recording.run}: no request ended: there is nothing to compare with")

    def run(self, settings: list[Setting] | None = None) -> Simulated:
        """Simulate with some settings changed; with none, as it was.

        Raises:
            InvalidConfig: the settings can't be used, or a recorded request would not fit into the pool.
            JournalError: the recording lacks what they need.
        """
        settings = settings or []
        config, num_blocks = changed_start(self.recording.started, settings)
        self._check(config, num_blocks, ", ".join(map(str, settings)) or "nothing changed")
        simulation = _Simulation(self, config, num_blocks)
        tracks = simulation.run()
        return Simulated(settings, config, figures(tracks, self.story.cut), tracks, simulation.unended())

    def _check(self, config: EngineConfig, num_blocks: int, settings: str) -> None:
        recording, size = self.recording, config.block_size
        for arrived in recording.arrivals:
            most = max((self.story.lives[seq].num_tokens for seq in arrived.seqs), default=0)
            if most > num_blocks * size:
                raise InvalidConfig(
                    f"{settings}: request {arrived.request} came to {most} tokens, the pool holds {num_blocks * size} "
                    f"({num_blocks} blocks of {size}); at least {-(-most // size)} blocks are needed"
                )
            has_block = arrived.num_prompt_tokens >= recording.started.block_size
            if config.prefix_cache and has_block and not arrived.block_hashes:
                raise JournalError(
                    f"request {arrived.request} arrived without the hashes of its blocks: the run recorded none, so "
                    "which prompts share is not known; add --set prefix_cache=false"
                )


class _Recorder(NullRecorder):
    """Hands events to the latency model, and the pauses of sequences to the simulation."""

    on = True

    def __init__(self, tracks: LatencyTracks, paused: Callable[[StatusChanged], None]) -> None:
        super().__init__()
        self._events: list[AnyEvent] = []
        self._tracks, self._paused = tracks, paused
        self.record = self._events.append  # type: ignore[method-assign, assignment]

    def flush(self, step: int) -> None:
        """Pass on what was recorded."""
        for event in self._events:
            self._tracks.apply(event)
            if isinstance(event, StatusChanged) and event.new == "PAUSED":
                self._paused(event)
        self._events.clear()


class _Simulation:
    """One simulation; `run` once. Sequences get the ids that they were recorded with: they arrive in the same order."""

    def __init__(self, what_if: WhatIf, config: EngineConfig, num_blocks: int) -> None:
        recording = what_if.recording
        started = recording.started
        self._recording, self._story = recording, what_if.story
        self._tokens = Tokens(recording.hashes, started.block_size)
        self.clock = VirtualClock(started.t)
        self.tracks = LatencyTracks()
        self._commands: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._users = Users(self._story, self._tokens, self._at)
        self._runner = SimulatedRunner(
            self.clock, _scaled(what_if.times, started, config), self._story.lives, self._tokens, num_blocks=num_blocks,
            host_blocks=config.host_blocks, disk_blocks=config.disk_blocks, vocab_size=started.vocab_size,
        )  # fmt: skip
        begin = msgspec.structs.replace(
            started, config=config.as_record(), num_blocks=num_blocks, block_size=config.block_size,
            max_model_len=min(started.max_model_len, num_blocks * config.block_size),
        )  # fmt: skip
        overlap = recording.overlap if config.overlap is None else config.overlap
        self.core = EngineCore(
            config, self._runner, _Recorder(self.tracks, self._users.paused), begin, overlap=overlap, clock=self.clock,
        )  # fmt: skip
        self._users.core, self._runner.reads = self.core, self._users.before
        for index, arrived in enumerate(recording.arrivals):
            self._at(arrived.t, lambda index=index, arrived=arrived: self._add(index, arrived))  # type: ignore[misc]
        for t, event in self._story.engine:
            if isinstance(event, EnginePaused):
                self._at(t, lambda cause=event.cause: self.core.pause_engine(cause))  # type: ignore[misc]
            else:
                self._at(t, lambda steps=event.num_steps: self.core.continue_engine(steps))  # type: ignore[misc]

    def run(self) -> LatencyTracks:
        """Simulate until nothing more happens."""
        core, clock, commands = self.core, self.clock, self._commands
        logger = logging.getLogger("nanolens.engine")
        level, logger.disabled = logger.disabled, True  # errors of the recorded run are none of now
        try:
            while True:
                while commands and commands[0][0] <= clock.now:
                    heapq.heappop(commands)[2]()
                began = clock.now
                act_t = self._users.act(began)
                if clock.now != began:
                    continue  # for a pause a step was read
                if core.has_work:
                    before = clock.now, core.scheduler.step
                    if core.step() or before != (clock.now, core.scheduler.step):
                        continue
                command_t = commands[0][0] if commands else None
                deadlines = [t for t in (core.next_deadline, command_t, act_t) if t is not None]
                if not deadlines:
                    break
                clock.wait_until(min(deadlines))
        finally:
            logger.disabled = level
        core.flush()
        self.tracks.finish(clock.now)
        return self.tracks

    def unended(self) -> dict[str, str]:
        """The requests that could not end, each with what it waits for."""
        found = {}
        for request in self._users.unended():
            left = [seq for seq in request.sequences if seq.is_live]
            seq = next((seq for seq in left if seq.status is not SequenceStatus.PAUSED), left[0])
            if seq.status is SequenceStatus.PAUSED:
                why = f"is paused ({seq.reason}), and nobody resumed it in the recorded run"
            else:
                why = f"is {seq.status.value if seq.status else 'new'} with {seq.num_tokens:,} tokens"
                why += f" ({seq.wait_reason})" if seq.wait_reason else ""
            found[request.request_id] = why
        return found

    def _at(self, t: int, command: Callable[[], None]) -> None:
        heapq.heappush(self._commands, (t, next(self._order), command))

    # Commands

    def _add(self, index: int, arrived: RequestArrived) -> None:
        core, now = self.core, self.clock.now
        first = arrived.seqs[0] if arrived.seqs else -1
        request_id = arrived.request if arrived.request not in core.requests else f"{arrived.request} ({index})"
        request = ReplayRequest(
            request_id, None, self._tokens.span(first, 0, arrived.num_prompt_tokens), params_of(arrived)
        )
        core.add(request)
        core.flush()
        for seq in request.sequences[1:]:
            seq.token_ids = self._tokens.span(seq.seq_id, 0, len(seq.token_ids))
        for after, place, priority in self._story.priorities.get(index, ()):
            seq = request.sequences[place]
            self._at(now + after, lambda seq=seq, priority=priority: core.set_priority([seq], priority))  # type: ignore[misc]
        self._users.arrived(index, request)


def _scaled(times: StepTimes, started: EngineStarted, config: EngineConfig) -> StepTimes:
    """The same with the moves of blocks of another size."""
    per_block = times.swap_ns_per_block * config.block_size / started.block_size
    return dataclasses.replace(times, swap_ns_per_block=per_block)
