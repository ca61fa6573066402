"""Stopping a server's engine at a preemption, stepping it, and letting it go: nothing that it gives changes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from nanolens.inspector.sources.control import HttpControl
from nanolens.inspector.sources.http_stream import ServerLink
from nanolens.inspector.sources.server_source import ServerSource
from nanolens.telemetry.events import BreakpointHit, SequencePreempted, StepPlanned
from serve import Server

PROMPTS = [[5 + i, 6, 7 + i, 8, 9] for i in range(6)]


def complete_all(server: Server, pool: ThreadPoolExecutor) -> list[Any]:
    """Six requests at once that do not fit together."""
    return [pool.submit(server.complete, prompt, max_tokens=40, logprobs=1) for prompt in PROMPTS]


def given(answer: dict[str, Any]) -> tuple[str, list[str]]:
    choice = answer["choices"][0]
    return choice["text"], choice["logprobs"]["tokens"]


def test_a_breakpoint_on_preemption_stops_it_and_single_steps_change_nothing(tmp_path: Path) -> None:
    with ThreadPoolExecutor(6) as pool:
        (tmp_path / "calm").mkdir()
        with Server(tmp_path / "calm", num_blocks=256) as calm:
            undisturbed = [given(answer.result(60)) for answer in complete_all(calm, pool)]
            assert not calm.snapshot()["totals"]["preemptions"]
        with Server(tmp_path, num_blocks=24) as server:
            link = ServerLink(server.url)
            control, source = HttpControl(link), ServerSource(server.url)
            source.start()
            try:
                number = control.add_breakpoint("on=preempted")
                answers = complete_all(server, pool)
                server.wait_until(lambda: server.snapshot()["engine_paused"], "stopped by the breakpoint")
                stopped_at = server.snapshot()["step"]
                events = server.events()
                hit = next(at for at, event in enumerate(events) if isinstance(event, BreakpointHit))
                met = max(at for at in range(hit) if isinstance(events[at], SequencePreempted))
                assert events[met].step == stopped_at, "it stopped in the step of the preemption"
                planned = [event.step for event in events if isinstance(event, StepPlanned)]
                assert planned == list(range(1, stopped_at + 1))
                control.remove_breakpoint(number)
                for step in range(stopped_at + 1, stopped_at + 6):
                    control.step_engine(1)
                    assert server.snapshot()["step"] == step
                    server.wait_until(lambda step=step: source.view().keyframe.step == step, "shown")
                assert source.view().keyframe.engine_paused == "steps"
                control.continue_engine()
                assert [given(answer.result(60)) for answer in answers] == undisturbed
            finally:
                source.close()
                link.close()
