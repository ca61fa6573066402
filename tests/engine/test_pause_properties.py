"""Whatever pauses, goes on, moves out and comes back, in whatever order: tokens, blocks, slots and record are right.

A state machine drives small engines over small pools. After each operation it holds the engine against its own audit,
the audit of its events and the state that its events give; at the end each request's tokens against those it has alone.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fake_engine import VOCAB_SIZE, FakeEngine, next_token
from late_moves import LateMoves
from nanolens.engine.outputs import Delta, RequestOutput
from nanolens.engine.plan import BlockMove
from nanolens.engine.sampling_params import SamplingParams
from nanolens.engine.sequence import Sequence, SequenceStatus
from nanolens.telemetry.audit import Audit
from nanolens.telemetry.differences import keyframe_differences
from nanolens.telemetry.events import CallbackFailed, Keyframe, RequestFinished
from nanolens.telemetry.state import EngineState

PREFIXES = [[7] * 24, list(range(100, 124)), [7] * 9 + list(range(200, 215))]
STOPS = list(range(0, VOCAB_SIZE, 13))
PAUSED, WAITING, RUNNING = SequenceStatus.PAUSED, SequenceStatus.WAITING, SequenceStatus.RUNNING

configs = st.fixed_dictionaries(
    {
        "num_blocks": st.integers(3, 16),
        "block_size": st.sampled_from([4, 2, 3, 1]),
        "host_blocks": st.sampled_from([8, 40, 3, 1, 0]),
        "disk_blocks": st.sampled_from([60, 6, 2, 0]),
        "preemption_mode": st.sampled_from(["swap", "auto", "recompute"]),
        "max_num_seqs": st.integers(1, 6),
        "max_num_batched_tokens": st.integers(1, 24),
        "max_prefill_chunk": st.none() | st.integers(1, 8),
        "batching": st.sampled_from(["mixed", "prefill_first"]),
        "policy": st.sampled_from(["fcfs", "priority", "sjf"]),
        "prefix_cache": st.booleans(),
        "overlap": st.booleans(),
        "paused_ttl_s": st.sampled_from([None, 1e6]),
    }
)
prompts = st.builds(
    lambda prefix, length, own: prefix[:length] + own,
    st.sampled_from(PREFIXES),
    st.integers(0, 24),
    st.lists(st.integers(0, 3), min_size=1, max_size=8),
)
appends = st.none() | st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=9)


settings.register_profile(
    "ci",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=250,
    stateful_step_count=40,
    phases=[Phase.generate],  # to shrink a failing program takes minutes: the other profile does
    suppress_health_check=list(HealthCheck),
)
settings.register_profile(
    "long", settings.get_profile("ci"), derandomize=False, max_examples=3000, phases=[Phase.generate, Phase.shrink]
)
PROFILE = os.environ.get("NANOLENS_HYPOTHESIS", "ci")


@dataclass
class Turns:
    """What one sequence was given, as the test knows it."""

    limit: int
    given: list[tuple[int, list[int]]] = field(default_factory=list)  # (tokens generated before, what was appended)
    free_stops: int = 0  # generated tokens that may be stop tokens in the middle: it paused there, or later
    deltas: list[Delta] = field(default_factory=list)
    revived: bool = False  # it was made to go on at the end


@dataclass
class Asked:
    """A request as the test knows it."""

    prompt: list[int]
    params: SamplingParams
    turns: list[Turns]
    rests: int = 0
    act: str = ""  # what its on_output does once
    act_at: int = 0  # with the delta of this number


def expected(prompt: list[int], given: list[tuple[int, list[int]]], count: int) -> list[int]:
    """The fake model's `count` tokens after a prompt, with what was appended in between."""
    tokens, ids, left = list(prompt), [], list(given)
    while True:
        while left and left[0][0] == len(ids):
            tokens += left.pop(0)[1]
        if len(ids) == count:
            return ids
        ids.append(next_token(tokens))
        tokens.append(ids[-1])


