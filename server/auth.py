"""Who may call which path: API keys, and the machine itself for control and debug. An ASGI layer around the routes.

Keys are compared in constant time, kept as digests, and never logged or shown.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from .errors import ApiError
from .fleet_paths import split_replica

OPEN_PATHS = frozenset({"/health", "/ready", "/version", "/openapi.json", "/docs", "/redoc", "/"})
# On loopback without a key, elsewhere only with one; behind /replicas/ID the replica asks once more.
CONTROL_PREFIXES = ("/debug/", "/metrics", "/replicas/")
# A proxy on this machine speaks for others. Most say so, in one of these or in some x-forwarded-...; none has to.
_FORWARDED = frozenset(
    {
        b"forwarded", b"via", b"x-real-ip", b"x-client-ip", b"x-cluster-client-ip", b"x-original-forwarded-for",
        b"cf-connecting-ip", b"cf-ray", b"cdn-loop", b"true-client-ip", b"fly-client-ip", b"x-envoy-external-address",
    }
)  # fmt: skip
_LOCAL_NAMES = frozenset({"localhost", "localhost.localdomain"})


class ApiKeys:
    """The keys of a server.

    Args:
        keys: as clients send them; none: everyone is let in, but for control paths from elsewhere.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def __repr__(self) -> str:
        return f"<{len(self._digests)} API keys>"

    def accept(self, key: bytes) -> bool:
        """Whether it is one of the keys; takes equally long whichever it is, and whether it is one."""
        digest, found = _digest(key), False
        for known in self._digests:
            found |= hmac.compare_digest(digest, known)
        return found


class AuthMiddleware:
    """Lets requests through to an application, or answers them with 401 or 403.

    Control paths (`/debug/...`, `/metrics`) are free for this machine: a peer at a loopback address that no proxy
    speaks for and that names this machine as the host. The last point, and that a web page's origin is local too,
    keeps pages in a local browser from reaching them. Everyone else needs a key; without keys, nobody else gets in.
    A proxy that adds no header and names this machine as the host can't be told from this machine.

    Args:
        app: the application.
        keys: of the server.
        control_needs_key: control paths need a key from this machine too.
    """

    def __init__(self, app: ASGIApp, keys: ApiKeys, control_needs_key: bool = False) -> None:
        self._app, self._keys, self._control_needs_key = app, keys, control_needs_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await refusal.response()(scope, receive, send)

    def _refusal(self, scope: Scope) -> ApiError | None:
        path: str = scope["path"]
        inner = split_replica(path)[1]
        if inner in OPEN_PATHS or inner.startswith("/docs/"):
            return None
        is_control = path.startswith(CONTROL_PREFIXES)
        if is_control and not self._control_needs_key and is_local(scope):
            return None
        if not self._keys:
            if not is_control:
                return None
            message = f"{path} is open to this machine alone; start the server with an API key to use it from elsewhere"
            return ApiError(403, message, kind="permission_error", code="forbidden")
        given = _bearer(scope)
        if given is None:
            return _unauthorized("no API key: send `Authorization: Bearer KEY`")
        return None if self._keys.accept(given) else _unauthorized("the API key is none of this server's")


def is_local(scope: Scope) -> bool:
    """Whether a request comes from this machine itself, and not for another one or from a web page of one."""
    client = scope.get("client")
    if not client or not _is_loopback(client[0]):
        return False
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    if any(name in _FORWARDED or name.startswith(b"x-forwarded-") for name, _ in headers):
        return False
    hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
    origins = [value.decode("latin-1") for name, value in headers if name == b"origin"]
    return all(_is_loopback(_host_of(host)) for host in hosts) and all(
        origin.startswith(("http://", "https://")) and _is_loopback(_host_of(origin.partition("://")[2]))
        for origin in origins
    )


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.lower() in _LOCAL_NAMES
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _host_of(authority: str) -> str:
    """The host of `host`, `host:port`, `[v6]` or `[v6]:port`."""
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0]


def _bearer(scope: Scope) -> bytes | None:
    """The key that a request brings."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, key = value.partition(b" ")
            if scheme.lower() == b"bearer" and key.strip():
                return bytes(key.strip())
    return None


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _unauthorized(message: str) -> ApiError:
    headers = {"WWW-Authenticate": 'Bearer realm="nanolens"'}
    return ApiError(401, message, kind="authentication_error", code="invalid_api_key", headers=headers)
