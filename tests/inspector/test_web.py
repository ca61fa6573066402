"""nano-inspect in a browser: who may open it, and what it starts."""

from __future__ import annotations

import asyncio
import re
import shlex
import socket
import sys

import pytest

from nanolens.inspector import web


def test_each_page_starts_a_nano_inspect_under_this_python() -> None:
    words = shlex.split(web.command_line(["/a b/journal", "--interval", "1"]))
    assert words[0] == sys.executable and words[-3:] == ["/a b/journal", "--interval", "1"]
    assert words[1:4] == ["-P", "-m", "nanolens.inspector.inspect_cli"]


@pytest.mark.parametrize(
    ("host", "origin", "own"),
    [
        ("127.0.0.1:8765", None, True),
        ("localhost:8765", "http://localhost:8765", True),
        ("127.0.0.1:8765", "http://127.0.0.1:8765", True),
        ("127.0.0.1:8765", "https://elsewhere.example", False),
        ("127.0.0.1:8765", "null", False),
        ("elsewhere.example:8765", None, False),
        ("127.0.0.1:80", None, False),
        (None, None, False),
    ],
)
def test_other_sites_are_turned_away(host: str | None, origin: str | None, own: bool) -> None:
    assert web.is_own(host, origin, 8765) is own


def test_a_page_of_another_site_gets_no_websocket_and_the_own_page_loads_nothing_from_elsewhere() -> None:
    pytest.importorskip("textual_serve")
    from aiohttp import ClientSession, WSServerHandshakeError
    from aiohttp import web as aio

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = web._server("true", port)

    def own(address: str) -> bool:
        return address.startswith((f"http://127.0.0.1:{port}", f"http://localhost:{port}"))

    async def check() -> list[int | list[str]]:
        runner = aio.AppRunner(await server._make_app())
        await runner.setup()
        await aio.TCPSite(runner, "127.0.0.1", port).start()
        found: list[int | list[str]] = []
        try:
            async with ClientSession() as session:
                base = f"http://127.0.0.1:{port}"
                async with session.get(f"{base}/") as answer:
                    found.append(answer.status)
                    policy, page = answer.headers["Content-Security-Policy"], await answer.text()
                    found.append([at for at in re.findall(r"https?://[^\s\"';]+", page + policy) if not own(at)])
                    loaded = re.findall(r'(?:href|src)="(http[^"]+)"', page)
                for at in loaded:
                    async with session.get(at) as answer:
                        found.append(answer.status)
                async with session.get(f"{base}/", headers={"Host": "elsewhere.example"}) as answer:
                    found.append(answer.status)
                try:
                    await session.ws_connect(f"{base}/ws", headers={"Origin": "https://elsewhere.example"})
                except WSServerHandshakeError as error:
                    found.append(error.status)
        finally:
            await runner.cleanup()
        return found

    assert asyncio.run(check()) == [200, [], 200, 200, 403, 403]
