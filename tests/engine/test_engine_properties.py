"""Whatever is asked of the engine in whatever order: its state adds up, its record says the same, its tokens are right.

A state machine drives small engines against the engine's own audit, the audit of its events, the state that its events
give, and the tokens of each request alone.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fake_engine import VOCAB_SIZE, FakeEngine, solo
from nanolens.engine.outputs import Delta, RequestOutput
from nanolens.engine.plan import StepPlan, StepResult
from nanolens.engine.sampling_params import SamplingParams
from nanolens.errors import InvalidRequest
from nanolens.telemetry.audit import Audit
from nanolens.telemetry.differences import keyframe_differences
from nanolens.telemetry.events import CallbackFailed, Keyframe, RequestFinished
from nanolens.telemetry.state import EngineState

PREFIXES = [[7] * 24, list(range(100, 124)), [7] * 9 + list(range(200, 215))]
EOS = frozenset(range(0, VOCAB_SIZE, 29))

configs = st.fixed_dictionaries(
    {
        "num_blocks": st.integers(3, 20),
        "block_size": st.sampled_from([1, 2, 4, 7]),
        "max_num_seqs": st.integers(1, 6),
        "max_num_batched_tokens": st.integers(1, 24),
        "max_prefill_chunk": st.none() | st.integers(1, 8),
        "batching": st.sampled_from(["mixed", "prefill_first"]),
        "policy": st.sampled_from(["fcfs", "priority", "sjf"]),
        "prefix_cache": st.booleans(),
        "overlap": st.booleans(),
    }
)
prompts = st.builds(
    lambda prefix, length, own: prefix[:length] + own,
    st.sampled_from(PREFIXES),
    st.integers(0, 24),
    st.lists(st.integers(0, 3), min_size=1, max_size=8),
)


def expected_tokens(prompt: list[int], params: SamplingParams, eos: frozenset[int], max_model_len: int) -> list[int]:
    """What a request gives alone, worked out apart from the engine."""
    most = max_model_len - len(prompt)
    tokens = solo(prompt, most if params.max_tokens is None else min(params.max_tokens, most))
    stops = set(params.stop_token_ids) | (set() if params.ignore_eos else eos)
    for number, token in enumerate(tokens, 1):
        if token in stops and number >= params.min_tokens:
            return tokens[:number]
    return tokens


class EngineMachine(RuleBasedStateMachine):
    """An engine under arbitrary commands."""

    @initialize(config=configs, with_eos=st.booleans())
    def start(self, config: dict[str, Any], with_eos: bool) -> None:
        self.eos = EOS if with_eos else frozenset()
        self.engine = FakeEngine(eos=self.eos, **config)
        self.engine.runner.fail_launch = self._fail_launch
        self.engine.runner.fail_rows = self._fail_rows
        self.collect, self.engine.runner.collect = self.engine.runner.collect, self._collect
        self.broken = ""  # what fails in the next step
        self.asked: dict[str, tuple[list[int], SamplingParams]] = {}
        self.done: dict[str, RequestOutput] = {}
        self.aborted: set[str] = set()
        self.audit, self.state, self.seen = Audit(), EngineState(), 0
        self.late: EngineState | None = None  # of a reader that joined at a keyframe

    def _fail_launch(self, plan: StepPlan) -> Exception | None:
        return RuntimeError("out of luck") if self._breaks("launch") else None

    def _fail_rows(self, plan: StepPlan) -> dict[int, str]:
        return {plan.sequences[-1].seq_id: "not finite"} if self._breaks("row") else {}

    def _collect(self, handle: Any) -> StepResult:
        result = self.collect(handle)
        if self._breaks("collect"):
            raise RuntimeError("out of luck")
        return result

    def _breaks(self, where: str) -> bool:
        broken = self.broken == where
        if broken:
            self.broken = ""
        return broken

    @rule(
        prompt=prompts,
        max_tokens=st.none() | st.integers(1, 20),
        min_tokens=st.integers(0, 4),
        n=st.sampled_from([1, 1, 1, 2, 3]),
        priority=st.integers(-2, 2),
        ignore_eos=st.booleans(),
        stops=st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=40),
        prompt_logprobs=st.sampled_from([None, None, None, 0]),
        give_up_after=st.sampled_from([None, None, None, 1, 3]),
    )
    def add(
        self, prompt: list[int], max_tokens: int | None, min_tokens: int, n: int, priority: int, ignore_eos: bool,
        stops: list[int], prompt_logprobs: int | None, give_up_after: int | None,
    ) -> None:  # fmt: skip
        params = SamplingParams(
            n=n, max_tokens=max_tokens, min_tokens=min(min_tokens, max_tokens or min_tokens), priority=priority,
            ignore_eos=ignore_eos, stop_token_ids=stops, temperature=0.0, prompt_logprobs=prompt_logprobs,
        )  # fmt: skip
        name = f"r{len(self.asked)}"
        deltas: list[Delta] = []

        def take(delta: Delta) -> None:
            deltas.append(delta)
            if len(deltas) == give_up_after:
                self.engine.abort(name)
                self.aborted.add(name)

        prompt = prompt[: self.engine.max_model_len - 1]
        self.engine.add_request(prompt, params, request_id=name, on_output=take, on_finish=self._finished)
        self.asked[name] = (prompt, params)

    def _finished(self, output: RequestOutput) -> None:
        assert output.request_id not in self.done
        self.done[output.request_id] = output

    @rule(times=st.integers(1, 6))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.engine.step()
            self.check()

    @precondition(lambda self: self.engine.core.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.engine.core.requests)))
        assert self.engine.abort(name)
        self.aborted.add(name)
        assert name in self.done and name not in self.engine.core.requests

    @rule()
    def abort_nobody(self) -> None:
        assert not self.engine.abort("nobody")
        assert not any(self.engine.abort(name) for name in list(self.done)[-2:])

    @rule(excess=st.sampled_from([None, 0, 1, 50]))
    def add_what_is_refused(self, excess: int | None) -> None:
        prompt = [] if excess is None else [1] * (self.engine.max_model_len + excess)
        with pytest.raises(InvalidRequest):
            self.engine.add_request(prompt, SamplingParams())

    @precondition(lambda self: self.engine.core.requests)
    @rule()
    def add_a_name_in_use(self) -> None:
        with pytest.raises(InvalidRequest, match="a live request has this id"):
            self.engine.add_request([1], SamplingParams(), request_id=next(iter(self.engine.core.requests)))

    @rule()
    def a_reader_joins(self) -> None:
        self.late = EngineState.from_keyframe(self.keyframe())

    @rule(where=st.sampled_from(["launch", "row", "collect"]))
    def break_the_next_step(self, where: str) -> None:
        self.broken = where

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
            if self.late is not None:
                self.late.apply(event)
        mine = self.keyframe()
        assert keyframe_differences(mine, self.state.to_keyframe()) == []
        if self.late is not None:
            assert keyframe_differences(mine, self.late.to_keyframe()) == []
        self.check_waits(mine)

    def keyframe(self) -> Keyframe:
        """The engine's own state, with the counters that the recorder puts in."""
        keyframe = self.engine.snapshot()
        keyframe.totals = self.engine.core.recorder.totals.snapshot()
        return keyframe

    def check_waits(self, mine: Keyframe) -> None:
        """Who waits through a step knows why, and one at most waits for something of its own."""
        assert all(not seq.wait_reason for seq in mine.sequences if seq.status != "WAITING")
        heads = [s for s in mine.sequences if s.wait_reason not in ("", "head_of_line", "sibling_prefill")]
        assert len(heads) <= 1

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.broken = ""
        for _ in range(10_000):
            if not self.engine.step():
                break
            self.check()
        assert not self.engine.core.has_work
        self.check_outputs()
        self.engine.close()
        self.check()
        blocks = self.engine.core.blocks
        assert blocks.num_free == blocks.num_blocks and blocks.refs == [0] * blocks.num_blocks
        assert self.engine.runner.closed and self.engine.runner.in_flight == 0

    def check_outputs(self) -> None:
        """Each request ended once, and with the tokens that it has alone, or their beginning if it was cut short."""
        assert self.done.keys() == self.asked.keys()
        ends = [event.request for event in self.engine.of(RequestFinished)]
        assert sorted(ends) == sorted(self.asked) and not self.engine.of(CallbackFailed)
        for name, (prompt, params) in self.asked.items():
            output = self.done[name]
            expected = expected_tokens(prompt, params, self.eos, self.engine.max_model_len)
            for out in output.outputs:
                whole = out.finish_reason in ("stop", "length")
                assert whole or name in self.aborted or output.error
                assert out.token_ids == (expected if whole else expected[: len(out.token_ids)])


settings.register_profile(
    "ci",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=400,
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
)
settings.register_profile("long", settings.get_profile("ci"), derandomize=False, max_examples=5000)

EngineMachine.TestCase.settings = settings.get_profile(os.environ.get("NANOLENS_HYPOTHESIS", "ci"))
TestEngineMachine = EngineMachine.TestCase