class PauseMachine(RuleBasedStateMachine):
    """An engine under arbitrary commands, those of pauses most of all."""

    @initialize(config=configs)
    def start(self, config: dict[str, Any]) -> None:
        self.engine = FakeEngine(**config)
        self.late = LateMoves(self.engine)
        self.engine.runner.fail_move = self._fail_move
        self.failing = 0  # moves that are going to fail
        self.asked: dict[str, Asked] = {}
        self.done: dict[str, RequestOutput] = {}
        self.cut: set[str] = set()  # requests that were aborted or may have expired
        self.audit, self.state, self.seen = Audit(), EngineState(), 0

    def _fail_move(self, move: BlockMove) -> str:
        fails = self.failing > 0
        self.failing -= fails
        return "no room on the disk" if fails else ""

    # Requests come

    @rule(
        prompt=prompts,
        max_tokens=st.none() | st.integers(3, 14) | st.integers(1, 3),
        n=st.sampled_from([1, 1, 2, 3]),
        priority=st.integers(-2, 2),
        on_stop=st.sampled_from(["finish", "pause"]),
        stops=st.booleans(),
        pause_after_prefill=st.sampled_from([False, False, True]),
        act=st.sampled_from(["", "", "", "pause", "abort", "resume", "finish", "pause_other", "pause_engine"]),
        act_at=st.integers(1, 6),
        times=st.integers(0, 3),
    )
    def add(
        self, prompt: list[int], max_tokens: int | None, n: int, priority: int, on_stop: str, stops: bool,
        pause_after_prefill: bool, act: str, act_at: int, times: int,
    ) -> None:  # fmt: skip
        params = SamplingParams(
            n=n, max_tokens=max_tokens, priority=priority, temperature=0.0, on_stop=on_stop,  # type: ignore[arg-type]
            stop_token_ids=STOPS if stops else [], pause_after_prefill=pause_after_prefill,
        )  # fmt: skip
        name = f"r{len(self.asked)}"
        most = self.engine.max_model_len
        prompt = prompt[: most - 1]
        turns = [Turns(most if max_tokens is None else max_tokens) for _ in range(n)]
        asked = self.asked[name] = Asked(prompt, params, turns, 0, act, act_at)

        def take(delta: Delta) -> None:
            asked.turns[delta.index].deltas.append(delta)
            self.act(name, delta)

        def rest(output: RequestOutput) -> None:
            asked.rests += 1
            assert not output.finished and any(out.pause_reason for out in output.outputs)

        self.engine.add_request(
            prompt, params, request_id=name, on_output=take, on_finish=self._finished, on_pause=rest
        )
        self.step(times)

    def act(self, name: str, delta: Delta) -> None:
        """What a user's callback does with the engine, once."""
        asked = self.asked[name]
        if not asked.act or sum(len(turns.deltas) for turns in asked.turns) < asked.act_at:
            return
        live = self.engine.core.requests.get(name)
        if asked.act == "pause" and live and self.engine.pause(name):
            asked.act = ""
        elif asked.act == "pause_other":
            asked.act = ""
            for other in sorted(self.engine.core.requests):
                if other != name and other in self.engine.core.requests:  # those paused before may have ended it
                    self.engine.pause(other)
        elif asked.act == "pause_engine":
            asked.act = ""
            self.engine.pause_engine()
        elif asked.act == "abort":
            asked.act = ""
            self.cut.add(name)
            self.engine.abort(name)
        elif asked.act == "resume" and live and delta.pause_reason:
            asked.act = ""
            self._resume(name, delta.index, [1, 2], 3)
        elif asked.act == "finish" and live and delta.pause_reason:
            asked.act = ""
            self.engine.finish(name, delta.index)

    def _finished(self, output: RequestOutput) -> None:
        assert output.request_id not in self.done
        self.done[output.request_id] = output

    # Time passes

    @rule(times=st.integers(1, 6))
    def step_on(self, times: int) -> None:
        self.engine.continue_engine()
        self.step(times)

    @rule(times=st.integers(1, 12))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.engine.step()
            self.check()

    # Requests are disturbed

    def _some(self, data: st.DataObject) -> tuple[str, int | None]:
        name = data.draw(st.sampled_from(sorted(self.engine.core.requests)))
        index = data.draw(st.none() | st.integers(0, self.asked[name].params.n - 1))
        return name, index

    def _paused(self) -> list[tuple[str, int]]:
        return [
            (name, index)
            for name, request in sorted(self.engine.core.requests.items())
            for index, seq in enumerate(request.sequences)
            if seq.status is PAUSED
        ]

    @precondition(lambda self: self.engine.core.requests)
    @rule(data=st.data(), reason=st.sampled_from(["operator", "await_input"]), times=st.integers(0, 5))
    def pause(self, data: st.DataObject, reason: str, times: int) -> None:
        name, index = self._some(data)
        plain = not any(asked.act for asked in self.asked.values())
        self.engine.pause(name, index, reason)
        if name in self.engine.core.requests and plain:
            of = self.engine.core.requests[name].sequences
            for seq in of if index is None else [of[index]]:
                assert seq.status not in (WAITING, RUNNING)
        self.step(times)

    @precondition(lambda self: self._paused())
    @rule(data=st.data(), append=appends, max_tokens=st.none() | st.integers(1, 8), times=st.integers(0, 5))
    def resume(self, data: st.DataObject, append: list[int] | None, max_tokens: int | None, times: int) -> None:
        name, index = data.draw(st.sampled_from(self._paused()))
        self._resume(name, index, append, max_tokens)
        self.step(times)

    def _resume(self, name: str, index: int, append: list[int] | None, max_tokens: int | None) -> None:
        seq = self.engine.core.requests[name].sequences[index]
        turns, done = self.asked[name].turns[index], seq.num_output_tokens
        room = self.engine.max_model_len - len(seq.token_ids) - 1
        if room < 0:
            return
        if append is not None:
            append = append[:room]
        if not append and max_tokens is None and done >= seq.max_tokens:
            max_tokens = 4
        if max_tokens is not None:
            turns.limit = done + max_tokens
        elif append:
            own = self.asked[name].params.max_tokens
            turns.limit = self.engine.max_model_len if own is None else done + own
        if append:
            turns.given.append((done, append))
        turns.free_stops = done
        self.engine.resume(name, append, max_tokens, index)

    @precondition(lambda self: self._paused())
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        name, index = data.draw(st.sampled_from(self._paused()))
        seq = self.engine.core.requests[name].sequences[index]
        reason, stop = ("length" if seq.reason == "length" else "stop"), seq.stop_reason
        self.engine.finish(name, index)
        assert seq.status is SequenceStatus.FINISHED
        assert (seq.reason, seq.finish_reason, seq.stop_reason) == ("delivered", reason, stop)

    @precondition(lambda self: self.engine.core.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.engine.core.requests)))
        self.cut.add(name)
        assert self.engine.abort(name)
        assert name in self.done and name not in self.engine.core.requests

    @precondition(lambda self: self.engine.core.requests)
    @rule(data=st.data(), priority=st.integers(-3, 3))
    def set_priority(self, data: st.DataObject, priority: int) -> None:
        self.engine.set_priority(data.draw(st.sampled_from(sorted(self.engine.core.requests))), priority)

    # The engine is disturbed

    @rule(num_steps=st.sampled_from([None, 0, 0, 0, 1, 3]))
    def pause_or_continue_engine(self, num_steps: int | None) -> None:
        if num_steps is None:
            self.engine.pause_engine()
        else:
            self.engine.continue_engine(num_steps)

    @rule(fail=st.integers(0, 2), delay=st.integers(0, 5), times=st.integers(1, 8))
    def moves_fail_or_take_long(self, fail: int, delay: int, times: int) -> None:
        self.failing, self.engine.runner.move_delay = fail, delay
        self.step(times)

    @precondition(lambda self: len(self.engine.breakpoints) < 2)
    @rule(
        predicate=st.sampled_from(["on=preempted", "on=blocks.swapped", "on=status to=RUNNING", "on=blocks.allocated"]),
        action=st.sampled_from(["engine", "sequence", "sequence"]),
    )
    def add_breakpoint(self, predicate: str, action: str) -> None:
        self.engine.add_breakpoint(predicate, action)

    @precondition(lambda self: self.engine.breakpoints)
    @rule()
    def remove_breakpoints(self) -> None:
        for number in list(self.engine.breakpoints):
            assert self.engine.remove_breakpoint(number)

    @precondition(lambda self: self.engine.core.config.paused_ttl_s is not None and self._paused())
    @rule()
    def time_passes(self) -> None:
        self.cut |= {name for name, _ in self._paused()}
        self.engine.core.clock.now += 2 * 10**15  # type: ignore[attr-defined]

    # What holds at any time

    @invariant()
    def check(self) -> None:
        """The engine adds up, its events add up, and they give the state that it has."""
        core = self.engine.core
        core.audit()
        core.flush()
        fresh, self.seen = self.engine.events[self.seen :], len(self.engine.events)
        for event in fresh:
            self.audit.apply(event)
            self.state.apply(event)
        mine = self.keyframe()
        assert keyframe_differences(mine, self.state.to_keyframe()) == []
        for request in core.requests.values():
            for seq in request.sequences:
                self.check_sequence(seq)

    def keyframe(self) -> Keyframe:
        """The engine's own state, with the counters that the recorder puts in."""
        keyframe = self.engine.snapshot()
        keyframe.totals = self.engine.core.recorder.totals.snapshot()
        return keyframe

    def check_sequence(self, seq: Sequence) -> None:
        """What is true of a live sequence between two operations."""
        if seq.status is PAUSED:
            assert seq.num_pending == 0 and seq.num_computed_tokens < len(seq.token_ids)
        if not seq.is_live:
            return
        held = len(seq.block_table) * self.engine.core.config.block_size
        assert seq.num_computed_tokens <= held, seq.snapshot()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        engine = self.engine
        self.failing = 0
        for number in list(engine.breakpoints):
            engine.remove_breakpoint(number)
        for asked in self.asked.values():
            asked.act = ""
        for _ in range(10_000):
            engine.continue_engine()
            if not engine.step():
                left = self._paused()
                if not left:
                    break
                for name, index in left:
                    turns = self.asked[name].turns[index]
                    seq = engine.core.requests[name].sequences[index]
                    if turns.revived or len(seq.token_ids) + 3 > engine.max_model_len:
                        engine.finish(name, index)
                    else:
                        turns.revived = True
                        self._resume(name, index, [5, 6] if seq.seq_id % 2 else None, 2)
            self.check()
        assert not engine.core.requests and not engine.has_work
        engine.check_empty()
        self.check_outputs()
        engine.close()
        assert engine.runner.closed and engine.runner.in_flight == 0

    def check_outputs(self) -> None:
        """Each request ended once, with the tokens that it has alone, or their beginning if it was cut short."""
        assert self.done.keys() == self.asked.keys()
        ends = [event.request for event in self.engine.of(RequestFinished)]
        assert sorted(ends) == sorted(self.asked)
        assert self.engine.of(CallbackFailed) == []
        for name, asked in self.asked.items():
            output = self.done[name]
            assert output.error is None
            for out, turns in zip(output.outputs, asked.turns, strict=True):
                ids = out.token_ids
                assert ids == expected(asked.prompt, turns.given, len(ids))
                assert out.finish_reason in ("stop", "length") or name in self.cut
                assert [token for delta in turns.deltas for token in delta.token_ids] == ids
                assert [d.finish_reason for d in turns.deltas if d.finish_reason] == [out.finish_reason]
                self.check_end(asked, turns, ids, out.finish_reason)

    def check_end(self, asked: Asked, turns: Turns, ids: list[int], reason: str | None) -> None:
        """It ended no sooner and no later than it had to."""
        assert len(ids) <= turns.limit
        given = len(asked.prompt) + sum(len(tokens) for _, tokens in turns.given)
        if reason == "length":
            assert len(ids) == turns.limit or given + len(ids) == self.engine.max_model_len
        stops = set(asked.params.stop_token_ids)
        assert not stops.intersection(ids[turns.free_stops : -1])
        if asked.params.on_stop == "finish":
            assert not stops.intersection(ids[:-1])


PauseMachine.TestCase.settings = settings.get_profile(PROFILE)
TestPauseMachine = PauseMachine.TestCase
