"""EngineLoop: commands between steps, sleep without work, faults, ends."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from pathlib import Path

import pytest

import fake_engine
from fake_engine import FakeEngine, solo
from nanolens.engine.engine import Engine
from nanolens.engine.loop import EngineLoop
from nanolens.engine.outputs import RequestOutput
from nanolens.engine.sampling_params import SamplingParams
from nanolens.errors import AuditError, EngineDead, UnknownRequest
from nanolens.telemetry.events import EngineError, EngineStopped, RequestArrived
from nanolens.telemetry.reader import JournalReader

WAIT_S = 30.0


def greedy(max_tokens: int = 8, **more: object) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, **more)  # type: ignore[arg-type]


def complete(loop: EngineLoop, prompt: list[int], params: SamplingParams) -> Future[RequestOutput]:
    """A request's output, some time."""
    output: Future[RequestOutput] = Future()
    loop.call(lambda engine: engine.add_request(prompt, params, on_finish=output.set_result)).result(WAIT_S)
    return output


@contextmanager
def held(loop: EngineLoop) -> Iterator[None]:
    """The loop does not go on before the block's end; what is called meanwhile is queued."""
    has_begun, may_end = threading.Event(), threading.Event()

    def hold(engine: Engine) -> None:
        has_begun.set()
        may_end.wait(WAIT_S)

    loop.call(hold)
    assert has_begun.wait(WAIT_S)
    try:
        yield
    finally:
        may_end.set()


def test_a_command_runs_in_the_loops_thread_and_its_result_comes_back() -> None:
    with EngineLoop(FakeEngine()) as loop:
        threads = [loop.call(lambda engine: threading.current_thread()).result(WAIT_S) for _ in range(2)]
        assert threads[0] is threads[1] is not threading.current_thread()


def test_a_request_is_stepped_to_its_end_without_further_commands() -> None:
    with EngineLoop(FakeEngine()) as loop:
        assert complete(loop, [1, 2, 3], greedy(20)).result(WAIT_S).outputs[0].token_ids == solo([1, 2, 3], 20)


def test_commands_are_run_in_the_order_in_which_they_came() -> None:
    ran: list[int] = []
    with EngineLoop(FakeEngine()) as loop:
        with held(loop):
            calls = [loop.call(lambda engine, i=i: ran.append(i)) for i in range(200)]  # type: ignore[misc]
        for call in calls:
            call.result(WAIT_S)
    assert ran == list(range(200))


@pytest.mark.parametrize("error", [UnknownRequest("nobody"), KeyError("x"), SystemExit(3), KeyboardInterrupt()])
def test_what_a_command_raises_is_its_answer_and_nothing_else(error: BaseException) -> None:
    def fail(engine: Engine) -> None:
        raise error

    with EngineLoop(FakeEngine()) as loop:
        assert loop.call(fail).exception(WAIT_S) is error
        assert loop.is_alive and complete(loop, [1], greedy(3)).result(WAIT_S).finished


def test_a_call_that_is_cancelled_before_its_turn_is_not_run() -> None:
    ran: list[int] = []
    with EngineLoop(FakeEngine()) as loop:
        with held(loop):
            call = loop.call(lambda engine: ran.append(1))
            assert call.cancel()
        loop.call(lambda engine: ran.append(2)).result(WAIT_S)
    with pytest.raises(CancelledError):
        call.result(0)
    assert ran == [2]


def test_without_work_it_sleeps() -> None:
    turns: list[int] = []
    engine = FakeEngine()
    with EngineLoop(engine, on_turn=lambda: turns.append(1)) as loop:
        complete(loop, [1, 2, 3], greedy(5)).result(WAIT_S)
        loop.call(lambda engine: None).result(WAIT_S)
        plans, count = len(engine.runner.plans), len(turns)
        time.sleep(0.3)
        assert len(engine.runner.plans) == plans and len(turns) <= count + 2


def test_a_paused_sequence_alone_is_no_work_and_expires_by_itself() -> None:
    engine = FakeEngine(paused_ttl_s=2e-4)  # of the fake clock, which moves a microsecond at each look
    with EngineLoop(engine) as loop:
        output = complete(loop, [1, 2, 3], greedy(4, on_stop="pause")).result(WAIT_S)
    assert output.outputs[0].finish_reason == "abort" and output.outputs[0].token_ids == solo([1, 2, 3], 4)


def test_a_command_in_a_paused_engine_reaches_the_journal() -> None:
    engine = FakeEngine()
    recorded = threading.Event()
    engine.core.recorder.subscribe(
        lambda events: recorded.set() if any(isinstance(e, RequestArrived) for e in events) else None
    )
    with EngineLoop(engine) as loop:
        loop.call(lambda engine: engine.pause_engine()).result(WAIT_S)
        loop.call(lambda engine: engine.add_request([1, 2, 3], greedy())).result(WAIT_S)
        assert recorded.wait(WAIT_S)


def broken(engine: FakeEngine, error: BaseException) -> FakeEngine:
    """The engine, whose steps fail from the third on."""
    step, count = engine.step, iter(range(1000))

    def fail_later() -> bool:
        if next(count) >= 2:
            raise error
        return step()

    engine.step = fail_later  # type: ignore[method-assign]
    return engine


