"""AsyncEngine over real processes, most of which run the fake model: streams, turns, commands, refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from fake_core import HELD_BACK, FakeAsyncEngine
from fake_engine import solo
from nanolens.engine.async_engine import AsyncEngine
from nanolens.engine.outputs import Delta, RequestOutput
from nanolens.engine.sampling_params import SamplingParams
from nanolens.engine.turn import Turn
from nanolens.errors import (
    EngineDead,
    InvalidConfig,
    InvalidRequest,
    NotPaused,
    PromptTooLong,
    UnknownModel,
    UnknownRequest,
)
from nanolens.telemetry.events import RequestFinished, RequestRefused
from nanolens.telemetry.reader import JournalReader

T = TypeVar("T")


def go(work: Callable[[FakeAsyncEngine], Coroutine[Any, Any, T]], model: str = "fake", **options: Any) -> T:
    """Run a test's work on an engine in a fresh process."""

    async def main() -> T:
        async with FakeAsyncEngine(model, **options) as engine:
            return await work(engine)

    return asyncio.run(asyncio.wait_for(main(), 60))


def greedy(max_tokens: int = 8, **more: Any) -> SamplingParams:
    return SamplingParams(**({"temperature": 0.0, "max_tokens": max_tokens} | more))


async def collect(turn: Turn) -> list[Delta]:
    return [delta async for delta in turn]


def ids_of(deltas: list[Delta], index: int = 0) -> list[int]:
    return [token for delta in deltas if delta.index == index for token in delta.token_ids]


async def is_idle(engine: AsyncEngine) -> bool:
    """Whether nothing lives and every block is free, now."""
    now = await engine.snapshot()
    return not now.sequences and len(now.free_blocks) == now.started.num_blocks


def test_a_stream_gives_each_token_as_it_comes_and_ends_with_the_output() -> None:
    async def work(engine: AsyncEngine) -> tuple[list[Delta], RequestOutput | None]:
        turn = engine.generate([1, 2, 3], greedy(10))
        return await collect(turn), turn.output

    deltas, output = go(work)
    assert [delta.token_ids for delta in deltas] == [[token] for token in solo([1, 2, 3], 10)]
    assert [delta.finish_reason for delta in deltas] == [None] * 9 + ["length"]
    assert output is not None and output.finished and output.outputs[0].token_ids == solo([1, 2, 3], 10)


def test_eight_streams_at_once_each_get_their_own_tokens() -> None:
    async def work(engine: AsyncEngine) -> list[list[Delta]]:
        return await asyncio.gather(*(collect(engine.generate([i, 7, i], greedy(20))) for i in range(8)))

    assert [ids_of(deltas) for deltas in go(work)] == [solo([i, 7, i], 20) for i in range(8)]


def test_complete_gives_the_whole_output_of_all_sequences() -> None:
    output = go(lambda engine: engine.complete([4, 5], greedy(5, n=3), request_id="mine"))
    assert output.request_id == "mine" and output.finished and output.prompt_token_ids == [4, 5]
    assert [one.token_ids for one in output.outputs] == [solo([4, 5], 5)] * 3
    assert output.metrics is not None and output.metrics.num_output_tokens == 15


def test_parameters_and_log_probabilities_pass_unchanged(tmp_path: Path) -> None:
    go(
        lambda engine: engine.complete(
            [4], greedy(3, logit_bias={5: -1.5}, stop_token_ids=[6], seed=11), priority=-2, traceparent="00-ab-cd-01"
        ),
        journal=str(tmp_path),
    )
    (arrived,) = [event for event in events_of(tmp_path) if type(event).__name__ == "RequestArrived"]
    assert (arrived.priority, arrived.traceparent, arrived.params["seed"]) == (-2, "00-ab-cd-01", 11)
    assert (arrived.params["num_logit_bias"], arrived.params["num_stop_token_ids"]) == (1, 1)


async def left_by_close(turn: Turn) -> None:
    await anext(turn)
    await turn.aclose()


async def left_by_break(turn: Turn) -> None:
    async for _ in turn:
        break
    del turn


