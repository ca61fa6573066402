"""What can be asked of events: their tags, how each field is compared, which sequences they name, and whose those are.

Knows the vocabulary of the journal alone.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args, get_origin

import msgspec

from .events import AnyEvent, Keyframe, RequestArrived, StatusChanged, StepFinished, StepPlanned, TokensSampled

Names = Mapping[int, str]  # sequence id -> request id
NO_NAMES: Names = {}
MAX_ENDED = 1024  # sequences that have ended and whose request is still known
STATUSES = ("WAITING", "RUNNING", "PAUSED", "FINISHED", "ERROR")
FINAL = STATUSES[3:]
STATUS_ALIASES = {"from": "old", "to": "new"}  # of the fields of sequence.status


class RequestNames:
    """Which request each sequence belongs to, from the events that tell it.

    Attributes:
        names: sequence id -> request id, of the live sequences and of the last MAX_ENDED that have ended.
    """

    def __init__(self, live: Names = NO_NAMES) -> None:
        self.names: dict[int, str] = dict(live)
        self._ended: deque[int] = deque()

    def learn(self, event: AnyEvent) -> None:
        """Take in one event."""
        if isinstance(event, RequestArrived):
            self.names.update(dict.fromkeys(event.seqs, event.request))
        elif isinstance(event, StatusChanged):
            if event.new in FINAL and event.seq in self.names:
                self._ended.append(event.seq)
                if len(self._ended) > MAX_ENDED:
                    self.names.pop(self._ended.popleft(), None)
        elif isinstance(event, Keyframe):
            self.names.update((each.seq, each.request) for each in event.sequences)


def named_sequences(kind: type) -> Callable[[Any], Iterable[int]] | None:
    """How to get at the sequences that an event names; None where it names none."""
    if kind is StepPlanned:
        return lambda event: [chunk[0] for chunk in event.chunks] + event.idle
    if kind is StepFinished:
        return operator.attrgetter("wasted")
    if kind in (RequestArrived, TokensSampled):
        return operator.attrgetter("seqs")
    if any(each.name == "seq" for each in msgspec.structs.fields(kind)):
        return lambda event: (event.seq,) if event.seq >= 0 else ()
    return None


def tag_of(kind: type) -> str:
    """The tag of a class of events."""
    return str(kind.__struct_config__.tag)  # type: ignore[attr-defined]


def names_sequences(kind: type) -> bool:
    """Whether events of a class can name sequences."""
    return "seq" in FIELDS[kind]


def _fields_of(kind: type) -> dict[str, str]:
    """Field -> how it is compared: number, length, flag, text, status, or subject (`seq` and `request`)."""
    found = {each.name: how for each in msgspec.structs.fields(kind) if (how := _how(each.type)) is not None}
    if kind is StatusChanged:
        found |= dict.fromkeys((*STATUS_ALIASES, *STATUS_ALIASES.values()), "status")
    names_some = named_sequences(kind) is not None
    if names_some:
        found["seq"] = "subject"
    if names_some or "request" in found:
        found["request"] = "subject"
    return found


def _how(hint: Any) -> str | None:
    """How values of a type are compared; None: they can't be."""
    if get_origin(hint) is not None and type(None) in get_args(hint):
        (hint,) = [each for each in get_args(hint) if each is not type(None)]
    if get_origin(hint) in (list, dict) or hint is bytes:
        return "length"
    return {int: "number", bool: "flag", str: "text"}.get(hint)


_KINDS: tuple[type, ...] = get_args(AnyEvent)
BY_TAG: dict[str, type] = {tag_of(kind): kind for kind in _KINDS}
FIELDS: dict[type, dict[str, str]] = {kind: _fields_of(kind) for kind in _KINDS}
"""Class -> field -> how it is compared: number, length, flag, text, status, or subject (`seq` and `request`)."""
