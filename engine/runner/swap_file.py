"""A file of equal slots for blocks that left memory. Knows bytes, not blocks or tensors.

What is at the path is a small marker that holds the name while it is locked; the data is in a nameless file beside it,
which the system takes back however the process ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
import weakref

from ...errors import InvalidConfig

MARKER = b"nanolens swap file of process "


class SwapFile:
    """`num_slots` slots of `slot_bytes` bytes. The file grows as slots are written, and never beyond them.

    Args:
        path: where; its directory must exist. What an engine that was killed has left there is taken over.
        num_slots: slots.
        slot_bytes: bytes of each.

    Raises:
        InvalidConfig: another engine uses this path, another file lies there, or none can be made there.
    """

    def __init__(self, path: str, num_slots: int, slot_bytes: int) -> None:
        self.num_slots = num_slots
        self.slot_bytes = slot_bytes
        self.path = os.path.abspath(path)
        marker = _take_name(self.path)
        try:
            self._data = tempfile.TemporaryFile(dir=os.path.dirname(self.path), buffering=0)  # noqa: SIM115
        except OSError as error:
            _give_name_back(marker, self.path)
            raise InvalidConfig(f"swap_path={path!r}: no file can be made there: {error}") from error
        self._give_back = weakref.finalize(self, _give_name_back, marker, self.path)  # at the interpreter's end, too

    def write(self, slot: int, data: memoryview) -> None:
        """Fill a slot.

        Args:
            slot: below `num_slots`.
            data: `slot_bytes` bytes.

        Raises:
            OSError: the slot holds anything now.
        """
        done, start = 0, self._start(slot)
        while done < self.slot_bytes:
            wrote = os.pwrite(self._data.fileno(), data[done:], start + done)
            if wrote == 0:
                raise OSError(f"nothing was written of the {self.slot_bytes - done} bytes left of slot {slot}")
            done += wrote

    def read(self, slot: int, into: memoryview) -> None:
        """Read a slot.

        Args:
            slot: below `num_slots`.
            into: `slot_bytes` writable bytes.

        Raises:
            OSError: it can't be read whole; `into` holds anything now.
        """
        done, start = 0, self._start(slot)
        while done < self.slot_bytes:
            got = os.preadv(self._data.fileno(), [into[done:]], start + done)
            if got == 0:
                raise OSError(f"short read: {done} of {self.slot_bytes} bytes of slot {slot}")
            done += got

    def size(self) -> int:
        """Bytes from the file's start to the end of the last slot ever written."""
        return os.fstat(self._data.fileno()).st_size

    def close(self) -> None:
        """Remove the file and its name. A second call does nothing."""
        self._data.close()
        self._give_back()

    def _start(self, slot: int) -> int:
        if not 0 <= slot < self.num_slots:
            raise OSError(f"slot {slot} is not in the swap file of {self.num_slots} slots")
        return slot * self.slot_bytes


def path_of_rank(path: str, rank: int) -> str:
    """The path that a rank uses, where several have a swap file each."""
    return path if rank == 0 else f"{path}.rank{rank}"


def remove_left(path: str, pid: int) -> None:
    """Remove the name that process `pid`, which was killed, has left there. Anything else there stays."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.pread(descriptor, len(MARKER) + 32, 0) == _mark(pid) and _is_at(descriptor, path):
                os.unlink(path)
        finally:
            os.close(descriptor)


def _mark(pid: int) -> bytes:
    return MARKER + str(pid).encode() + b"\n"


def _take_name(path: str) -> int:
    """Make (or take over) the marker at `path` and lock it; its descriptor."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        except OSError as error:
            raise InvalidConfig(f"swap_path={path!r}: no file can be made there: {error.strerror}") from error
        try:
            _check_ours(descriptor, path)
            if not _is_at(descriptor, path):  # its owner removed it between our opening and locking it
                os.close(descriptor)
                continue
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, _mark(os.getpid()), 0)
        except OSError as error:
            os.close(descriptor)
            raise InvalidConfig(f"swap_path={path!r}: the file can't be used: {error}") from error
        except InvalidConfig:
            os.close(descriptor)
            raise
        return descriptor


def _check_ours(descriptor: int, path: str) -> None:
    """Lock the file, and see that no other engine or program has use for it."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise InvalidConfig(f"swap_path={path!r}: is no plain file; name a file that doesn't exist yet")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InvalidConfig(f"swap_path={path!r}: another engine uses it; give each its own path") from None
    held = os.pread(descriptor, len(MARKER), 0)
    if held and held != MARKER:
        raise InvalidConfig(f"swap_path={path!r}: another file lies there; name a file that doesn't exist yet")


def _is_at(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _give_name_back(descriptor: int, path: str) -> None:
    with contextlib.suppress(OSError):  # another user's cleaning may have been faster
        if _is_at(descriptor, path):
            os.unlink(path)
    os.close(descriptor)
