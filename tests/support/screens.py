"""Screens of nano-inspect that are the same at any time and on any machine: a made run, and the keys to each screen."""

from __future__ import annotations

import functools
import itertools
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
from textual.pilot import Pilot
from textual.widgets import OptionList

from fake_engine import FakeEngine
from fake_fleet import FakeFleet, Front
from fake_source import FakeSource
from nanolens.engine.plan import StepResult
from nanolens.engine.sampling_params import SamplingParams
from nanolens.inspector.fleet_rows import Fleet, Sample, fleet_row
from nanolens.inspector.tui.app import NanoInspectApp
from nanolens.inspector.tui.detail_view import DetailView
from nanolens.inspector.tui.fleet_screen import FleetScreen
from nanolens.inspector.tui.inspect_screen import InspectScreen
from nanolens.inspector.tui.live_table import LiveTable
from nanolens.inspector.tui.picker_screen import Choice
from nanolens.inspector.view import EventRow, Judgement, Moment, Story, View
from nanolens.telemetry.events import AnyEvent, EngineStarted, StepFinished
from nanolens.telemetry.journal import JournalWriter
from nanolens.telemetry.predicate import Predicate
from nanolens.telemetry.recorder import Recorder
from views import Frames, judgement_of, story_of, view_of

MS = 1_000_000
BEGIN_S = 1_700_000_000  # 22:13:20 UTC
STEPS = 260
CHOSEN = "agent-16"  # shares its first blocks with others, and was preempted

CHOICES = (
    Choice("http://127.0.0.1:8000", None, "server", "live", "smollm2", "pid 4242, up 2 h 10 m"),
    Choice("http://127.0.0.1:8001", None, "server", "live", "llama-tiny", "pid 4310, up 35 s"),
    Choice("/srv/journals/night", None, "journal", "dead", "smollm2", "written 11-14 03:12"),
    Choice("/srv/journals/conversations-of-the-week", None, "journal", "ended", "qwen3-0.6b", "written 11-12 18:40"),
)


class StandingClock:
    """Moves when it is told to: how often the engine reads it changes nothing."""

    def __init__(self) -> None:
        self.now = 1_000 * MS

    def __call__(self) -> int:
        return self.now


@functools.cache
def shown_run() -> Frames:
    """The frames of a run under load: 160 blocks of 16 tokens, agents that share a long beginning and pause, chats,
    batch jobs of less importance, preemption into host memory, pauses down to the disk.
    """
    frames: list[tuple[AnyEvent, ...]] = []
    clock = StandingClock()
    recorder = Recorder(None, clock)
    recorder.subscribe(lambda events: frames.append(tuple(_fixed(event) for event in events)))
    _run(recorder, clock)
    return tuple(frames)


def record(journal: Path) -> None:
    """Record such a run, up to where an engine that is killed then would leave it."""
    clock = StandingClock()
    writer = JournalWriter(journal, "test", clock=clock)
    _run(Recorder(writer, clock), clock)
    writer.close()


def _run(recorder: Recorder, clock: StandingClock) -> FakeEngine:
    rng = random.Random(11)
    engine = FakeEngine(
        recorder=recorder, clock=clock, num_blocks=160, block_size=16, max_num_seqs=14, max_num_batched_tokens=256,
        max_prefill_chunk=128, policy="priority", host_blocks=64, disk_blocks=32,
    )  # fmt: skip
    collect = engine.runner.collect

    def collect_late(handle: Any) -> StepResult:
        tokens = sum(engine.runner.plans[-1].counts) if engine.runner.plans else 0
        device = 6 * MS + tokens * MS // 24
        clock.now += device + MS // 2
        return replace(collect(handle), device_ns=device, wait_ns=device - MS)

    engine.runner.collect = collect_late  # type: ignore[method-assign]
    shared, counts = [rng.randrange(300) for _ in range(96)], {"agent": 0, "chat": 0, "batch": 0}

    def add(kind: str) -> None:
        counts[kind] += 1
        own = [rng.randrange(300) for _ in range(rng.randint(10, 60) if kind != "batch" else rng.randint(120, 260))]
        params = SamplingParams(
            max_tokens=rng.randint(60, 200), temperature=0.0, priority={"agent": 1, "chat": 0, "batch": 5}[kind]
        )
        engine.add_request((shared if kind == "agent" else []) + own, params, request_id=f"{kind}-{counts[kind]}")

    for step in range(STEPS):
        if step % 12 == 0:
            add("agent")
        if step % 14 == 3:
            add("chat")
        if step % 24 == 6:
            add("batch")
        if step in (70, 120, 165, 190):
            engine.pause(f"agent-{step // 15}", reason="await_input")
        if step == 215:
            engine.pause("chat-12")
        clock.now += MS + step % 5 * MS // 4
        engine.step()
    engine.core.flush()
    return engine