async def left_by_cancel(turn: Turn) -> None:
    task = asyncio.ensure_future(collect(turn))
    del turn
    await asyncio.sleep(0.3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("leave", [left_by_close, left_by_break, left_by_cancel])
def test_a_stream_that_is_left_is_aborted_within_two_steps(
    leave: Callable[[Turn], Coroutine[Any, Any, None]],
) -> None:
    async def work(engine: AsyncEngine) -> tuple[int, bool]:
        await leave(engine.generate([1, 2, 3], greedy(400, n=2)))
        before = (await engine.snapshot()).step
        idle = await is_idle(engine)
        return (await engine.snapshot()).step - before, idle

    steps, idle = go(work, "fake:0.1", num_blocks=256)
    assert idle and steps <= 2


def test_a_completion_whose_task_is_cancelled_is_aborted() -> None:
    async def work(engine: AsyncEngine) -> bool:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(engine.complete([1], greedy(200)), 0.2)
        return await is_idle(engine)

    assert go(work, "fake:0.05")


def test_a_request_that_is_left_before_its_arrival_was_answered_is_aborted() -> None:
    async def work(engine: AsyncEngine) -> bool:
        task = asyncio.ensure_future(engine.complete([1], greedy(200)))
        await asyncio.sleep(0)  # it is sent
        task.cancel()
        await asyncio.wait([task])
        return await is_idle(engine)

    assert go(work, "fake:0.05")


def test_abort_ends_the_stream_with_its_reason() -> None:
    async def work(engine: AsyncEngine) -> tuple[bool, bool, list[Delta]]:
        turn = engine.generate([1, 2, 3], greedy(200), request_id="long")
        await anext(turn)
        return await engine.abort("long"), await engine.abort("long"), await collect(turn)

    first, second, rest = go(work, "fake:0.01")
    assert (first, second) == (True, False)
    assert rest[-1].finish_reason == "abort"


def test_a_conversation_goes_on_where_it_paused() -> None:
    prompt, said = [1, 2, 3], [8, 9]

    async def work(engine: AsyncEngine) -> tuple[Turn, list[Delta], Turn, list[Delta], RequestOutput, bool]:
        first = engine.generate(prompt, greedy(4, on_stop="pause"))
        one = await collect(first)
        second = engine.resume(first.request_id, append=said, max_tokens=3)
        two = await collect(second)
        output = await engine.finish(first.request_id)
        return first, one, second, two, output, await is_idle(engine)

    first, one, second, two, output, idle = go(work)
    assert ids_of(one) == solo(prompt, 4) and one[-1].pause_reason == "length"
    assert first.output is not None and not first.output.finished
    assert ids_of(two) == solo(prompt + solo(prompt, 4) + said, 3)
    assert second.output is not None and not second.output.finished
    assert output.finished and output.outputs[0].token_ids == ids_of(one) + ids_of(two)
    assert idle


def test_a_completion_that_pauses_can_be_streamed_on() -> None:
    async def work(engine: AsyncEngine) -> tuple[RequestOutput, list[Delta], RequestOutput]:
        paused = await engine.complete([1, 2, 3], greedy(4, on_stop="pause"))
        deltas = await collect(engine.resume(paused.request_id, max_tokens=5))
        return paused, deltas, await engine.finish(paused.request_id)

    paused, deltas, output = go(work)
    assert not paused.finished and paused.outputs[0].token_ids == solo([1, 2, 3], 4)
    assert paused.outputs[0].token_ids + ids_of(deltas) == output.outputs[0].token_ids == solo([1, 2, 3], 9)


def test_text_that_a_pause_held_back_is_the_first_piece_of_the_next_turn() -> None:
    async def work(engine: AsyncEngine) -> list[Delta]:
        paused = await engine.complete([1, 2, 3], greedy(4, on_stop="pause"))
        return await collect(engine.resume(paused.request_id, append=[HELD_BACK], max_tokens=2))

    assert [delta.text for delta in go(work)] == ["held back", "", ""]


def test_an_operators_pause_ends_the_turn_and_resume_gives_the_rest() -> None:
    async def work(engine: AsyncEngine) -> tuple[list[Delta], list[Delta], list[str]]:
        turn = engine.generate([1, 2, 3], greedy(30), request_id="r")
        one = [await anext(turn)]
        assert await engine.pause("r") and not await engine.pause("r")
        one += await collect(turn)
        statuses = [seq.status for seq in (await engine.snapshot()).sequences]
        return one, await collect(engine.resume("r")), statuses

    one, two, statuses = go(work, "fake:0.01")
    assert statuses == ["PAUSED"] and one[-1].pause_reason == "operator" and two[-1].finish_reason == "length"
    assert ids_of(one) + ids_of(two) == solo([1, 2, 3], 30)


def test_a_sibling_that_is_resumed_joins_the_turn_that_is_open() -> None:
    async def work(engine: AsyncEngine) -> tuple[list[Delta], list[Delta], Turn, Turn]:
        turn = engine.generate([1, 2, 3], greedy(20, n=2), request_id="r")
        one = [await anext(turn)]
        assert await engine.pause("r", index=1)
        second = engine.resume("r", index=1)
        rest, two = await asyncio.gather(collect(turn), collect(second))
        return one + rest, two, turn, second

    one, two, turn, second = go(work, "fake:0.02")
    assert ids_of(one, 0) == ids_of(one, 1) == solo([1, 2, 3], 20) and two == []
    assert turn.output is not None and turn.output.finished and second.output is turn.output


def test_commands_fail_with_the_engines_own_errors() -> None:
    async def work(engine: AsyncEngine) -> None:
        with pytest.raises(UnknownRequest):
            await engine.pause("nobody")
        with pytest.raises(UnknownRequest):
            await collect(engine.resume("nobody"))
        with pytest.raises(UnknownRequest):
            await engine.finish("nobody")
        turn = engine.generate([1, 2], greedy(100), request_id="runs")
        await anext(turn)
        with pytest.raises(NotPaused):
            await engine.resume("runs").start()
        with pytest.raises(NotPaused):
            await engine.finish("runs")
        with pytest.raises(InvalidRequest) as refused:
            await engine.set_priority("runs", 2**40)
        assert refused.value.field == "priority"
        assert ids_of([await anext(turn)]) != []  # a refused resume leaves it running

    go(work, "fake:0.01")


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda engine: engine.set_priority("r", "high"), "priority"),
        (lambda engine: engine.abort(object()), "request_id"),
        (lambda engine: engine.abort("\ud800"), "request_id"),
        (lambda engine: engine.continue_engine(1.5), "num_steps"),
        (lambda engine: engine.continue_engine(-1), "num_steps"),
        (lambda engine: engine.add_breakpoint("on=nothing.known"), "predicate"),
        (lambda engine: engine.resume("r", append=[1, 10**30]).start(), "append"),
        (lambda engine: engine.resume("r", append={1}).start(), "append"),
        (lambda engine: engine.complete([1, 2000]), "prompt"),
        (lambda engine: engine.complete([1, 10**30]), "prompt"),
        (lambda engine: engine.complete([]), "prompt"),
        (lambda engine: engine.complete(None), "prompt"),
        (lambda engine: engine.complete("\ud800"), "prompt"),
        (lambda engine: engine.complete("a text without a tokenizer"), "prompt"),
        (lambda engine: engine.complete([1], {"n": 1}), "params"),
        (lambda engine: engine.complete([1], priority="high"), "priority"),
        (lambda engine: engine.complete([1], request_id=5), "request_id"),
        (lambda engine: engine.complete([1], request_id=""), "request_id"),
        (lambda engine: engine.complete([1], traceparent=b"00"), "traceparent"),
        (lambda engine: engine.complete([1], route={"load": 0.5}), "route"),
        (lambda engine: engine.complete([1], SamplingParams(stop=["\ud800"])), "params"),
    ],
)
def test_what_is_refused_names_its_field_and_touches_nobody_else(
    call: Callable[[AsyncEngine], Coroutine[Any, Any, object]], field: str
) -> None:
    async def work(engine: AsyncEngine) -> str:
        running = engine.generate([1, 2, 3], greedy(20))
        first = [await anext(running)]
        with pytest.raises(InvalidRequest) as refused:
            await call(engine)
        assert ids_of(first + await collect(running)) == solo([1, 2, 3], 20)
        return refused.value.field

    assert go(work, "fake:0.002") == field


