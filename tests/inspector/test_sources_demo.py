"""The demo: a busy engine that is gone when the inspector is, also when that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from nanolens.inspector.sources.demo import DemoSource
from nanolens.inspector.sources.discover import find_servers

KILLED = """
import sys, time
from nanolens.inspector.sources.demo import DemoSource
source = DemoSource()
source.start()
print(source.child_pid, flush=True)
time.sleep(60)
"""


def until(what: Callable[[], bool], meaning: str) -> None:
    deadline = time.monotonic() + 30
    while not what():
        assert time.monotonic() < deadline, f"not {meaning} in time"
        time.sleep(0.05)


def descendants(pid: int) -> set[int]:
    """Live processes below one, itself included."""
    found, parents = {pid}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                parents[int(entry.name)] = int(fields[1])
    for _ in range(5):
        found |= {child for child, parent in parents.items() if parent in found}
    return found & parents.keys()


def alive(pids: set[int]) -> set[int]:
    return {pid for pid in pids if pid in descendants(pid)}


def test_it_shows_a_busy_engine_with_waiting_running_paused_shared_and_preempted_sequences() -> None:
    source = DemoSource()
    source.start()
    try:
        pids = descendants(source.child_pid or 0)
        assert len(pids) >= 3  # the child, its server, the engine
        assert source.url in [server.url for server in find_servers()]
        seen: set[str] = set()

        def all_kinds() -> bool:
            keyframe = source.view().keyframe
            seen.update(each.status for each in keyframe.sequences)
            tables = [block for each in keyframe.sequences for block in each.block_table if block >= 0]
            seen.update({"shared"} if len(tables) > len(set(tables)) else ())
            seen.update({"preempted"} if any(each.num_preemptions for each in keyframe.sequences) else ())
            seen.update({"cached"} if any(each.num_cached_tokens for each in keyframe.sequences) else ())
            return seen >= {"WAITING", "RUNNING", "PAUSED", "shared", "preempted", "cached"}

        until(all_kinds, "all of them seen")
        assert source.control is not None
        source.control.pause_engine()
        until(lambda: source.view().keyframe.engine_paused == "operator", "paused")
        source.control.continue_engine()
    finally:
        source.close()
    until(lambda: not alive(pids), "gone")


def test_it_is_gone_when_the_inspector_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-P", "-c", KILLED], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pids = descendants(int(parent.stdout.readline()))
    assert len(pids) >= 3
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until(lambda: not alive(pids), "gone")


def test_its_server_is_gone_when_the_child_is_killed() -> None:
    source = DemoSource()
    source.start()
    pids = descendants(source.child_pid or 0)
    os.kill(source.child_pid or 0, signal.SIGKILL)
    until(lambda: len(alive(pids)) <= 1, "gone")
    source.close()
    until(lambda: not alive(pids), "gone")