def _fixed(event: AnyEvent) -> AnyEvent:
    """A run's first event as of a fixed time of day; a step's times on the host, which stand still, as they may be."""
    if isinstance(event, StepFinished):
        plan = (300 + event.step * 7919 % 400) * 1000
        return msgspec.structs.replace(event, plan_ns=plan, launch_ns=400_000)
    if not isinstance(event, EngineStarted):
        return event
    return msgspec.structs.replace(
        event, run_id="20231114T221320-c0ffee", wall_offset_ns=BEGIN_S * 1000 * MS, pid=4242, model="smollm2"
    )


class ShownSource(FakeSource):
    """The journal of `shown_run`, live after its last frame. A moment is the number of a frame."""

    def __init__(self) -> None:
        super().__init__()
        self.last = len(shown_run())

    def view(self, moment: Moment | None = None) -> View:
        at = moment.segment if moment else self.last
        if at not in self._views:
            self._views[at] = replace(view_of(shown_run(), at), moment=Moment(at, 0, 0))
        return replace(self._views[at], is_live=moment is None, status=self.status_now)

    def story(self, seq: int, moment: Moment, now_t: int = 0) -> Story | None:
        return story_of(seq, moment.segment, shown_run())

    def verdict(self, seq: int, moment: Moment, now_t: int = 0) -> Judgement | None:
        return judgement_of(seq, moment.segment, shown_run())

    def find(self, moment: Moment, predicate: Predicate | None, forward: bool) -> EventRow | None:
        frames = range(moment.segment + 1, self.last + 1) if forward else range(moment.segment - 1, 0, -1)
        for frame in frames:
            for event in shown_run()[frame - 1]:
                if predicate is None or predicate.matches(event):
                    return EventRow(Moment(frame, 0, 0), 0, 0, event)
        return None


REPLICAS: tuple[tuple[str, int, int, int, int, int, str], ...] = (
    # id, waiting, running, free blocks, hit tokens of 48,000, tokens sampled in two seconds, trouble
    ("k3vq8a2n", 0, 14, 3_120, 43_700, 1_640, ""),
    ("p0x7rd5c", 6, 32, 212, 31_050, 2_910, ""),
    ("zt41mw9e", 2, 17, 1_903, 39_400, 1_902, ""),
    ("b86jyh3u", 9, 3, 640, 12_200, 0, "the engine is gone (killed by signal 9)"),
    ("qa5n2fl0", 0, 0, 4_096, 0, 0, ""),
)


