"""Builders for engine tests without a model: a runner that works tokens out of its pages, and an engine on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from nanolens.engine.config import EngineConfig
from nanolens.engine.core import EngineCore
from nanolens.engine.engine import Engine
from nanolens.engine.outputs import RequestOutput
from nanolens.engine.plan import BlockMove, MoveResult, StepPlan, StepResult
from nanolens.engine.sampling_params import SamplingParams
from nanolens.engine.sequence import Sequence as EngineSequence
from nanolens.telemetry.audit import Audit
from nanolens.telemetry.clock import wall_offset_ns
from nanolens.telemetry.differences import keyframe_differences
from nanolens.telemetry.events import AnyEvent, EngineStarted
from nanolens.telemetry.recorder import Recorder

VOCAB_SIZE = 1000
MAX_MODEL_LEN = 512


class NoDefaults:
    """A model without generation defaults."""

    temperature = top_p = top_k = min_p = repetition_penalty = None


def next_token(tokens: Sequence[int]) -> int:
    """The fake model: a fixed function of all the tokens before."""
    return crc32(",".join(map(str, tokens)).encode()) % VOCAB_SIZE


def solo(prompt: Sequence[int], count: int) -> list[int]:
    """What the fake model generates after a prompt, undisturbed."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class FakeRunner:
    """Computes tokens from what was written to its pages, so that a wrong block table or slot shows in the tokens.

    Each slot holds the token whose KV a real runner would have written there, and its position. A token is worked out
    at launch, as on a device, from the pages alone; the host sees it at collect.
    """

    def __init__(self, num_blocks: int, block_size: int, host_blocks: int = 0, disk_blocks: int = 0) -> None:
        self.num_blocks = num_blocks
        self.host_blocks, self.disk_blocks = host_blocks, disk_blocks
        self.swap_ns_per_block = 1  # "auto" always finds swapping the cheaper way
        self.slots: dict[int, dict[int, tuple[int, int]]] = {}  # swap slot -> what the slots of a page held
        self.moved: list[MoveResult] = []
        self.move_delay = 0  # collects that a move takes; a launched move's data is in place at once
        self.sound = True
        self.fault = ""
        self.fail_move: Callable[[BlockMove], str] = lambda move: ""
        self.bad_slots: set[int] = set()
        self.vocab_size = VOCAB_SIZE
        self.block_size = block_size
        self.pages: dict[int, tuple[int, int]] = {}  # slot -> (position, token)
        self.last: dict[int, int] = {}  # sequence -> the token sampled last, still on the device
        self.plans: list[StepPlan] = []
        self.in_flight = 0
        self.closed = False
        self.fail_launch: Callable[[StepPlan], Exception | None] = lambda plan: None
        self.fail_rows: Callable[[StepPlan], dict[int, str]] = lambda plan: {}
        self.token_of: Callable[[Sequence[int]], int] = next_token

    def launch(self, plan: StepPlan) -> Any:
        error = self.fail_launch(plan)
        for move in plan.moves:
            self._move(move)
        for source, target in plan.copies:
            self._put(target, self._page(source))
        for seq_id in plan.released:
            self.last.pop(seq_id, None)
        if error is not None:  # what goes before the step has been done all the same
            raise error
        self.in_flight += 1
        assert self.in_flight <= 2
        self.plans.append(plan)
        tokens = []
        for seq, start, count, samples in zip(plan.sequences, plan.starts, plan.counts, plan.samples, strict=True):
            assert count >= 1 and start + count <= len(seq.block_table) * self.block_size
            for position in range(start, start + count):
                token = seq.token_ids[position] if position < len(seq.token_ids) else self.last[seq.seq_id]
                self.pages[self._slot(seq.block_table, position)] = (position, token)
            assert samples == (start + count == len(seq.token_ids) or start == len(seq.token_ids))
            if samples:
                context = []
                for position in range(start + count):
                    there, token = self.pages[self._slot(seq.block_table, position)]
                    assert there == position, f"sequence {seq.seq_id}: slot of position {position} holds {there}"
                    context.append(token)
                tokens.append(self.token_of(context))
                self.last[seq.seq_id] = tokens[-1]
        return (tokens, self.fail_rows(plan)) if plan.sequences else None  # as the torch runner: moves have no handle

    def collect(self, handle: Any) -> StepResult:
        self.in_flight -= 1
        tokens, failed = handle or ([], {})
        moved = self.finish_moves() if not self.move_delay or not tokens else []
        self.move_delay -= bool(self.move_delay)
        return StepResult(tokens=tokens, failed=failed, moved=moved)

    def finish_moves(self) -> list[MoveResult]:
        moved, self.moved = self.moved, []
        return moved

    def is_sound(self) -> bool:
        return self.sound

    def look(self) -> str:
        return self.fault

    def _move(self, move: BlockMove) -> None:
        error = self.fail_move(move)
        sources, targets = (move.sources, move.targets)
        if not error and any(source in self.bad_slots for source in sources):
            error = "a slot that was never written"
        for source, target in zip(sources, targets, strict=True):
            self.bad_slots.discard(target)
            if error and target < 0:
                self.bad_slots.add(target)
            elif error:
                self._put(target, {})
            else:
                self._put(target, self._page(source))
        self.moved.append(MoveResult(move.move, 64 * len(sources), 1000, error))

    def _page(self, place: int) -> dict[int, tuple[int, int]]:
        if place < 0:
            return self.slots[place]
        first = place * self.block_size
        return {i: self.pages[first + i] for i in range(self.block_size) if first + i in self.pages}

    def _put(self, place: int, content: dict[int, tuple[int, int]]) -> None:
        if place < 0:
            self.slots[place] = dict(content)
            return
        for i in range(self.block_size):
            self.pages.pop(place * self.block_size + i, None)
            if i in content:
                self.pages[place * self.block_size + i] = content[i]

    def close(self) -> None:
        self.closed = True

    def _slot(self, table: list[int], position: int) -> int:
        return table[position // self.block_size] * self.block_size + position % self.block_size


@dataclass
class Clock:
    """A clock that moves one microsecond at each reading."""

    now: int = 1_000_000

    def __call__(self) -> int:
        self.now += 1000
        return self.now


def started(config: EngineConfig, num_blocks: int, max_model_len: int = MAX_MODEL_LEN) -> EngineStarted:
    """A run's first event."""
    return EngineStarted(
        t=0, run_id="test", wall_offset_ns=wall_offset_ns(), pid=1, version="0", model="fake",
        config=config.as_record(), num_blocks=num_blocks, block_size=config.block_size, vocab_size=VOCAB_SIZE,
        max_model_len=max_model_len,
    )  # fmt: skip


class FakeEngine(Engine):
    """An engine on a FakeRunner, with all its events in `events` and finished outputs in `outputs`."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        overlap: bool = False,
        eos: frozenset[int] = frozenset(),
        max_model_len: int | None = None,
        recorder: Recorder | None = None,
        clock: Callable[[], int] | None = None,
        make_runner: Callable[[EngineConfig], Any] | None = None,
        **options: Any,
    ) -> None:
        if options.get("disk_blocks"):
            options = {"swap_path": "unused"} | options
        config = EngineConfig(
            model="fake", num_blocks=num_blocks, block_size=block_size, overlap=overlap, audit=True, seed=0, **options
        )
        make_runner = make_runner or self._make_runner
        self.runner = make_runner(config)
        self.events: list[AnyEvent] = []
        self.outputs: dict[str, RequestOutput] = {}
        clock = clock or Clock()
        recorder = recorder or Recorder(None, clock)
        recorder.subscribe(self.events.extend)
        limit = max_model_len or min(MAX_MODEL_LEN, num_blocks * block_size)
        core = EngineCore(
            config, self.runner, recorder, started(config, num_blocks, limit), eos_token_ids=eos, overlap=overlap,
            secret=b"secret", clock=clock,
        )  # fmt: skip
        super().__init__(core, None, NoDefaults(), VOCAB_SIZE)

    def add(self, prompt: Sequence[int], max_tokens: int | None = 8, **params: Any) -> str:
        """Queue a greedy request."""
        own = SamplingParams(max_tokens=max_tokens, **({"temperature": 0.0} | params))
        return self.add_request(prompt, own, on_finish=self._finished)

    def seq(self, request_id: str, index: int = 0) -> EngineSequence:
        """A sequence of a live request."""
        return self.core.requests[request_id].sequences[index]

    def check_empty(self) -> None:
        """Nothing is held any more: no request, no block, no slot of the swap space; and the journal adds up."""
        blocks, slots = self.core.blocks, self.core.blocks.slots
        assert not self.core.requests and blocks.num_free == blocks.num_blocks
        assert len(slots.free_host) == slots.host_blocks and len(slots.free_disk) == slots.disk_blocks
        assert not self.core.scheduler.residency.paused
        self.core.flush()
        audit = Audit()
        audit.apply_all(self.events)
        keyframe = self.core.keyframe()
        keyframe.totals = self.core.recorder.totals.snapshot()
        assert keyframe_differences(keyframe, audit.state.to_keyframe()) == []

    def run(self, most: int = 10_000) -> dict[str, RequestOutput]:
        """Step until nothing is left to do; the outputs so far."""
        for _ in range(most):
            if not self.step():
                return self.outputs
        raise AssertionError(f"still working after {most} steps")

    def ids(self, request_id: str, index: int = 0) -> list[int]:
        """The generated tokens of a finished request."""
        return self.outputs[request_id].outputs[index].token_ids

    def of(self, kind: type) -> list[Any]:
        """The events of one kind so far."""
        self.core.flush()
        return [event for event in self.events if isinstance(event, kind)]

    def _make_runner(self, config: EngineConfig) -> FakeRunner:
        return FakeRunner(config.num_blocks or 1, config.block_size, config.host_blocks, config.disk_blocks)

    def _finished(self, output: RequestOutput) -> None:
        self.outputs[output.request_id] = output
