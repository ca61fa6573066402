"""Memory and CPU time of a server's processes, where the server is on this machine. Knows /proc, not HTTP."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from .stats import median

_LISTENS = "0A"  # TCP_LISTEN in /proc/net/tcp
SLACK_BYTES, SLACK_SHARE = 16 << 20, 0.05


def pids_listening(port: int) -> list[int]:
    """Processes of this user that listen at a TCP port; none where there is no /proc."""
    inodes = set()
    for name in ("tcp", "tcp6"):
        try:
            lines = Path("/proc/net", name).read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    return sorted(int(pid.name) for pid in Path("/proc").glob("[0-9]*") if inodes and inodes & _links(pid / "fd"))


def _links(folder: Path) -> set[str]:
    """Where the links of a folder lead; those that can't be read lead nowhere."""
    found = set()
    try:
        for entry in folder.iterdir():
            found.add(os.readlink(entry))
    except OSError:
        pass
    return found


def with_children(pids: list[int]) -> list[int]:
    """Processes and all below them."""
    found, todo = [], list(pids)
    while todo:
        pid = todo.pop()
        found.append(pid)
        for entry in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                todo += [int(child) for child in entry.read_text().split()]
            except OSError:
                continue  # the thread ended meanwhile
    return sorted(set(found))


def resident_bytes(pid: int) -> int:
    """Memory of a process that is in RAM; 0 once it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has taken, in the kernel too; 0 once it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0


@dataclass
class MemoryWatch:
    """Samples of the resident memory of processes, the sum over all.

    Attributes:
        pids: whose.
        samples: (seconds since the first, bytes).
    """

    pids: list[int]
    samples: list[tuple[float, int]] = field(default_factory=list)

    async def watch(self, every_s: float = 0.5) -> None:
        """Sample until cancelled."""
        began = time.monotonic()
        while True:
            self.samples.append((time.monotonic() - began, sum(map(resident_bytes, self.pids))))
            await asyncio.sleep(every_s)

    @property
    def growth(self) -> tuple[int, int] | None:
        """Median bytes in the second quarter of the time and in the last one; None with too few samples.

        The first quarter is left out: caches fill, and pages of the KV pool are touched for the first time.
        """
        if len(self.samples) < 8:
            return None
        quarter = len(self.samples) // 4
        values = [size for _, size in self.samples]
        return round(median(values[quarter : 2 * quarter])), round(median(values[-quarter:]))

    @property
    def is_flat(self) -> bool | None:
        """Whether it grew by no more than a twentieth and some megabytes; None where that can't be told."""
        growth = self.growth
        if growth is None or not growth[0]:
            return None
        return growth[1] <= growth[0] * (1 + SLACK_SHARE) + SLACK_BYTES
