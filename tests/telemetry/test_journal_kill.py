"""SIGKILL at any moment: every whole frame reads back, in order, from the first one on."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from journals import times
from nanolens.telemetry.reader import JournalReader

CHILD = """
import sys
from nanolens.telemetry.events import EngineStarted, Keyframe, Mark
from nanolens.telemetry.journal import JournalWriter
started = EngineStarted(0, "run", 0, 1, "0", "fake", {}, 8, 4, 100, 64)
writer = JournalWriter(sys.argv[1], "run", segment_bytes=20_000)
writer.make_keyframe = lambda: Keyframe(0, 0, started, [], [], [], [], b"", [], list(range(8)), {})
writer.append([started])
print("ready", flush=True)
i = 0
while True:
    writer.append([Mark(i + k, "x" * (i % 97), "child") for k in range(5)])
    i += 5
"""


def test_every_whole_frame_survives_20_kills(tmp_path: Path) -> None:
    moments, longest = random.Random(7), 0
    for attempt in range(20):
        journal = tmp_path / str(attempt)
        child = subprocess.Popen([sys.executable, "-P", "-c", CHILD, str(journal)], stdout=subprocess.PIPE)
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            time.sleep(moments.uniform(0, 0.06))
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait()
            if child.stdout is not None:
                child.stdout.close()
        read = times(journal)
        assert read == list(range(len(read)))
        assert len(read) % 5 == 0
        longest = max(longest, len(JournalReader(journal).segments()))
    assert longest > 1
