"""A reader of server-sent events over a bare socket: it takes nothing for granted that a client library would mend."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, BinaryIO

DONE = "[DONE]"
DEADLINE_S = 60.0


class WireStream:
    """One POST whose answer is read as it comes.

    Args:
        port: on 127.0.0.1.
        path: of the endpoint.
        body: sent as JSON.
        headers: besides those that every request has.

    Attributes:
        status: of the answer.
        headers: of the answer, names in lower case.
    """

    def __init__(self, port: int, path: str, body: object, headers: Mapping[str, str] | None = None) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
        self._file: BinaryIO = self._socket.makefile("rb")
        payload = json.dumps(body).encode()
        named = {"Host": f"127.0.0.1:{port}", "Content-Type": "application/json", "Content-Length": str(len(payload))}
        head = "".join(f"{name}: {value}\r\n" for name, value in (named | dict(headers or {})).items())
        self._socket.sendall(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + payload)
        self.status = int(self._file.readline().split()[1])
        self.headers: dict[str, str] = {}
        while line := self._file.readline().decode("latin-1").rstrip("\r\n"):
            name, _, value = line.partition(":")
            self.headers[name.lower()] = value.strip()

    def __enter__(self) -> WireStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Go away, whatever is still to come."""
        self._file.close()
        self._socket.close()

    def events(self) -> Iterator[str]:
        """The data of each event, to the end of the body. Comments are left out; anything else that is odd fails."""
        pending = b""
        for chunk in self._chunks():
            pending += chunk
            while (end := pending.find(b"\n\n")) >= 0:
                block, pending = pending[:end].decode("utf-8"), pending[end + 2 :]
                lines = [line for line in block.split("\n") if not line.startswith(":")]
                assert all(line.startswith("data: ") for line in lines), block
                if lines:
                    yield "\n".join(line.removeprefix("data: ") for line in lines)
        assert not pending, f"the body ends within an event: {pending!r}"

    def chunks(self) -> list[dict[str, Any]]:
        """The JSON of every event; [DONE] has to be the last one, and is left out."""
        return parsed(list(self.events()))

    def body(self) -> bytes:
        """The whole body."""
        return b"".join(self._chunks())

    def _chunks(self) -> Iterator[bytes]:
        if "content-length" in self.headers:
            yield self._file.read(int(self.headers["content-length"]))
            return
        assert self.headers.get("transfer-encoding") == "chunked", self.headers
        while size := int(self._file.readline().strip(), 16):
            data = self._file.read(size)
            assert len(data) == size and self._file.readline() == b"\r\n", "the connection ended within a chunk"
            yield data
        assert self._file.readline() == b"\r\n"


def parsed(events: list[str]) -> list[dict[str, Any]]:
    """The JSON of a whole stream's events; [DONE] has to be the last one, and is left out."""
    assert events and events[-1] == DONE and DONE not in events[:-1], events[-3:]
    return [json.loads(event) for event in events[:-1]]


def texts(chunks: list[dict[str, Any]]) -> dict[int, str]:
    """By index, the joined text of a stream of completions or of chat."""
    found: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            piece = choice["delta"].get("content") if "delta" in choice else choice["text"]
            found[choice["index"]] = found.get(choice["index"], "") + (piece or "")
    return found


def ends(chunks: list[dict[str, Any]]) -> dict[int, str]:
    """By index, the finish reason; an index that ends twice, or goes on after its end, fails."""
    found: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            assert choice["index"] not in found, f"choice {choice['index']} goes on after its end"
            if choice["finish_reason"] is not None:
                found[choice["index"]] = choice["finish_reason"]
    return found
