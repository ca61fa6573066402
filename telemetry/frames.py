"""The journal's bytes: segment names, segment header, frames. Knows nothing of rotation or of what events mean.

A segment is a header and then frames. Header: magic (8), version u16, run id length u16, segment number u32, run id,
CRC-32 of all that. Frame: payload length u32, CRC-32 of the payload u32, payload (msgpack list of events).
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import msgspec

from ..errors import JournalError
from .events import JOURNAL_VERSION, AnyEvent

MAGIC = b"nanolens"
SUFFIX = ".journal"
FRAME_HEAD = struct.Struct("<II")
_HEADER = struct.Struct("<8sHHI")
_CRC = struct.Struct("<I")
_NAME = re.compile(r"(?P<run>.+)-(?P<number>\d{6,})\.journal")
# What msgspec raises for a value that has no msgpack form: a lone surrogate, an int beyond 64 bits, a foreign type.
ENCODE_ERRORS = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)
_decoder = msgspec.msgpack.Decoder(list[AnyEvent])


class SegmentName(NamedTuple):
    """What a segment's file name says."""

    run_id: str
    number: int


class Header(NamedTuple):
    """A parsed segment header; `size` is where the first frame begins."""

    run_id: str
    number: int
    size: int


def segment_path(directory: Path, run_id: str, number: int) -> Path:
    """The file of segment `number` (from 1) of a run."""
    return directory / f"{run_id}-{number:06d}{SUFFIX}"


def parse_name(name: str) -> SegmentName | None:
    """Run id and number of a segment's file name; None for any other file."""
    match = _NAME.fullmatch(name)
    return SegmentName(match["run"], int(match["number"])) if match else None


def pack_header(run_id: str, number: int) -> bytes:
    """The first bytes of a segment."""
    run = run_id.encode()
    head = _HEADER.pack(MAGIC, JOURNAL_VERSION, len(run), number) + run
    return head + _CRC.pack(crc32(head))


def parse_header(data: bytes, where: str) -> Header | None:
    """Read a header from the start of `data`; None when `data` is a true but incomplete beginning of one.

    Args:
        data: at least the first 1 KiB of the file, or all of it where it is shorter.
        where: the file, for messages.

    Raises:
        JournalError: not a journal, a newer version, or a damaged header.
    """
    if not MAGIC.startswith(data[: len(MAGIC)]):
        raise JournalError(f"{where}: not a nanolens journal (it does not begin with the journal's magic bytes)")
    if len(data) < _HEADER.size:
        return None
    _, version, run_length, number = _HEADER.unpack_from(data)
    if version > JOURNAL_VERSION:
        raise JournalError(
            f"{where}: journal version {version}; this nanolens reads up to version {JOURNAL_VERSION}, use a newer one"
        )
    end = _HEADER.size + run_length
    if len(data) < end + _CRC.size:
        return None
    if _CRC.unpack_from(data, end)[0] != crc32(data[:end]):
        raise JournalError(f"{where}: the segment header is damaged (its checksum does not match)")
    return Header(data[_HEADER.size : end].decode(), number, end + _CRC.size)


class FrameEncoder:
    """Encodes batches into frames, in one buffer that is used again for each."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._buffer = bytearray(1 << 16)

    def encode(self, events: list[AnyEvent]) -> bytearray:
        """One whole frame; valid until the next call.

        Raises:
            ENCODE_ERRORS: an event holds a value that msgpack has no form for; the encoder can be used on.
        """
        buffer = self._buffer
        self._encoder.encode_into(events, buffer, FRAME_HEAD.size)
        with memoryview(buffer) as view, view[FRAME_HEAD.size :] as payload:
            crc = crc32(payload)
        FRAME_HEAD.pack_into(buffer, 0, len(buffer) - FRAME_HEAD.size, crc)
        return buffer

    def why_not(self, event: AnyEvent) -> str:
        """Why an event can't be encoded, in ASCII; "" where it can. Ends the validity of the last frame."""
        try:
            self.encode([event])
        except ENCODE_ERRORS as error:
            text = f"{event.__struct_config__.tag}: {type(error).__name__}: {error}"
            return text.encode("ascii", "backslashreplace").decode()
        return ""


def decode_payload(payload: bytes, where: str) -> list[AnyEvent]:
    """The events of a payload whose checksum matched.

    Raises:
        JournalError: it is not a list of events that this version knows.
    """
    try:
        return _decoder.decode(payload)
    except msgspec.DecodeError as error:
        raise JournalError(f"{where}: the frame holds no events of this version ({error})") from error


def first_tag(payload_head: bytes) -> str:
    """The tag of a payload's first event, from its first 64 bytes, without decoding it; "" where there is none.

    A payload is a msgpack array of arrays whose first item is the tag, a string of under 32 bytes.
    """
    at = _after_array_head(payload_head, _after_array_head(payload_head, 0))
    if at >= len(payload_head) or not 0xA0 <= payload_head[at] <= 0xBF:
        return ""
    return payload_head[at + 1 : at + 1 + (payload_head[at] & 0x1F)].decode(errors="replace")


def _after_array_head(data: bytes, at: int) -> int:
    """Where the items of the msgpack array at `at` begin (fixarray, array 16, array 32)."""
    return at + {0xDC: 3, 0xDD: 5}.get(data[at], 1) if at < len(data) else at
