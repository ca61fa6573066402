"""Where spans are sent, as people name it: URLs, headers, and OpenTelemetry's environment variables. Opens nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from urllib.parse import unquote, urlsplit

from ..errors import InvalidConfig

TRACES_PATH = "/v1/traces"
PROTOCOLS = ("http", "grpc")
# scheme -> (protocol or "" for both, whether it is encrypted)
_SCHEMES = {"http": ("", False), "https": ("", True), "grpc": ("grpc", False), "grpcs": ("grpc", True)}
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_PROTOCOL_OF = {"grpc": "grpc", "http/protobuf": "http"}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A receiver of OTLP.

    Attributes:
        protocol: "http" or "grpc".
        host: a name or an address, without brackets.
        port: of it.
        path: of the traces; "" over gRPC.
        is_secure: whether the connection is encrypted.
    """

    protocol: str
    host: str
    port: int
    path: str
    is_secure: bool

    @property
    def authority(self) -> str:
        """Host and port as in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def file_name(self) -> str:
        """A name for a file about this receiver, which no other one has: readable, with a digest."""
        digest = blake2b(str(self).encode(), digest_size=4).hexdigest()
        return f"{re.sub(r'[^A-Za-z0-9.-]', '_', self.host)[:80]}-{self.port}-{digest}"

    def __str__(self) -> str:
        scheme = self.protocol + ("s" if self.is_secure else "")
        return f"{scheme}://{self.authority}{self.path}"


def parse_endpoint(url: str, protocol: str | None = None) -> Endpoint:
    """The receiver that a URL names.

    Args:
        url: `http://HOST:PORT` or `https://...`, the path /v1/traces being added where it does not end in it; or
            `grpc://HOST:PORT` or `grpcs://...`.
        protocol: "http" or "grpc"; None: as the URL's scheme says.

    Raises:
        InvalidConfig: it is no such URL, or holds a user's name or password, which a journal would keep.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    if "@" in parts.netloc:
        raise InvalidConfig(
            "otlp=(not shown): must hold no user's name and no password; OTEL_EXPORTER_OTLP_HEADERS is for credentials"
        )
    known, is_secure = _SCHEMES.get(parts.scheme, ("", False))
    sound = url.isascii() and not any(char <= " " or char in "?#" for char in url) and port != 0
    if parts.scheme not in _SCHEMES or not host or not sound:
        raise InvalidConfig(
            f"otlp={url[:200]!r}: must be a URL like http://127.0.0.1:4318 (or https://) for OTLP over HTTP, or "
            "grpc://127.0.0.1:4317 (or grpcs://) over gRPC, without a query"
        )
    if known and protocol not in (None, known):
        raise InvalidConfig(f"otlp={url!r} with the protocol {protocol}: the two must agree; use http:// or https://")
    chosen = protocol or known or "http"
    if chosen == "grpc":
        return Endpoint("grpc", host, port or 4317, "", is_secure)
    path = parts.path.rstrip("/")
    path = path if path.endswith(TRACES_PATH) else path + TRACES_PATH
    return Endpoint("http", host, port or (443 if is_secure else 80), path, is_secure)


def environment_endpoint(environ: Mapping[str, str]) -> tuple[str | None, str | None]:
    """(URL, protocol) as OpenTelemetry's variables give them, or None for each.

    Raises:
        InvalidConfig: a protocol that is not supported.
    """
    url = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    named = environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    if named and named not in _PROTOCOL_OF:
        raise InvalidConfig(f"OTEL_EXPORTER_OTLP_PROTOCOL={named!r}: must be one of {', '.join(_PROTOCOL_OF)}")
    return url or None, _PROTOCOL_OF[named] if named else None


def parse_header(text: str) -> tuple[str, str]:
    """Name, in small letters, and value of "NAME=VALUE".

    Raises:
        InvalidConfig: it is none; the value is not repeated, for it may be a secret.
    """
    name, equals, value = text.partition("=")
    name, value = name.strip().lower(), value.strip()
    if not equals or not _HEADER_NAME.fullmatch(name):
        raise InvalidConfig(f"header {name[:80]!r}: must be NAME=VALUE, with the name of an HTTP header")
    if any(not " " <= char <= "~" for char in value):
        raise InvalidConfig(f"header {name!r}: its value must be of printable ASCII characters")
    return name, value


def environment_headers(environ: Mapping[str, str]) -> dict[str, str]:
    """The headers that OTEL_EXPORTER_OTLP_HEADERS names, and those of OTEL_EXPORTER_OTLP_TRACES_HEADERS over them.

    Raises:
        InvalidConfig: not a list of NAME=VALUE with commas between.
    """
    found: dict[str, str] = {}
    for variable in ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"):
        for item in filter(str.strip, environ.get(variable, "").split(",")):
            name, equals, value = item.partition("=")
            header, own = parse_header(f"{unquote(name)}{equals}{unquote(value)}")
            found[header] = own
    return found
