"""Who may call what: keys, and control paths for this machine alone."""

from __future__ import annotations

import asyncio
import hmac
import json
from pathlib import Path
from typing import Any

import pytest

from nanolens.server.auth import ApiKeys, AuthMiddleware, is_local
from serve import NAME, Server

KEY, OTHER = "sk-0123456789abcdef", "sk-fedcba9876543210"
LOCAL, REMOTE = "127.0.0.1", "192.0.2.7"
PUBLIC, CONTROL = "/v1/completions", "/debug/snapshot"


def scope(path: str = PUBLIC, client: str | None = LOCAL, **headers: str) -> dict[str, Any]:
    named = {"host": "localhost:8000"} | headers
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in named.items()]
    return {"type": "http", "path": path, "client": client and (client, 1234), "headers": raw, "method": "GET"}


def call(
    scope: dict[str, Any], *keys: str, control_needs_key: bool = False
) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, body and headers of an application behind keys; it answers with 200 itself."""
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(AuthMiddleware(app, ApiKeys(keys), control_needs_key)(scope, receive, send))
    headers = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], json.loads(sent[1]["body"]), headers


@pytest.mark.parametrize("path", ["/health", "/ready", "/version", "/openapi.json", "/replicas/a/health"])
def test_some_paths_are_open_to_everyone(path: str) -> None:
    assert call(scope(path, REMOTE), KEY)[0] == 200


def test_without_keys_everyone_may_ask_the_model() -> None:
    assert call(scope(PUBLIC, REMOTE))[0] == 200


@pytest.mark.parametrize("client", [LOCAL, REMOTE])
def test_with_keys_nobody_asks_the_model_without_one(client: str) -> None:
    status, body, headers = call(scope(PUBLIC, client), KEY)
    assert (status, body["error"]["code"]) == (401, "invalid_api_key")
    assert headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (f"Bearer {KEY}", 200),
        (f"bearer {OTHER}", 200),
        (f"Bearer {KEY[:-1]}", 401),
        (f"Bearer {KEY}x", 401),
        ("Bearer ", 401),
        (KEY, 401),
        (f"Basic {KEY}", 401),
        ("Bearer \xff", 401),
    ],
)
def test_a_key_counts_as_a_whole_and_as_bearer_alone(given: str, status: int) -> None:
    assert call(scope(PUBLIC, REMOTE, authorization=given), KEY, OTHER)[0] == status


def test_a_refusal_does_not_repeat_the_key() -> None:
    _, body, headers = call(scope(authorization=f"Bearer {OTHER}"), KEY)
    assert OTHER not in json.dumps(body) + json.dumps(headers)


def test_each_key_is_compared_in_constant_time_whichever_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    real = hmac.compare_digest

    def counted(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return real(a, b)

    monkeypatch.setattr(hmac, "compare_digest", counted)
    keys = ApiKeys([KEY, OTHER])
    for given in (KEY, OTHER, "x"):
        compared.clear()
        assert keys.accept(given.encode()) is (given != "x")
        assert len(compared) == 2 and {len(side) for pair in compared for side in pair} == {32}


def test_keys_are_not_shown() -> None:
    assert repr(ApiKeys([KEY, OTHER])) == "<2 API keys>"


@pytest.mark.parametrize("keys", [(), (KEY,)])
@pytest.mark.parametrize("path", [CONTROL, "/metrics", "/debug/engine/pause"])
def test_control_is_free_for_this_machine(path: str, keys: tuple[str, ...]) -> None:
    assert call(scope(path, LOCAL), *keys)[0] == 200


@pytest.mark.parametrize("path", [CONTROL, "/metrics"])
def test_control_can_need_a_key_from_this_machine_too(path: str) -> None:
    assert call(scope(path, LOCAL), KEY, control_needs_key=True)[0] == 401
    assert call(scope(path, LOCAL, authorization=f"Bearer {KEY}"), KEY, control_needs_key=True)[0] == 200
    assert call(scope("/health", LOCAL), KEY, control_needs_key=True)[0] == 200


def test_control_from_elsewhere_needs_a_key() -> None:
    assert call(scope(CONTROL, REMOTE), KEY)[0] == 401
    assert call(scope(CONTROL, REMOTE, authorization=f"Bearer {KEY}"), KEY)[0] == 200


def test_control_from_elsewhere_is_forbidden_where_there_is_no_key() -> None:
    status, body, _ = call(scope(CONTROL, REMOTE))
    assert (status, body["error"]["type"]) == (403, "permission_error")


@pytest.mark.parametrize(
    ("client", "headers", "local"),
    [
        (LOCAL, {}, True),
        ("127.8.8.8", {"host": "127.0.0.1"}, True),
        ("::1", {"host": "[::1]:8000"}, True),
        ("::ffff:127.0.0.1", {}, True),
        (LOCAL, {"origin": "http://localhost:3000"}, True),
        (LOCAL, {"host": "evil.example:8000"}, False),  # a name that was pointed here
        (LOCAL, {"host": "127.0.0.1.evil.example"}, False),
        (LOCAL, {"origin": "https://evil.example"}, False),  # a page in a browser here
        (LOCAL, {"origin": "null"}, False),
        (LOCAL, {"x_forwarded_for": "203.0.113.9"}, False),  # a proxy here, for someone else
        (LOCAL, {"forwarded": "for=203.0.113.9"}, False),
        (LOCAL, {"x_forwarded_proto": "https"}, False),
        (LOCAL, {"cf_connecting_ip": "203.0.113.9"}, False),
        (LOCAL, {"true_client_ip": "203.0.113.9"}, False),
        ("::ffff:192.0.2.7", {}, False),
        (REMOTE, {}, False),
        (None, {}, False),
    ],
)
def test_who_counts_as_this_machine(client: str | None, headers: dict[str, str], local: bool) -> None:
    assert is_local(scope(CONTROL, client, **headers)) is local


def test_a_server_with_keys_lets_in_who_has_one_and_never_logs_it(tmp_path: Path) -> None:
    body = {"model": NAME, "prompt": "Hi", "max_tokens": 2}
    flags: dict[str, Any] = {"access_log": True, "log_level": "debug"}
    with Server(tmp_path, environment={"NANOLENS_API_KEY": KEY}, **flags) as server:
        right, wrong = {"Authorization": f"Bearer {KEY}"}, {"Authorization": f"Bearer {OTHER}"}
        assert server.post("/v1/completions", body, right).status == 200
        refused = server.post("/v1/completions", body, wrong)
        assert (refused.status, refused.error["type"]) == (401, "authentication_error")
        assert refused.headers["x-request-id"]
        assert server.post("/v1/completions", body).status == 401
        assert server.get("/debug/snapshot").status == 200
        assert server.get("/debug/snapshot", {"X-Forwarded-For": "203.0.113.9"}).status == 401
    assert "POST /v1/completions" in server.said
    files = [server.log, *server.journal.iterdir()]
    for key in (KEY, OTHER):
        assert not [file for file in files if key.encode() in file.read_bytes()]
