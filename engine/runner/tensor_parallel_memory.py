"""Memory that the driver and its ranks share: the driver's plans, and a cell for each rank's progress.

It has no name, so that nothing can be left behind: ranks inherit its file descriptor. Knows bytes and numbers only.
"""

from __future__ import annotations

import mmap
import os
import tempfile

WORDS = 64  # of 8 bytes, in a rank's cell
SLOTS = 4  # plans that are kept; two steps are in flight at most
FIRST_SLOT = 1 << 16  # bytes of a slot to begin with
TIMES = 12  # steps whose times a cell keeps, in TIME_WORDS each
TIME_WORDS = 4
_BEATS, _TAKEN, _STEP, _PLACE, _MOVED, _STAGE, _FIRST_TIME = 0, 1, 2, 3, 4, 5, 8
# What a rank does until it is ready, in this order.
STAGES = ("starting its process", "loading its libraries", "meeting the other ranks", "loading its part of the model",
          "making room for KV and warming up")  # fmt: skip


def make_shared_memory(size: int) -> int:
    """A descriptor of memory for `size` ranks, with nothing in it but their cells."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("nanolens-ranks", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, _cells_bytes(size))
    return fd


def _cells_bytes(size: int) -> int:
    """Bytes of the cells; whole pages, for what follows is mapped on its own."""
    return -(-size * WORDS * 8 // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY


class PlanWriter:
    """The driver's side of the plans: slots used in turn. A plan that is too large gets larger slots behind the others.

    Args:
        fd: from `make_shared_memory`; stays the caller's.
        size: ranks.
    """

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self._start = self._end = _cells_bytes(size)
        self._slot_bytes = FIRST_SLOT
        self._map = self._add_slots()

    def write(self, number: int, data: bytes) -> int:
        """Put message `number` into its slot; the offset there. All ranks must have taken message number - SLOTS."""
        if len(data) > self._slot_bytes:
            while len(data) > self._slot_bytes:
                self._slot_bytes *= 2
            self._map.close()
            self._map = self._add_slots()
        first = number % SLOTS * self._slot_bytes
        self._map[first : first + len(data)] = data
        return self._start + first

    def _add_slots(self) -> mmap.mmap:
        """Begin anew behind what there is: ranks may still read that."""
        self._start, self._end = self._end, self._end + SLOTS * self._slot_bytes
        os.ftruncate(self._fd, self._end)
        return mmap.mmap(self._fd, SLOTS * self._slot_bytes, offset=self._start)

    def close(self) -> None:
        """Unmap the plans."""
        self._map.close()


class PlanReader:
    """A rank's side of the plans."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._map = mmap.mmap(fd, 0, prot=mmap.PROT_READ)

    def read(self, offset: int, length: int) -> bytes:
        """What the driver has written there."""
        if offset + length > len(self._map):
            self._map.close()
            self._map = mmap.mmap(self._fd, 0, prot=mmap.PROT_READ)
        return self._map[offset : offset + length]


class Progress:
    """The cells. Each is written by its rank alone, a word at a time, and read by the driver.

    Args:
        fd: from `make_shared_memory`.
        size: ranks.
    """

    def __init__(self, fd: int, size: int) -> None:
        self.size = size
        self._map = mmap.mmap(fd, _cells_bytes(size))
        self._words = memoryview(self._map).cast("Q")
        self._ranks = range(0, size * WORDS, WORDS)

    def beat(self, rank: int) -> None:
        """Say that the rank's process runs."""
        self._words[rank * WORDS + _BEATS] += 1

    def beats(self) -> list[int]:
        """How often each rank has."""
        return [self._words[cell + _BEATS] for cell in self._ranks]

    def move_on(self, rank: int) -> None:
        """Say that the rank's main thread has got further. All ranks come to the same places, and so count alike."""
        self._words[rank * WORDS + _PLACE] += 1

    def places(self) -> list[int]:
        """How often each rank's has."""
        return [self._words[cell + _PLACE] for cell in self._ranks]

    def tell_moved(self, rank: int, blocks: int) -> None:
        """Say how many blocks the rank has written to its swap file or read from it so far."""
        self._words[rank * WORDS + _MOVED] = blocks

    def distance(self) -> int:
        """Rises whenever some rank gets further, with a step or with the blocks that one may wait for."""
        return sum(self._words[cell + _PLACE] + self._words[cell + _MOVED] for cell in self._ranks)

    def enter(self, rank: int, stage: int) -> None:
        """Say that the rank begins with `STAGES[stage]`."""
        self._words[rank * WORDS + _STAGE] = stage

    def stages(self) -> list[int]:
        """Where in `STAGES` each rank is."""
        return [self._words[cell + _STAGE] for cell in self._ranks]

    def take(self, rank: int, number: int) -> None:
        """Say that the rank needs the slot of message `number` no more."""
        self._words[rank * WORDS + _TAKEN] = number

    def has_taken(self, number: int) -> bool:
        """Whether all ranks have taken message `number`."""
        return all(self._words[cell + _TAKEN] >= number for cell in self._ranks)

    def begin_step(self, rank: int, step: int) -> None:
        """Say which step the rank launches."""
        self._words[rank * WORDS + _STEP] = step + 1

    def step(self, rank: int) -> int | None:
        """The step that the rank launched last; None: it has launched none."""
        step = self._words[rank * WORDS + _STEP]
        return step - 1 if step else None

    def end_step(self, rank: int, number: int, device_ns: int, collective_ns: int, came_ns: int = 0) -> None:
        """Tell what message `number` took on the rank's device, and what of that it waited in collectives.

        `came_ns`: the sum of the times at which it came to them; 0: not known.
        """
        first = rank * WORDS + _FIRST_TIME + number % TIMES * TIME_WORDS
        words = self._words
        words[first] = 0
        words[first + 1], words[first + 2], words[first + 3] = device_ns, collective_ns, came_ns % (1 << 64)
        words[first] = number

    def times(self, number: int) -> tuple[list[int], list[int], list[int]] | None:
        """(device, collective, late) nanoseconds of each rank; None while not all have told them.

        Late: how much later than the first one it came to collectives, on balance; empty where that is not known.
        """
        words, firsts = self._words, [cell + _FIRST_TIME + number % TIMES * TIME_WORDS for cell in self._ranks]
        if any(words[first] != number for first in firsts):
            return None
        came = [words[first + 3] for first in firsts]
        after = [(each - came[0] + (1 << 63)) % (1 << 64) - (1 << 63) for each in came]  # sums beyond 64 bits wrap
        late = [each - min(after) for each in after] if all(came) else []
        return [words[first + 1] for first in firsts], [words[first + 2] for first in firsts], late

    def close(self) -> None:
        """Unmap the cells."""
        self._words.release()
        self._map.close()
