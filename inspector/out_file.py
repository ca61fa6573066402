"""Files that a command writes: a regular one whole or not at all, a device or a pipe as it is, a journal never."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ..errors import InvalidConfig
from ..telemetry.segment_files import is_segment


@contextlib.contextmanager
def writing(path: str | Path, flag: str) -> Iterator[BinaryIO]:
    """A file to write to, one byte after the other.

    A regular file, also one that links lead to, is replaced once all is written; with an error it stays as it was.

    Args:
        path: of the file.
        flag: that named it, for messages.

    Raises:
        InvalidConfig: it can't be written, or is a segment of a journal.
    """
    path = Path(path)
    try:
        mode = _mode(path)
        if mode is not None and stat.S_ISDIR(mode):
            raise InvalidConfig(f"{flag} {path}: is a directory; give a file")
        if mode is not None and not stat.S_ISREG(mode):
            with path.open("wb") as file:
                yield file
            return
        target = Path(os.path.realpath(path))
        if is_segment(target) or is_segment(path):
            raise InvalidConfig(f"{flag} {path}: is a segment of a journal, or named like one; give another file")
        yield from _replacing(target, mode)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InvalidConfig(f"{flag} {path}: can't be written ({error.strerror or error})") from error


def _mode(path: Path) -> int | None:
    """Of what is there; None: nothing is."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _replacing(target: Path, mode: int | None) -> Iterator[BinaryIO]:
    """A file beside the target that takes its place, and its permissions, at the end."""
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(mode))
            yield file
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