def test_refusals_on_either_side_of_the_pipe_are_recorded(tmp_path: Path) -> None:
    async def work(engine: AsyncEngine) -> None:
        for prompt, name in (([1, 10**30], "here"), ([], "there"), ([1] * 600, "long")):
            with pytest.raises(InvalidRequest) as refused:
                await engine.complete(prompt, request_id=name)
        assert type(refused.value) is PromptTooLong

    go(work, journal=str(tmp_path))
    refusals = [(e.request, e.field) for e in events_of(tmp_path) if isinstance(e, RequestRefused)]
    assert refusals == [("here", "prompt"), ("there", "prompt"), ("long", "prompt")]


def test_a_second_request_of_a_live_name_is_refused_and_the_first_one_goes_on() -> None:
    async def work(engine: AsyncEngine) -> list[Delta]:
        turn = engine.generate([1, 2, 3], greedy(20), request_id="twin")
        first = [await anext(turn)]
        with pytest.raises(InvalidRequest, match="live request has this id"):
            await engine.complete([4], request_id="twin")
        return first + await collect(turn)

    assert ids_of(go(work, "fake:0.01")) == solo([1, 2, 3], 20)


def test_a_name_can_be_used_again_once_its_request_has_ended() -> None:
    async def work(engine: AsyncEngine) -> list[RequestOutput]:
        return [await engine.complete([i], greedy(2), request_id="again") for i in range(3)]

    assert [output.outputs[0].token_ids for output in go(work)] == [solo([i], 2) for i in range(3)]


