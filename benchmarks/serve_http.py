"""HTTP/1.1 on asyncio protocols, as light as a load generator needs it: a connection for each exchange, times in
nanoseconds of CLOCK_MONOTONIC. Knows framing, not what bodies mean.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from ..errors import InvalidConfig

Take = Callable[[bytes, int], bool]  # a piece of the body and when it came; True: leave now
MAX_HEAD = 64 << 10
_SLOW_BUFFER, _SLOW_SEGMENT = 2048, 536  # bytes: so that a slow reader's backlog stays with the server, not the kernel


class Broken(Exception):
    """An exchange that did not come to its end; the text says how, in a word that errors are counted by.

    Attributes:
        kind: "connect", "disconnected", "malformed" or "timeout".
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class Target:
    """A server, and what every request to it carries."""

    host: str
    port: int
    prefix: str = ""
    tls: bool = False
    api_key: str | None = None

    @classmethod
    def parse(cls, url: str, api_key: str | None = None) -> Target:
        """Of http://HOST:PORT[/PREFIX]; a last "/v1" is left out, for paths begin with it.

        Raises:
            InvalidConfig: it is none.
        """
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise InvalidConfig(f"URL {url!r}: {error}") from None
        if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
            raise InvalidConfig(f"URL {url!r}: must be http://HOST:PORT, or https, of a server with OpenAI's API")
        if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
            raise InvalidConfig("api_key: must be printable ASCII, for it goes into a header")
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        tls = parts.scheme == "https"
        return cls(host, port or (443 if tls else 80), prefix, tls, api_key)

    @property
    def is_local(self) -> bool:
        """Whether the server is on this machine, by its name or loopback address."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    def request(self, method: str, path: str, body: bytes | None = None, request_id: str | None = None) -> bytes:
        """A request's bytes."""
        shown = f"[{self.host}]" if ":" in self.host else self.host
        head = [f"{method} {self.prefix}{path} HTTP/1.1", f"Host: {shown}:{self.port}", "Connection: close"]
        if self.api_key is not None:
            head.append(f"Authorization: Bearer {self.api_key}")
        if request_id is not None:
            head.append(f"X-Request-Id: {request_id}")
        if body is not None:
            head += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join([*head, "", ""]).encode() + (body or b"")


class Exchange(asyncio.Protocol):
    """One request and its response.

    Args:
        request: its bytes, sent once connected.
        take: gets the body's pieces as they come.
        pause_s: seconds that the reader sleeps after each read; 0 reads as fast as it comes.

    Attributes:
        status: of the response; 0 until its head has come.
        headers: by names in lower case.
        ended: done when the body is whole or was left, or with Broken.
    """

    def __init__(self, request: bytes, take: Take, pause_s: float = 0.0) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._request = request
        self._take = take
        self._pause_s = pause_s
        self._buffer = bytearray()
        self._chunked = False
        self._left: int | None = None  # bytes of the body that are still to come, where its length is known
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        if isinstance(transport, asyncio.Transport):
            self._transport = transport
            transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Take what came, as one moment."""
        now = time.monotonic_ns()
        if self.ended.done():
            return
        self._buffer += data
        try:
            if not self.status and not self._read_head():
                return
            body, is_whole = self._read_chunks() if self._chunked else self._read_plain()
        except ValueError as error:
            self._end(Broken("malformed", f"no HTTP: {error}"))
            return
        if (body and self._take(body, now)) or is_whole:
            self._end()
        elif self._pause_s and self._transport is not None:
            self._transport.pause_reading()
            self._loop.call_later(self._pause_s, self._wake)

    def connection_lost(self, error: Exception | None) -> None:
        """The other side closed: the end of a body without a length, too early for any other."""
        if not self.ended.done():
            is_whole = error is None and self.status and not self._chunked and self._left is None
            where = f"after status {self.status}" if self.status else "before a response"
            self._end(None if is_whole else Broken("disconnected", f"closed {where}: {error or 'end of stream'}"))

    def close(self) -> None:
        """Close the connection, whatever has come."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    def _end(self, error: Broken | None = None) -> None:
        if not self.ended.done():
            if error is None:
                self.ended.set_result(None)
            else:
                self.ended.set_exception(error)
        self.close()

    def _wake(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _read_head(self) -> bool:
        """Whether the head is there now."""
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > MAX_HEAD:
                raise ValueError("a head without an end")
            return False
        first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        version, _, rest = first.partition(" ")
        if not version.startswith("HTTP/1."):
            raise ValueError(f"a response that begins with {first[:40]!r}")
        self.status = int(rest[:3])
        self.headers = {name.strip().lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
        self._chunked = "chunked" in self.headers.get("transfer-encoding", "").lower()
        if not self._chunked and "content-length" in self.headers:
            self._left = int(self.headers["content-length"])
        return True

    def _read_plain(self) -> tuple[bytes, bool]:
        body = bytes(self._buffer)
        self._buffer.clear()
        if self._left is None:
            return body, False
        body = body[: self._left]
        self._left -= len(body)
        return body, self._left == 0

    def _read_chunks(self) -> tuple[bytes, bool]:
        """The whole chunks in the buffer, joined, and whether the last one has come."""
        buffer, place, parts = self._buffer, 0, []
        is_whole = False
        while (end := buffer.find(b"\r\n", place)) >= 0:
            size = int(bytes(buffer[place:end]).partition(b";")[0], 16)
            if size == 0:
                is_whole = True
                break
            after = end + 2 + size
            if len(buffer) < after + 2:
                break
            parts.append(bytes(buffer[end + 2 : after]))
            place = after + 2
        del buffer[:place]
        return b"".join(parts), is_whole


async def exchange(
    target: Target, request: bytes, take: Take, timeout_s: float, pause_s: float = 0.0
) -> tuple[int, dict[str, str]]:
    """Send a request and read its response: status and headers.

    Raises:
        Broken: it did not come to its end.
    """
    protocol = Exchange(request, take, pause_s)
    try:
        async with asyncio.timeout(timeout_s):
            await _connect(target, protocol, is_slow=pause_s > 0)
            await protocol.ended
    except TimeoutError:
        raise Broken("timeout", f"no end within {timeout_s:g} s") from None
    except OSError as error:
        raise Broken("connect", f"{target.host}:{target.port}: {error}") from error
    finally:
        protocol.close()
    return protocol.status, protocol.headers


async def _connect(target: Target, protocol: Exchange, is_slow: bool) -> None:
    loop = asyncio.get_running_loop()
    tls = ssl.create_default_context() if target.tls else None
    if not is_slow:
        await loop.create_connection(lambda: protocol, target.host, target.port, ssl=tls)
        return
    found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    family, kind, number, _, address = found[0]
    sock = socket.socket(family, kind, number)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SLOW_BUFFER)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _SLOW_SEGMENT)
        await loop.sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    server_name = target.host if tls else None
    await loop.create_connection(lambda: protocol, sock=sock, ssl=tls, server_hostname=server_name)


async def fetch(target: Target, path: str, timeout_s: float = 10.0) -> tuple[int, bytes]:
    """A GET: status and body.

    Raises:
        Broken: there was no whole response.
    """
    parts: list[bytes] = []

    def take(data: bytes, now: int) -> bool:
        parts.append(data)
        return False

    status, _ = await exchange(target, target.request("GET", path), take, timeout_s)
    return status, b"".join(parts)