class ShownFleet(FakeFleet):
    """Five replicas of two ranks: one is full, one is dead, one has just come."""

    def look(self) -> Fleet:
        rows = []
        for name, waiting, running, free, hit, tokens, trouble in REPLICAS:
            run = f"20231114T2213{len(rows):02d}-c0ffee" if hit else ""
            report = {"id": name, "run": run, "trouble": trouble, "free_blocks": free, "num_blocks": 4_096}
            samples = [self._sample(waiting, running, free, hit, at * tokens // 2, at) for at in (0, 2)] if hit else []
            rows.append(fleet_row(report | {"queue_age_s": waiting * 0.41}, samples, 2_300 * MS))
        return Fleet(self.url, rows, {"prefix": 412, "load": 71, "no_blocks": 17})

    def _sample(self, waiting: int, running: int, free: int, hit: int, tokens: int, at_s: int) -> Sample:
        counts = {"WAITING": waiting, "RUNNING": running, "PAUSED": running // 8}
        totals = {"prefix_queried_tokens": 48_000, "prefix_hit_tokens": hit, "preemptions": waiting * 3}
        blocks = {"free": free, "total": 4_096}
        snapshot = {"model": "qwen3-8b", "counts": counts, "blocks": blocks}
        skew_ns = 340_000 + waiting * 95_000
        return Sample(at_s * 1_000 * MS, snapshot | {"totals": totals | {"generated_tokens": tokens}}, skew_ns)


@dataclass(frozen=True)
class Shown:
    """A screen of nano-inspect.

    Attributes:
        keys: from the first view to it, pressed one after the other.
        picks: whether the list of servers and journals is shown, and not one of them.
        fleet: whether a fleet is shown.
        breakpoints: that the engine has.
        step: that is shown in the end, where that is not the last one.
    """

    keys: tuple[str, ...] = ()
    picks: bool = False
    fleet: bool = False
    breakpoints: tuple[str, ...] = ()
    step: int = 0

SCREENS: dict[str, Shown] = {
    "sequences": Shown(),
    "detail": Shown(("slash", *CHOSEN, "enter", "enter")),
    "blocks": Shown(("3",)),
    "queue": Shown(("4",)),
    "steps": Shown(("5",)),
    "events": Shown(("6",)),
    "help": Shown(("question_mark",)),
    "picker": Shown(picks=True),
    "fleet": Shown(fleet=True),
    "breakpoints": Shown(("b",), breakpoints=("on=preempted", "free<10", "on=status to=PAUSED seq=17")),
    "frozen": Shown(("3", "t", *"step 140", "enter"), step=140),
}


def app_of(name: str) -> NanoInspectApp:
    """The app that a screen is shown in."""
    shown = SCREENS[name]
    if shown.picks:
        return NanoInspectApp(None, 60.0, find=lambda: CHOICES)
    if shown.fleet:
        return NanoInspectApp(Front(), 60.0, find_fleet=lambda url: ShownFleet())
    source = ShownSource()
    if source.control is not None:
        source.control.listed = dict(enumerate(shown.breakpoints, 1))
    return NanoInspectApp(source, 60.0)


async def go_to(name: str, pilot: Pilot[Any]) -> None:
    """Press the keys that lead to a screen, and wait until it is there."""
    shown = SCREENS[name]
    if shown.fleet:
        await _until(pilot, lambda: isinstance(pilot.app.screen, FleetScreen))
    elif not shown.picks:
        await _until(pilot, lambda: _main(pilot)._view is not None)
        clock = itertools.count(0.0, 10.0)
        _main(pilot).now = lambda: next(clock)  # a count ends at once
    await pilot.pause()
    for key in shown.keys:
        await pilot.press(key)
        await pilot.pause()
    if shown.step:
        await _until(pilot, lambda: (view := _main(pilot)._view) is not None and view.keyframe.step == shown.step)
    if name == "detail":
        await _until(pilot, lambda: pilot.app.screen.query_one(DetailView)._verdict is not None)
    if shown.breakpoints:
        await _until(pilot, lambda: pilot.app.screen.query_one(OptionList).option_count)
    if shown.picks or shown.fleet:
        await _until(pilot, lambda: pilot.app.screen.query_one(LiveTable).rows)
    before, same = "", 0
    while same < 3:  # tables scroll to their ends, and their scrollbars follow, some refreshes later
        await pilot.pause(0.05)
        now = re.sub(r"terminal-\d+", "", pilot.app.export_screenshot())
        before, same = now, same + 1 if now == before else 0


def _main(pilot: Pilot[Any]) -> InspectScreen:
    return next(screen for screen in pilot.app.screen_stack if isinstance(screen, InspectScreen))


async def _until(pilot: Pilot[Any], holds: Callable[[], object]) -> None:
    for _ in range(300):
        if holds():
            return
        await pilot.pause(0.01)
    raise AssertionError("the screen does not come")


@contextmanager
def in_utc() -> Iterator[None]:
    """Times of day are of UTC."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    try:
        yield
    finally:
        os.environ.pop("TZ")
        if before is not None:
            os.environ["TZ"] = before
        time.tzset()