def test_a_paused_engine_plans_nothing_until_it_is_told_to() -> None:
    async def work(engine: AsyncEngine) -> tuple[int, int, list[Delta]]:
        await engine.pause_engine("a look")
        turn = engine.generate([1, 2, 3], greedy(6))
        await turn.start()
        frozen = await engine.snapshot()
        assert frozen.engine_paused == "a look"
        await engine.continue_engine(2)
        first = [await anext(turn), await anext(turn)]
        stopped = await engine.snapshot()
        await engine.continue_engine()
        return stopped.step - frozen.step, len(stopped.running), first + await collect(turn)

    steps, running, deltas = go(work)
    assert (steps, running) == (2, 1) and ids_of(deltas) == solo([1, 2, 3], 6)


def test_a_breakpoint_pauses_the_engine_until_it_is_removed() -> None:
    async def work(engine: AsyncEngine) -> tuple[dict[int, str], str, bool, RequestOutput]:
        number = await engine.add_breakpoint("on=request.arrived")
        listed = await engine.breakpoints()
        turn = engine.generate([1, 2, 3], greedy(6))
        await turn.start()
        paused = (await engine.snapshot()).engine_paused
        removed = await engine.remove_breakpoint(number)
        await engine.continue_engine()
        return listed, paused, removed, await turn.result()

    listed, paused, removed, output = go(work)
    assert len(listed) == 1 and paused.startswith("breakpoint") and removed and output.finished


def test_a_reader_that_is_slow_holds_nobody_up_and_misses_nothing() -> None:
    async def work(engine: AsyncEngine) -> tuple[bool, list[Delta]]:
        slow = engine.generate([1, 2, 3], greedy(150))
        first = [await anext(slow)]
        await engine.complete([4, 5], greedy(180))  # the other one ends first, unread
        return not (await engine.snapshot()).sequences, first + await collect(slow)

    idle, deltas = go(work, num_blocks=128)
    assert idle and ids_of(deltas) == solo([1, 2, 3], 150)


def test_close_ends_open_streams_and_the_journal_in_order(tmp_path: Path) -> None:
    async def main() -> tuple[list[Delta], AsyncEngine]:
        engine = await FakeAsyncEngine.start("fake:0.01", journal=str(tmp_path))
        turn = engine.generate([1, 2, 3], greedy(200))
        first = [await anext(turn)]
        await engine.close()
        await engine.close()
        with pytest.raises(EngineDead, match="the engine is closed"):
            await engine.complete([1])
        return first + await collect(turn), engine

    deltas, engine = asyncio.run(asyncio.wait_for(main(), 60))
    assert deltas[-1].finish_reason == "abort" and not engine.is_alive
    events = events_of(tmp_path)
    assert [e.finish_reason for e in events if isinstance(e, RequestFinished)] == ["abort"]
    assert type(events[-1]).__name__ == "EngineStopped" and events[-1].reason == "closed"


def test_bad_options_are_refused_before_there_is_a_process() -> None:
    with pytest.raises(TypeError, match="did you mean block_size"):
        AsyncEngine("smollm2", blok_size=16)
    with pytest.raises(InvalidConfig, match="num_blocks=0"):
        AsyncEngine("smollm2", num_blocks=0)


def test_what_stands_in_the_way_of_a_start_comes_back_as_itself() -> None:
    async def main() -> None:
        with pytest.raises(UnknownModel, match="not the fake model"):
            await FakeAsyncEngine.start("other")
        with pytest.raises(InvalidConfig, match="recording=False"):
            await FakeAsyncEngine.start("fake", recording=False, journal="nowhere")

    asyncio.run(asyncio.wait_for(main(), 60))


def test_an_engine_is_started_first_once_and_used_in_its_own_loop() -> None:
    engine = FakeAsyncEngine()
    with pytest.raises(RuntimeError, match="was not started"):
        engine.generate([1])

    async def main() -> None:
        async with engine:
            with pytest.raises(RuntimeError, match="started once"):
                await engine.__aenter__()
            with pytest.raises(RuntimeError, match="event loop"):
                await asyncio.to_thread(lambda: asyncio.run(engine.ping()))

    asyncio.run(asyncio.wait_for(main(), 60))


def events_of(journal: Path) -> list[Any]:
    return [event for frame in JournalReader(journal).frames() for event in frame.events]


def test_turns_that_were_left_are_forgotten_by_the_client_too() -> None:
    async def work(engine: AsyncEngine) -> int:
        for i in range(30):
            turn = engine.generate([i, 3], greedy(200, ignore_eos=True))
            await turn.__anext__()
            await turn.aclose()
        client = engine._client
        assert client is not None
        return len(client._by_name) + len(client._streams)

    assert go(work, max_model_len=300) == 0
