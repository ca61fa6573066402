"""What nano-inspect costs on a large engine: the share of a core that each view takes, and how soon a key is painted.

`python -P -m nanolens.benchmarks.inspect_refresh` runs the whole app at 160x50 on a terminal that takes everything and
shows nothing. Frames are decoded and folded in the same process, as in nano-inspect; nothing else runs in it.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from textual import events
from textual.drivers.headless_driver import HeadlessDriver

from ..inspector.short_pauses import short_pauses
from ..inspector.tui.app import NanoInspectApp
from ..inspector.tui.look_screen import VIEWS
from .environment import commit, cpu_name
from .inspect_load import BigSource

SIZE = (160, 50)
PATIENCE_S = 2.0  # for one key


class NullTerminal(HeadlessDriver):
    """A terminal that everything is written to as to a real one. It knows when, and how much."""

    written = 0  # bytes
    watch: Any = None  # called at each writing

    @property
    def is_headless(self) -> bool:
        """Only as far as nobody sees it: what is painted is encoded."""
        return False

    def write(self, data: str) -> None:
        """Take it."""
        NullTerminal.written += len(data.encode())
        if NullTerminal.watch is not None:
            NullTerminal.watch()


def main(argv: Sequence[str] | None = None) -> None:
    """Measure each view and print a line for it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sequences", type=int, default=1000, metavar="N")
    parser.add_argument("--blocks", type=int, default=64, metavar="N", help="of each sequence")
    parser.add_argument("--step-ms", type=float, default=20.0, metavar="MS", help="what a step of the engine takes")
    parser.add_argument("--interval", type=float, default=0.5, metavar="S", help="between two refreshes")
    parser.add_argument(
        "--seconds", type=float, default=10.0, metavar="S", help="that the share of each view is taken in"
    )
    parser.add_argument("--keys", type=int, default=100, metavar="N", help="pressed in each view")
    parser.add_argument("--views", nargs="*", default=[name for name, _ in VIEWS], choices=[name for name, _ in VIEWS])
    options = parser.parse_args(argv)
    print(f"{cpu_name()}, commit {commit()}")
    print(
        f"{options.sequences} sequences of {options.blocks} blocks, a step in {options.step_ms:g} ms, "
        f"{1 / options.interval:g} refreshes a second, {SIZE[0]}x{SIZE[1]}"
    )
    print("view        share of a core   ms a refresh   KB/s written  key to paint, ms: median    worst  in CPU, worst")
    with short_pauses():
        asyncio.run(_run(options))


async def _run(options: argparse.Namespace) -> None:
    seconds = len(options.views) * (options.seconds + options.keys * 0.2 + 5)
    source = BigSource(options.sequences, options.blocks, options.step_ms, int(seconds * 1000 / options.step_ms))
    app = NanoInspectApp(source, options.interval)
    app.driver_class = NullTerminal
    running = asyncio.create_task(app.run_async(size=SIZE))
    try:
        await asyncio.sleep(2)
        for name in options.views:
            _press(app, str(1 + [each for each, _ in VIEWS].index(name)))
            await asyncio.sleep(2)
            if app.screen.active is not app.screen.query_one(f"#{name}"):  # type: ignore[attr-defined]
                raise RuntimeError(f"{name} is not shown")
            share, written = await _share(options.seconds)
            _press(app, "home")
            await asyncio.sleep(0.2)
            delays = [await _key_to_paint(app, i) for i in range(options.keys)]
            await asyncio.sleep(0.7)
            print(
                f"{name:<10} {share:15.1%} {share * options.interval * 1000:14.1f} {written / 1000:14.1f}"
                f" {statistics.median(wall for wall, _ in delays) * 1000:26.1f}"
                f" {max(wall for wall, _ in delays) * 1000:8.1f} {max(cpu for _, cpu in delays) * 1000:15.1f}",
                file=sys.__stdout__,  # the app has taken the other one
                flush=True,
            )
    finally:
        app.exit()
        await running


async def _share(seconds: float) -> tuple[float, float]:
    """Processor time of this process by the time that passed, and bytes written a second."""
    begin, cpu, written = time.perf_counter(), time.process_time(), NullTerminal.written
    await asyncio.sleep(seconds)
    passed = time.perf_counter() - begin
    return (time.process_time() - cpu) / passed, (NullTerminal.written - written) / passed


async def _key_to_paint(app: NanoInspectApp, count: int) -> tuple[float, float]:
    """Seconds from a key that moves the cursor to the first writing after the cursor has moved; and how many of them
    this process computed, on all its threads: what it would have taken had nobody else used the machine.
    """
    await asyncio.sleep(random.uniform(0.02, 0.12))
    before, painted = _cursors(app), asyncio.Event()

    def watch() -> None:
        if _cursors(app) != before:
            painted.set()
            NullTerminal.watch = None
            ends.append((time.perf_counter(), time.process_time()))

    ends: list[tuple[float, float]] = []
    NullTerminal.watch = watch
    begin, cpu = time.perf_counter(), time.process_time()
    _press(app, "up" if count % 2 else "down")
    try:
        await asyncio.wait_for(painted.wait(), PATIENCE_S)
    except TimeoutError:
        raise RuntimeError("a key moved no cursor") from None
    finally:
        NullTerminal.watch = None
    return ends[0][0] - begin, ends[0][1] - cpu


def _press(app: NanoInspectApp, key: str) -> None:
    app._driver.process_message(events.Key(key, key if len(key) == 1 else None))  # type: ignore[union-attr]


def _cursors(app: NanoInspectApp) -> list[object]:
    """Where the cursors of the view that is shown stand."""
    view = app.screen.active  # type: ignore[attr-defined]
    return [getattr(each, "cursor", None) for each in (view, *view.query("*"))]


if __name__ == "__main__":
    main()
