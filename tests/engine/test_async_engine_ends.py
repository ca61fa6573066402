"""How an AsyncEngine's process ends: killed, by a fault, by its parent's end, by signals. And real models in one."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

import fake_core
from fake_core import BREAKS_AUDIT, EXITS, HANGS, FakeAsyncEngine
from nanolens.engine import messages
from nanolens.engine.async_engine import AsyncEngine
from nanolens.engine.config import EngineConfig
from nanolens.engine.core_link import how_it_ended
from nanolens.engine.outputs import RequestOutput
from nanolens.engine.sampling_params import SamplingParams
from nanolens.errors import EngineDead, RequestFailed, UnknownModel
from nanolens.telemetry.audit import Audit
from nanolens.telemetry.events import EngineError, EngineStopped, RequestFinished
from nanolens.telemetry.reader import JournalReader

PARENT = Path(fake_core.__file__).with_name("async_parent.py")
LONG = SamplingParams(temperature=0.0, max_tokens=200)


def events_of(journal: Path) -> list[Any]:
    return [event for frame in JournalReader(journal).frames() for event in frame.events]


def check_ended_in_order(journal: Path, reason: str) -> None:
    """The journal has its last event, and everything in it adds up."""
    events = events_of(journal)
    assert isinstance(events[-1], EngineStopped) and events[-1].reason == reason
    audit = Audit()
    audit.apply_all(events)
    assert not audit.state.to_keyframe().sequences


def wait_until(condition: Any, seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(condition())


def is_gone(pid: int) -> bool:
    """Whether a process, perhaps nobody's child any more, has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_when_the_process_is_killed_every_open_stream_and_call_says_so() -> None:
    async def main() -> tuple[int, list[BaseException | None], list[str]]:
        engine = await FakeAsyncEngine.start("fake:0.01")
        turns = [engine.generate([i, 2, 3], LONG) for i in range(4)]
        for turn in turns:
            await anext(turn)
        os.kill(engine.pid, signal.SIGSTOP)
        calls = [asyncio.ensure_future(engine.snapshot()), asyncio.ensure_future(engine.complete([9], LONG))]
        await asyncio.sleep(0)  # they are sent, and not answered
        os.kill(engine.pid, signal.SIGKILL)
        ends: list[BaseException | None] = []
        for turn in turns:
            with pytest.raises(EngineDead) as dead:
                async for _ in turn:
                    pass
            ends.append(dead.value)
        ends += [r for r in await asyncio.gather(*calls, return_exceptions=True) if isinstance(r, BaseException)]
        assert not engine.is_alive
        later = []
        for call in (engine.ping(), engine.complete([1]), engine.abort("x"), engine.resume("x").result()):
            with pytest.raises(EngineDead) as dead:
                await call
            later.append(str(dead.value))
        await engine.close()
        return engine.pid, ends, later

    pid, ends, later = asyncio.run(asyncio.wait_for(main(), 60))
    words = f"the engine process {pid} was killed by signal SIGKILL"
    assert [(type(end), str(end)) for end in ends] == [(EngineDead, words)] * 6
    assert later == [words] * 4


def test_a_process_that_exits_is_named_with_its_code() -> None:
    async def main() -> None:
        async with FakeAsyncEngine() as engine:
            with pytest.raises(EngineDead, match=rf"^the engine process {engine.pid} exited with code 3$"):
                await engine.complete([EXITS], LONG)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_exit_codes_in_words() -> None:
    assert how_it_ended(0) == "exited with code 0"
    assert how_it_ended(-signal.SIGSEGV) == "was killed by signal SIGSEGV"
    assert how_it_ended(-40) == "was killed by signal 40"


def test_a_process_that_ends_before_it_is_ready_says_what_may_be_wrong() -> None:
    class Broken(FakeAsyncEngine):
        _main = staticmethod(fake_core.exit_at_once)

    async def main() -> None:
        with pytest.raises(EngineDead, match=r"exited with code 7 before it was ready.*__name__ == '__main__'"):
            await Broken.start("fake")

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_start_that_is_cancelled_leaves_no_process() -> None:
    class Sleeper(FakeAsyncEngine):
        _main = staticmethod(fake_core.sleep_long)

    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(Sleeper.start("fake"), 0.3)

    asyncio.run(asyncio.wait_for(main(), 60))  # the guard in conftest looks for the process


def test_a_fault_in_the_loop_ends_the_requests_and_the_engine_with_its_cause(tmp_path: Path) -> None:
    async def main() -> None:
        engine = await FakeAsyncEngine.start("fake:0.01", journal=str(tmp_path))
        turn = engine.generate([1, 2, 3], LONG)
        await anext(turn)
        output, streamed = await asyncio.gather(
            engine.complete([BREAKS_AUDIT], LONG), read_to_the_end(turn), return_exceptions=True
        )
        assert isinstance(output, RequestOutput) and output.outputs[0].finish_reason == "error"
        assert "block 7 is free and referenced" in (output.error or "")
        assert isinstance(streamed, RequestFailed) and "block 7 is free and referenced" in str(streamed)
        with pytest.raises(EngineDead, match="block 7 is free and referenced"):
            while True:
                await engine.ping()
        await engine.close()
        with pytest.raises(EngineDead, match="block 7 is free and referenced"):
            await engine.snapshot()

    asyncio.run(asyncio.wait_for(main(), 60))
    check_ended_in_order(tmp_path, "error")
    assert any(isinstance(event, EngineError) for event in events_of(tmp_path))


async def read_to_the_end(turn: Any) -> None:
    async for _ in turn:
        pass


