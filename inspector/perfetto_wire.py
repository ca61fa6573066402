"""Perfetto's trace format, as far as `nano-trace export --perfetto` needs it: tracks, slices, flows, counters.

Writes each packet as it comes and keeps nothing but the names it has used. Knows not what the tracks mean. The numbers
of the fields are those of Perfetto's `protos/perfetto/trace/perfetto_trace.proto`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import BinaryIO, Union

Arg = Union[str, int, float, bool]
Args = Mapping[str, Arg]

NO_ARGS: Args = {}
MONOTONIC, REALTIME, BOOTTIME = 3, 1, 6
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
BY_TIME, BY_RANK = 2, 3  # how a track orders its children
_SEQUENCE = b"\x50\x01"  # trusted_packet_sequence_id: all packets are of one sequence
_STATE_CLEARED, _NEEDS_STATE = b"\x68\x01", b"\x68\x02"  # sequence_flags


def varint(value: int) -> bytes:
    """A whole number in base 128, the lowest digits first; those below 0 in two's complement of 64 bits."""
    if 0 <= value < 0x4000:
        return _SHORT[value]
    if value < 0:
        value += 1 << 64
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# All numbers of one or two bytes: nearly every tag, length and value.
_SHORT = [bytes((n,)) if n < 0x80 else bytes((n & 0x7F | 0x80, n >> 7)) for n in range(0x4000)]


def number(field: int, value: int) -> bytes:
    """A field that is a whole number."""
    return varint(field << 3) + varint(value)


def double(field: int, value: float) -> bytes:
    """A field of 64 bits of floating point."""
    return varint(field << 3 | 1) + struct.pack("<d", value)


def fixed(field: int, value: int) -> bytes:
    """A field of 64 bits."""
    return varint(field << 3 | 1) + struct.pack("<Q", value)


def message(field: int, content: bytes) -> bytes:
    """A field that is a message, given its fields."""
    return varint(field << 3 | 2) + varint(len(content)) + content


def text(field: int, content: str) -> bytes:
    """A field of text."""
    return message(field, content.encode("utf-8", "replace"))


class TraceWriter:
    """Writes a trace.

    Times are CLOCK_MONOTONIC nanoseconds, in any order between tracks. On one track, slices nest: `end` ends the one
    that began last.

    Args:
        out: takes the bytes.
        t: where the trace begins.
        wall_offset_ns: wall clock (ns since 1970) minus CLOCK_MONOTONIC.

    Attributes:
        slices, instants, flows, values: how many of each were written; a slice counts when it begins.
    """

    def __init__(self, out: BinaryIO, t: int, wall_offset_ns: int) -> None:
        self.slices = self.instants = self.flows = self.values = 0
        self._out = out
        self._last_track = 0
        self._events: dict[str, bytes] = {}  # names that the trace has, as the field that says them
        self._args: dict[str, bytes] = {}
        clocks = ((MONOTONIC, t), (BOOTTIME, t), (REALTIME, max(t + wall_offset_ns, 0)))
        snapshot = b"".join(message(1, number(1, clock) + number(2, at)) for clock, at in clocks)
        self._packet(message(6, snapshot + number(2, MONOTONIC)))
        self._packet(_STATE_CLEARED + message(59, number(58, MONOTONIC)))  # the clock of all that follows

    # Tracks

    def process(self, pid: int, name: str) -> int:
        """A process; returns its track's number. Its children stand by their names."""
        return self._track(message(3, number(1, pid) + text(6, name)))

    def track(self, name: str, parent: int, rank: int = 0, children: int = BY_RANK) -> int:
        """A track for slices and instants, or one that others stand under; returns its number."""
        return self._track(
            number(5, parent) + text(2, name) + number(11, children) + (number(12, rank) if rank else b"")
        )

    def counter(self, name: str, parent: int, unit: str, rank: int = 0) -> int:
        """A track for the values of a counter; returns its number."""
        return self._track(number(5, parent) + text(2, name) + message(8, text(6, unit)) + number(12, rank))

    def _track(self, description: bytes) -> int:
        self._last_track += 1
        self._packet(message(60, number(1, self._last_track) + description))
        return self._last_track

    # What stands on them

    def begin(self, track: int, t: int, name: str, args: Args = NO_ARGS) -> None:
        """Begin a slice."""
        self.slices += 1
        self._event(t, number(9, BEGIN) + number(11, track), name, args)

    def end(self, track: int, t: int, args: Args = NO_ARGS) -> None:
        """End the slice that began last on a track; `args` are added to its own."""
        self._event(t, number(9, END) + number(11, track), "", args)

    def instant(self, track: int, t: int, name: str, args: Args = NO_ARGS, flow: int = 0, ends: bool = False) -> None:
        """Something that took no time.

        Args:
            flow: number of an arrow that begins here, or ends here; 0: none.
        """
        self.instants += 1
        event = number(9, INSTANT) + number(11, track)
        if flow:
            self.flows += ends
            event += fixed(48 if ends else 47, flow)
        self._event(t, event, name, args)

    def value(self, track: int, t: int, value: float) -> None:
        """A counter's value from `t` on."""
        self.values += 1
        shown = number(30, value) if isinstance(value, int) else double(44, value)
        self._event(t, number(9, COUNTER) + number(11, track) + shown, "", NO_ARGS)

    # Packets

    def _event(self, t: int, event: bytes, name: str, args: Args) -> None:
        new: list[bytes] = []  # names that are used for the first time
        if name:
            event += _named(self._events, name, 2, 10, new)
        for key, arg in args.items():
            event += message(4, _named(self._args, key, 3, 1, new) + _arg(arg))
        packet = number(8, max(t, 0)) + _NEEDS_STATE + message(11, event)
        self._packet(packet + message(12, b"".join(new)) if new else packet)

    def _packet(self, content: bytes) -> None:
        self._out.write(message(1, content + _SEQUENCE))


def _named(known: dict[str, bytes], name: str, table: int, field: int, new: list[bytes]) -> bytes:
    """The field that names something by its number in a table of names; appends to `new` what it adds to the table."""
    found = known.get(name)
    if found is None:
        found = known[name] = number(field, len(known) + 1)
        new.append(message(table, number(1, len(known)) + text(2, name)))
    return found


def _arg(value: Arg) -> bytes:
    if isinstance(value, str):
        return text(6, value)
    if isinstance(value, bool):
        return number(2, value)
    return number(4, value) if isinstance(value, int) else double(5, value)
