"""What a client makes of an answer of OpenAI's API: text, times of its pieces, usage, and what is wrong with it.

Knows bodies and server-sent events; nothing of sockets or statistics.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

DONE = b"[DONE]"


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    text: str | None = None
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Error(msgspec.Struct):
    message: str = ""


class _Body(msgspec.Struct):
    id: str = ""
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | None = None


_decode = msgspec.json.Decoder(_Body).decode


class EventSplitter:
    """Server-sent events from bytes that are cut anywhere: the data of each, its lines joined."""

    def __init__(self) -> None:
        self._rest = b""

    @property
    def rest(self) -> bytes:
        """What came after the last whole event."""
        return self._rest

    def feed(self, data: bytes) -> list[bytes]:
        """The events that `data` completes."""
        text = self._rest + data
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n")
        *events, self._rest = text.split(b"\n\n")
        found = []
        for event in events:
            if event.startswith(b"data: ") and b"\n" not in event:
                found.append(event[6:])
                continue
            lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
            if lines:
                found.append(b"\n".join(lines))
        return found


@dataclass
class Reply:
    """An answer while it comes, and then whole.

    Args:
        is_stream: whether events are expected.
        close_after: leave after so many pieces of text; None stays to the end.

    Attributes:
        times: when each piece of text came, ns; several in one read have one time.
        last_t: when the last piece or the finish reason came, ns; 0: never.
        pieces: the text.
        finish_reasons: every one that came.
        ids: every id that its chunks named.
        usage: prompt and output tokens as the server counts them; None where it did not say.
        error: the message of an error event or body.
        was_left: it ended because of `close_after`.
        is_done: the stream's last event came.
        faults: what no answer may hold.
    """

    is_stream: bool = True
    close_after: int | None = None
    times: list[int] = field(default_factory=list)
    last_t: int = 0
    pieces: list[str] = field(default_factory=list)
    finish_reasons: list[str] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    usage: tuple[int, int] | None = None
    error: str | None = None
    was_left: bool = False
    is_done: bool = False
    faults: list[str] = field(default_factory=list)
    _splitter: EventSplitter = field(default_factory=EventSplitter)
    _body: bytearray = field(default_factory=bytearray)
    _is_events: bool | None = None  # an error has a plain body where events were expected

    @property
    def text(self) -> str:
        """All pieces."""
        return "".join(self.pieces)

    @property
    def unread(self) -> bytes:
        """The plain body, or what came after the last whole event."""
        return bytes(self._body) or self._splitter.rest

    def take(self, data: bytes, now: int) -> bool:
        """A piece of the body; True when the client has had enough."""
        if self._is_events is None:
            self._is_events = self.is_stream and not data.lstrip().startswith(b"{")
        if not self._is_events:
            self._body += data
            return False
        for event in self._splitter.feed(data):
            self._take_event(event, now)
        if self.close_after is not None and len(self.times) >= self.close_after and not self.is_done:
            self.was_left = True
        return self.was_left

    def end(self, now: int) -> None:
        """The body is whole: read what is not a stream, and look for what a stream lacks."""
        if not self._is_events:
            if self.is_stream and not self._body:
                self.faults.append("an empty body")
            else:
                self._take_body(bytes(self._body), now)
        elif self._splitter.rest.strip():
            self.faults.append(f"half an event at the end: {self._splitter.rest[:60]!r}")
        if not self.was_left and self.error is None and not self.faults:
            if self.is_stream and not self.is_done:
                self.faults.append("the stream ended without [DONE]")
            if len(self.finish_reasons) != 1:
                self.faults.append(f"{len(self.finish_reasons)} finish reasons instead of one")
            if len(self.ids) > 1:
                self.faults.append(f"chunks of several answers: {', '.join(sorted(self.ids)[:3])}")

    def _take_event(self, event: bytes, now: int) -> None:
        if self.is_done:
            self.faults.append("an event after [DONE]")
        elif event == DONE:
            self.is_done = True
        else:
            self._take_body(event, now)

    def _take_body(self, data: bytes, now: int) -> None:
        try:
            body = _decode(data)
        except msgspec.MsgspecError as error:
            self.faults.append(f"no answer of the API: {error}: {data[:60]!r}")
            return
        if body.error is not None:
            self.error = body.error.message
            return
        if body.id:
            self.ids.add(body.id)
        if body.usage is not None:
            self.usage = (body.usage.prompt_tokens, body.usage.completion_tokens)
        for choice in body.choices:
            self._take_choice(choice, now)

    def _take_choice(self, choice: _Choice, now: int) -> None:
        self.last_t = now
        content = choice.delta or choice.message
        text = choice.text or (content.content if content is not None else None)
        if text:
            if self.finish_reasons:
                self.faults.append("text after the finish reason")
            self.pieces.append(text)
            self.times.append(now)
        if choice.finish_reason is not None:
            self.finish_reasons.append(choice.finish_reason)