def test_a_step_that_hangs_is_seen_by_ping_and_close_kills_it(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> tuple[list[float], BaseException | None]:
        engine = await FakeAsyncEngine.start("fake")
        idle = await engine.ping()
        turn = engine.generate([HANGS], LONG)
        await turn.start()
        await asyncio.sleep(1.5)
        ages = [idle, await engine.ping()]
        await engine.close(timeout=0.2)
        with pytest.raises(EngineDead) as dead:
            await anext(turn)
        return ages, dead.value

    with caplog.at_level(logging.WARNING, logger="nanolens.engine"):
        (idle, hung), dead = asyncio.run(asyncio.wait_for(main(), 60))
    assert idle < 1.4 < hung
    assert "did not end within 0.2 s" in caplog.text and "SIGKILL" in str(dead)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_in_order(number: signal.Signals, tmp_path: Path) -> None:
    signal.signal(number, signal.SIG_DFL)  # under nohup an engine ignores it, as it should

    async def main() -> list[str | None]:
        engine = await FakeAsyncEngine.start("fake:0.01", journal=str(tmp_path))
        turn = engine.generate([1, 2, 3], LONG)
        await anext(turn)
        os.kill(engine.pid, number)
        reasons = [delta.finish_reason async for delta in turn]
        with pytest.raises(EngineDead, match=f"the engine process {engine.pid} was ended by {number.name}"):
            while True:
                await engine.ping()
        await engine.close()
        return reasons

    assert asyncio.run(asyncio.wait_for(main(), 60))[-1] == "abort"
    check_ended_in_order(tmp_path, "closed")


def test_ctrl_c_is_the_parents_alone() -> None:
    async def main() -> bool:
        async with FakeAsyncEngine() as engine:
            os.kill(engine.pid, signal.SIGINT)
            output = await engine.complete([1, 2], SamplingParams(temperature=0.0, max_tokens=30))
            return output.finished and engine.is_alive

    assert asyncio.run(asyncio.wait_for(main(), 60))


def start_parent(journal: Path, mode: str) -> tuple[subprocess.Popen[str], int]:
    """A program with an engine: its process, and the engine's pid."""
    env = os.environ | {"PYTHONPATH": str(PARENT.parent), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, str(PARENT), str(journal), mode]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


@pytest.mark.parametrize("mode", ["waits", "returns", "drops"])
def test_the_process_ends_in_order_when_nobody_is_there_for_it(mode: str, tmp_path: Path) -> None:
    parent, pid = start_parent(tmp_path, mode)
    with parent:
        try:
            if mode == "waits":
                parent.kill()
            elif mode == "returns":
                assert parent.wait(30) == 0
            assert wait_until(lambda: is_gone(pid))
        finally:
            parent.kill()
    check_ended_in_order(tmp_path, "closed")


def test_a_parent_that_reads_nothing_does_not_stop_the_steps(tmp_path: Path) -> None:
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    with socket.socket(fileno=os.dup(theirs.fileno())) as small:
        small.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    process = context.Process(target=fake_core.main, args=(theirs,))
    process.start()
    theirs.close()
    config = EngineConfig(model="fake", num_blocks=256, block_size=4, journal=str(tmp_path))
    ours.send_bytes(messages.encode(messages.Start(config)))
    for call in range(1, 9):
        add = messages.Add([call], SamplingParams(temperature=0.0, max_tokens=100), f"r{call}", None, True)
        ours.send_bytes(messages.encode_command(call, add))
    try:
        assert wait_until(lambda: num_finished(tmp_path) == 8)  # about 60 kB are on their way
        ours.close()
        process.join(30)
        assert process.exitcode == 0
    finally:
        process.kill()
        process.join()
    check_ended_in_order(tmp_path, "closed")


def num_finished(journal: Path) -> int:
    return sum(isinstance(e, RequestFinished) for e in events_of(journal)) if any(journal.iterdir()) else 0


TINY = {"num_blocks": 128, "device": "cpu", "dtype": "float32", "audit": True}


def test_a_real_model_streams_text_to_eight_readers() -> None:
    prompts = [f"number {i}: " for i in range(8)]
    params = SamplingParams(temperature=0.8, seed=5, max_tokens=24, ignore_eos=True)

    async def text_of(engine: AsyncEngine, prompt: str) -> tuple[str, str]:
        turn = engine.generate(prompt, params)
        text = "".join([delta.text async for delta in turn])
        return text, turn.output.outputs[0].text if turn.output else ""

    async def main() -> list[tuple[str, str]]:
        async with AsyncEngine("dummy:llama-tiny", **TINY) as engine:
            return await asyncio.gather(*(text_of(engine, prompt) for prompt in prompts))

    from nanolens.engine.llm import LLM

    with LLM("dummy:llama-tiny", **TINY) as llm:
        alone = [llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].text for prompt in prompts]
    assert asyncio.run(asyncio.wait_for(main(), 120)) == [(text, text) for text in alone]


def test_a_model_that_does_not_exist_is_named(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(UnknownModel, match="nowhere"):
            await AsyncEngine.start(str(tmp_path / "nowhere"))

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.model
def test_a_conversation_with_the_embedded_model(smollm2_dir: Path) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=12, on_stop="pause", ignore_eos=True)

    async def main() -> tuple[RequestOutput, RequestOutput, RequestOutput]:
        async with AsyncEngine(str(smollm2_dir), num_blocks=64, device="cpu", audit=True) as engine:
            first = await engine.complete("The capital of France is", params)
            second = await engine.resume(first.request_id, append=" And of Italy", max_tokens=8).result()
            return first, second, await engine.finish(first.request_id)

    first, second, output = asyncio.run(asyncio.wait_for(main(), 240))
    assert "Paris" in first.outputs[0].text and not first.finished and output.finished
    assert len(output.outputs[0].token_ids) == 20
    assert output.outputs[0].token_ids == second.outputs[0].token_ids
    assert output.outputs[0].text.startswith(first.outputs[0].text)