@pytest.mark.parametrize("error", [AuditError("block 7 is lost"), SystemExit("block 7 is lost")])
def test_a_step_that_fails_ends_the_engine_and_everyone_is_told_why(error: BaseException) -> None:
    engine = broken(FakeEngine(), error)
    with EngineLoop(engine) as loop:
        output = complete(loop, [1, 2, 3], greedy(50)).result(WAIT_S)
        assert output.outputs[0].finish_reason == "error" and "block 7 is lost" in (output.error or "")
        assert "block 7 is lost" in loop.ended.result(WAIT_S)
        with pytest.raises(EngineDead, match="block 7 is lost"):
            loop.call(lambda engine: engine.snapshot()).result(WAIT_S)
        assert not loop.is_alive
    assert engine.runner.closed
    kinds = [type(event) for event in engine.events]
    assert EngineError in kinds and kinds[-1] is EngineStopped and engine.events[-1].reason == "error"


def test_calls_that_are_queued_when_the_engine_dies_are_answered() -> None:
    engine = FakeEngine()

    def die(engine: Engine) -> None:
        engine.step = lambda: 1 / 0  # type: ignore[method-assign,assign,return-value]

    with EngineLoop(engine) as loop:
        with held(loop):
            loop.call(die)
            late: list[Future[object]] = []
            loop.call(lambda engine: late.append(loop.call(lambda engine: None)))  # queued for the next turn
        loop.ended.result(WAIT_S)
        with pytest.raises(EngineDead, match="ZeroDivisionError"):
            late[0].result(0)


def test_close_runs_what_is_queued_and_refuses_what_comes_later() -> None:
    engine = FakeEngine()
    loop = EngineLoop(engine)
    open_request = complete(loop, [1, 2, 3], greedy(200))
    with held(loop):
        calls = [loop.call(lambda engine: engine.engine_paused) for _ in range(50)]
        closer = threading.Thread(target=loop.close)
        closer.start()
    closer.join(WAIT_S)
    assert [call.result(0) for call in calls] == [""] * 50
    assert open_request.result(0).outputs[0].finish_reason in ("abort", "length")
    assert engine.runner.closed and loop.close() and not loop.is_alive
    with pytest.raises(EngineDead, match="the engine is closed"):
        loop.call(lambda engine: None).result(0)
    engine.check_empty()


def test_close_gives_up_on_a_step_that_hangs_and_answers_those_behind_it() -> None:
    engine = FakeEngine()
    loop = EngineLoop(engine)
    with held(loop):
        behind = [loop.call(lambda engine: None) for _ in range(3)]
        assert not loop.close(timeout=0.05)
        for call in behind:
            with pytest.raises(EngineDead, match="has not turned"):
                call.result(0)
        with pytest.raises(EngineDead, match="has not turned"):
            loop.call(lambda engine: None).result(0)
    assert loop.close(WAIT_S) and engine.runner.closed  # it ends in order once it can


def test_close_from_within_a_callback_ends_the_loop_after_the_turn() -> None:
    engine = FakeEngine()
    loop = EngineLoop(engine)
    answers: list[bool] = []
    loop.call(lambda engine: engine.add_request([1], greedy(2), on_finish=lambda o: answers.append(loop.close())))
    assert loop.ended.result(WAIT_S) == "the engine is closed"
    assert answers == [False] and engine.runner.closed


def test_the_beat_shows_a_turn_that_does_not_end() -> None:
    now = [0]
    with EngineLoop(FakeEngine(), clock=lambda: now[0]) as loop:
        with held(loop):
            beat = loop.last_beat_t
            now[0] += 7_000_000_000
            assert loop.age_s() == 7.0 and loop.last_beat_t == beat
        loop.call(lambda engine: None).result(WAIT_S)
        assert loop.age_s() == 0.0


def test_on_turn_comes_after_each_turn_and_after_the_end() -> None:
    engine, seen = FakeEngine(), []  # type: ignore[var-annotated]
    with EngineLoop(engine, on_turn=lambda: seen.append(engine.runner.closed)) as loop:
        complete(loop, [1], greedy(6)).result(WAIT_S)
    assert len(seen) >= 6 and seen[-1] is True and seen[-2] is False


def test_a_program_that_does_not_close_it_ends_with_a_whole_journal(tmp_path: Path) -> None:
    program = (
        "import sys; from fake_engine import FakeEngine; from nanolens.engine.loop import EngineLoop\n"
        "from nanolens.telemetry.journal import JournalWriter; from nanolens.telemetry.recorder import Recorder\n"
        "loop = EngineLoop(FakeEngine(recorder=Recorder(JournalWriter(sys.argv[1], 'run', 1 << 20))))\n"
        "loop.call(lambda engine: engine.add([1, 2, 3], max_tokens=100000))\n"
    )
    support = Path(fake_engine.__file__).parent
    command = [sys.executable, "-c", program, str(tmp_path)]
    env = {"PYTHONPATH": f"{support}", "PATH": ""}
    subprocess.run(command, check=True, timeout=60, env=env, cwd=support)
    events = [event for frame in JournalReader(tmp_path).frames() for event in frame.events]
    assert isinstance(events[-1], EngineStopped) and events[-1].reason == "closed"


def test_callers_in_many_threads_each_get_their_own_answer() -> None:
    def ask(loop: EngineLoop, number: int, answers: dict[int, list[int]]) -> None:
        answers[number] = [loop.call(self_of(number * 1000 + i)).result(WAIT_S) for i in range(100)]

    def self_of(value: int) -> Callable[[Engine], int]:
        return lambda engine: value

    answers: dict[int, list[int]] = {}
    with EngineLoop(FakeEngine()) as loop:
        threads = [threading.Thread(target=ask, args=(loop, number, answers)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
    assert answers == {number: list(range(number * 1000, number * 1000 + 100)) for number in range(4)}
