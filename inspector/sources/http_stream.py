"""What `nano-serve` answers about its engine over HTTP: questions, and the journal's frames as they come.

Every failure is an InspectError that says in words what is wrong and what to do.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from ...errors import InspectError
from ...telemetry.frames import FRAME_HEAD
from ...telemetry.reader import Position

CONNECT_S = 5.0
ANSWER_S = 10.0
RUN_HEADER = "X-Nanolens-Run"  # of a server's run: in what it streams, and in what is meant for that run alone
MAX_FRAME_BYTES = 1 << 30  # more is no frame


class Refused(InspectError):
    """The server has answered, and said no.

    Args:
        message: in words.
        status: of HTTP.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Unreachable(InspectError):
    """No answer: nobody listens there, or the connection broke."""


class NotAServer(InspectError):
    """What answers is no nano-serve."""


class IsFleet(NotAServer):
    """What answers is the front of several replicas.

    Args:
        url: of the front.
    """

    def __init__(self, url: str) -> None:
        super().__init__(f"{url}: several replicas answer there; give one of them, as {url}/replicas/ID")
        self.url = url


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server says of itself."""

    version: str
    model: str
    run: str


@dataclass(frozen=True, slots=True)
class JournalFeed:
    """An open stream of frames.

    Attributes:
        run: whose journal it is.
        position: of the first frame.
        batches: whole frames, as they come; it ends when the server ends it.
    """

    run: str
    position: Position
    batches: Iterator[list[bytes]]
    response: httpx.Response

    def cut(self) -> None:
        """Break the connection, from any thread: `batches` then ends, or raises Unreachable."""
        stream = self.response.extensions.get("network_stream")
        found = stream.get_extra_info("socket") if stream is not None else None
        if isinstance(found, socket.socket):
            with contextlib.suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)


def server_url(text: str) -> str:
    """The base URL that a person means: `host:port` and a trailing /v1 are understood.

    Raises:
        InspectError: it is none.
    """
    url = text.strip() if "://" in text else f"http://{text.strip()}"
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  # raises where it is no number
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        is_good = False
    if not is_good:
        raise InspectError(f"{text!r}: is no URL of a server; give one as http://127.0.0.1:8000")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


class ServerLink:
    """Asks one server. Threads may share it.

    Args:
        url: as a person gives it.
        api_key: sent with every question, or None.

    Attributes:
        url: the base URL.

    Raises:
        InspectError: the URL is none.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.url = server_url(url)
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
            raise InspectError("the API key must be printable ASCII")
        self._has_key = bool(api_key)
        try:
            self._client = httpx.Client(
                base_url=self.url, headers=headers, timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S),
                trust_env=not _is_local(self.url),
            )  # fmt: skip
        except (httpx.InvalidURL, ValueError) as error:
            raise InspectError(f"{url!r}: is no URL of a server ({error})") from error

    def close(self) -> None:
        """Close its connections. May be called again."""
        self._client.close()

    def info(self) -> ServerInfo:
        """What the server is.

        Raises:
            Unreachable, Refused, NotAServer: in words.
            IsFleet: it is several.
        """
        try:
            answer = self.ask("GET", "/version")
            if "run" not in answer and "replicas" in answer:
                raise IsFleet(self.url)
            return ServerInfo(answer["version"], answer["model"], answer["run"])
        except Refused as error:
            if error.status in (401, 403):
                raise
            raise self._foreign() from error
        except (KeyError, TypeError) as error:
            raise self._foreign() from error

    def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, timeout_s: float = ANSWER_S, run: str = ""
    ) -> Any:
        """One question; the answer, parsed.

        Args:
            method: of HTTP.
            path: below the server's URL.
            body: sent as JSON.
            timeout_s: for the answer.
            run: refused where the server's run is another one; "": asked of any.

        Raises:
            Unreachable, Refused, NotAServer: in words.
        """
        response = self._request(method, path, body, timeout_s, {RUN_HEADER: run} if run else {})
        try:
            return response.json()
        except ValueError as error:
            raise self._foreign() from error

    def text(self, path: str, timeout_s: float = ANSWER_S) -> str:
        """What a GET answers, as text.

        Raises:
            Unreachable, Refused: in words.
        """
        return self._request("GET", path, None, timeout_s, {}).text

    def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float, headers: Mapping[str, str]
    ) -> httpx.Response:
        if self._client.is_closed:
            raise Unreachable(f"{self.url}: the connection was closed")
        timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, CONNECT_S))
        with self._in_words():
            response = self._client.request(method, path, json=body, timeout=timeout, headers=dict(headers))
        if response.status_code >= 400:
            raise self._refusal(response)
        return response

    @contextlib.contextmanager
    def journal(self, place: str, follow: bool) -> Iterator[JournalFeed]:
        """Open the journal's stream.

        Args:
            place: keyframe, start, or SEGMENT:OFFSET.
            follow: whether it goes on as the journal grows.

        Raises:
            Unreachable, Refused, NotAServer: in words.
        """
        query = {"from": place, "follow": "true" if follow else "false", "format": "raw"}
        timeout = httpx.Timeout(ANSWER_S, connect=CONNECT_S)
        with self._in_words(), self._client.stream("GET", "/debug/journal", params=query, timeout=timeout) as response:
            if response.status_code >= 400:
                response.read()
                raise self._refusal(response)
            run, at = response.headers.get(RUN_HEADER, ""), response.headers.get("X-Nanolens-Position", "")
            segment, _, offset = at.partition(":")
            if not (run and segment.isdigit() and offset.isdigit()):
                raise self._foreign()
            if follow:  # it is silent for as long as nothing happens
                response.request.extensions["timeout"]["read"] = None
            yield JournalFeed(run, Position(int(segment), int(offset)), self._batches(response), response)

    def _batches(self, response: httpx.Response) -> Iterator[list[bytes]]:
        rest = bytearray()
        for chunk in response.iter_raw():
            rest += chunk
            frames, at = [], 0
            while at + FRAME_HEAD.size <= len(rest):
                length, _ = FRAME_HEAD.unpack_from(rest, at)
                if length > MAX_FRAME_BYTES:
                    raise self._foreign()
                end = at + FRAME_HEAD.size + length
                if end > len(rest):
                    break
                frames.append(bytes(rest[at:end]))
                at = end
            if frames:
                del rest[:at]
                yield frames

    @contextlib.contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            yield
        except httpx.ConnectTimeout as error:
            raise Unreachable(f"{self.url}: no connection within {CONNECT_S:g} s") from error
        except httpx.ConnectError as error:
            raise Unreachable(f"{self.url}: no connection ({error}); is nano-serve running there?") from error
        except httpx.TimeoutException as error:
            raise Unreachable(f"{self.url}: no answer in time") from error
        except httpx.RemoteProtocolError as error:
            raise Unreachable(f"{self.url}: the connection broke, or what answers speaks no HTTP ({error})") from error
        except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL) as error:
            raise Unreachable(f"{self.url}: the connection broke ({error})") from error

    def _refusal(self, response: httpx.Response) -> Refused:
        """What an answer of 400 and more says."""
        status = response.status_code
        try:
            answer = response.json()
            message = str(answer["reason"] if "reason" in answer else answer["error"]["message"])
        except (ValueError, KeyError, TypeError):
            return Refused(f"{self.url}: answers {status} where nano-serve would not", status)
        if status == 401:
            given = "the API key is wrong" if self._has_key else "an API key is needed"
            message = f"{given}: give it with --api-key, or in NANOLENS_API_KEY"
        return Refused(f"{self.url}: {message}", status)

    def _foreign(self) -> NotAServer:
        return NotAServer(f"{self.url}: what answers there is no nano-serve; give the URL that it printed at its start")


def _is_local(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
