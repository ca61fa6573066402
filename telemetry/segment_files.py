"""Single looks into the files of a journal: which runs are here, a segment's header, a frame at an offset."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO
from zlib import crc32

from ..errors import JournalError
from .frames import FRAME_HEAD, MAGIC, Header, parse_header, parse_name

HEADER_BYTES = 1024  # more than any header


def list_runs(directory: str | Path) -> list[str]:
    """Ids of the runs in a journal's directory, the one written to last at the end.

    Raises:
        JournalError: the directory can't be read.
    """
    latest: dict[str, tuple[int, str]] = {}
    try:
        for entry in os.scandir(directory):
            name = parse_name(entry.name)
            if name is not None and is_readable(entry):
                key = (entry.stat().st_mtime_ns, entry.name)
                latest[name.run_id] = max(key, latest.get(name.run_id, key))
    except OSError as error:
        raise JournalError(f"{directory}: can't be read ({error.strerror})") from error
    return sorted(latest, key=lambda run: latest[run])


def kind_of(path: str | Path) -> str:
    """What lies at a path: `folder`, `file`, `other` (a pipe, a device); "" where nothing is.

    Raises:
        JournalError: that can't be told, as where a folder above it may not be searched.
    """
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise JournalError(f"{path}: can't be read ({error.strerror})") from error
    except ValueError as error:  # a zero byte
        raise JournalError(f"{str(path)!r}: can't be read ({error})") from error
    return "folder" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "other"


def is_there(name: str) -> bool:
    """Whether something lies at a path; what is below a folder that may not be searched is taken to be there."""
    try:
        os.stat(name)
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False
    return True


def is_readable(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a file, or a link to one: opening a pipe would wait for its other end."""
    try:
        return entry.is_file()
    except OSError:
        return True  # opening it tells why


def is_segment(path: Path) -> bool:
    """Whether a file is a segment of a journal, or is named like one; what can't be read is none."""
    if parse_name(path.name) is not None:
        return True
    try:
        if not path.is_file():  # nor is a pipe opened: that waits for its other end
            return False
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read_header(path: Path) -> Header | None:
    """A segment's header, or None where the file ends within it.

    Raises:
        JournalError: the file can't be read, or is no journal of a version known here.
    """
    try:
        with path.open("rb") as file:
            return parse_header(file.read(HEADER_BYTES), str(path))
    except OSError as error:
        raise JournalError(f"{path}: can't be read ({error.strerror})") from error


def read_frame(file: BinaryIO, at: int) -> bytes | None:
    """The payload at an offset, or None where the file holds no whole frame there (yet).

    A frame that ends the file and has a wrong checksum is torn too: a write may reach the disk in any order.

    Raises:
        JournalError: a frame that does not end the file has a wrong checksum.
    """
    file.seek(at)
    head = file.read(FRAME_HEAD.size)
    if len(head) < FRAME_HEAD.size:
        return None
    length, crc = FRAME_HEAD.unpack(head)
    end, size = at + FRAME_HEAD.size + length, os.fstat(file.fileno()).st_size
    payload = file.read(length) if end <= size else b""
    if len(payload) < length or end > size:
        return None
    if crc32(payload) != crc:
        if end == size:
            return None
        raise JournalError(f"{file.name}, offset {at}: damaged: the checksum of a {length}-byte frame does not match")
    return payload
