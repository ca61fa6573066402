"""nano-inspect in a browser: textual-serve starts one nano-inspect for each page, on this machine alone."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import Any

from ..errors import InspectError

HOST = "127.0.0.1"
PORT = 8765
PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{{ application.name }}</title>
<link rel="stylesheet" href="{{ config.static.url }}css/xterm.css">
<script src="{{ config.static.url }}js/textual.js"></script>
<style>
body { margin: 0; background: #0f1318; color: #d5dbe3; font: 16px monospace; }
.said { position: fixed; inset: 0; z-index: 1; display: flex; align-items: center; justify-content: center; }
.said a { color: #5aa9e6; margin-left: 1ch; }
body.-first-byte .starting, body:not(.-closed) .ended, #start { display: none; }
body.-closed .ended { background: #0f1318e0; }
</style>
</head>
<body>
<div class="said starting">nano-inspect starts…<span id="start"></span></div>
<div class="said ended">nano-inspect has ended.<a href="/">Start it again</a></div>
<div id="terminal" class="textual-terminal" data-session-websocket-url="{{ app_websocket_url }}"
 data-font-size="{{ font_size }}"></div>
</body>
</html>
"""  # what it loads, and the names that textual.js looks for, are textual-serve's; nothing is of another machine


def command_line(arguments: Sequence[str]) -> str:
    """The shell's line that starts nano-inspect with these arguments, under this Python."""
    return shlex.join([sys.executable, "-P", "-m", f"{__package__}.inspect_cli", *arguments])


def serve(arguments: Sequence[str], port: int = PORT) -> None:
    """Serve until interrupted. Who opens the page steers what nano-inspect steers: no other site may.

    Args:
        arguments: of each nano-inspect; no secrets, as other users see them.
        port: of this machine's own address.

    Raises:
        InspectError: textual-serve is missing, or the port is taken.
    """
    try:
        server = _server(command_line(arguments), port)
    except ImportError as error:
        raise InspectError(f"--web needs textual-serve ({error}): pip install 'nanolens[web]'") from error
    try:
        server.serve()
    except OSError as error:
        raise InspectError(f"--web: port {port}: {error.strerror or error}; give another one: --web PORT") from error


def is_own(host: str | None, origin: str | None, port: int) -> bool:
    """Whether a page, or a script of it, was loaded from here.

    Args:
        host: of the request's head.
        origin: of its head; None where the browser sends none.
        port: that is served.
    """
    own = {f"{name}:{port}" for name in (HOST, "localhost")}
    return host in own and (origin is None or origin in {f"http://{each}" for each in own})


def _own_only(port: int) -> str:
    """What a browser may load for the page: what is served here, and the styles that the terminal in it sets."""
    own = f"ws://{HOST}:{port} ws://localhost:{port} http://{HOST}:{port} http://localhost:{port}"
    return (
        f"default-src 'self' {own}; style-src 'self' 'unsafe-inline' {own}; img-src 'self' data: blob: {own}; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _server(command: str, port: int) -> Any:
    import aiohttp_jinja2
    import jinja2
    from aiohttp import web
    from textual_serve.server import Server

    @web.middleware
    async def only_own(request: web.Request, handler: Any) -> web.StreamResponse:
        if not is_own(request.headers.get("Host"), request.headers.get("Origin"), port):
            raise web.HTTPForbidden(text=f"open http://{HOST}:{port}/ itself\n")
        response: web.StreamResponse = await handler(request)
        if not response.prepared:
            response.headers["Content-Security-Policy"] = _own_only(port)
        return response

    class OwnPagesOnly(Server):
        async def _make_app(self) -> web.Application:
            app = await super()._make_app()
            aiohttp_jinja2.get_env(app).loader = jinja2.DictLoader({"app_index.html": PAGE})
            app.middlewares.append(only_own)
            return app

    return OwnPagesOnly(command, HOST, port, title="nano-inspect")
