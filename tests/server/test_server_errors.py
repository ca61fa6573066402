"""What bad requests get: OpenAI's shape, the field named, the right status, and nothing left in the engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nanolens.engine.async_engine import AsyncEngine
from nanolens.errors import EngineDead, InvalidRequest, NotPaused, PromptTooLong, RequestFailed, UnknownRequest
from nanolens.server.errors import as_api_error
from nanolens.server.state import Limits
from nanolens.telemetry.events import RequestArrived, RequestRefused
from nanolens.telemetry.reader import JournalReader
from served import CHAT, COMPLETIONS, TINY, Served, error_of, serving


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(limits=Limits(max_body_bytes=20_000)) as found:
        yield found


WRONG: list[tuple[str, Any]] = [
    ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", 1.5), ("max_tokens", "5"), ("max_tokens", True),
    ("max_tokens", 10**30), ("temperature", -0.1), ("temperature", "hot"), ("temperature", 10**400),
    ("temperature", [1]), ("top_p", 0), ("top_p", 1.1), ("top_k", -2), ("min_p", 2), ("n", 0), ("n", 1025),
    ("seed", 2**63), ("seed", 0.5), ("presence_penalty", 2.1), ("frequency_penalty", -3), ("repetition_penalty", 0),
    ("stop", 5), ("stop", [""]), ("stop", [5]), ("stop", ["x"] * 65), ("stop", "\ud800"),
    ("stop_token_ids", [264]), ("stop_token_ids", ["a"]), ("logit_bias", {"264": 1}), ("logit_bias", {"x": 1}),
    ("logit_bias", {"5": 101}), ("logit_bias", [5]), ("logprobs", 21), ("logprobs", True), ("best_of", 2),
    ("suffix", "end"), ("stream", "yes"), ("stream", 1), ("echo", "yes"), ("priority", 2**31), ("on_stop", "explode"),
    ("min_tokens", -1), ("ignore_eos", 1), ("timeout", 0), ("timeout", 1e9), ("user", 5), ("frobnicate", 1),
    ("prompt", ""), ("prompt", []), ("prompt", [""]), ("prompt", [[]]), ("prompt", ["x", ""]), ("prompt", None),
    ("prompt", 5), ("prompt", {}), ("prompt", [-1]), ("prompt", [264]), ("prompt", [1.5]), ("prompt", [True]),
    ("prompt", [10**30]), ("prompt", [2**63]), ("prompt", ["x", 5]), ("prompt", [[1], 5]), ("prompt", "\ud800"),
    ("prompt", "x" * 2000),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), WRONG, ids=[f"{field}-{place}" for place, (field, _) in enumerate(WRONG)])
def test_a_wrong_value_is_refused_and_its_field_named(served: Served, field: str, value: Any) -> None:
    body = json.dumps({"model": "tiny", "prompt": "x"} | {field: value})
    error = error_of(served.send(COMPLETIONS, body))
    assert error["param"] == field and error["type"] == "invalid_request_error"
    assert field in error["message"]
    assert served.is_idle()


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("field", ["temperature", "top_p", "max_tokens", "presence_penalty", "timeout"])
def test_numbers_that_are_none_are_refused(served: Served, field: str, number: str) -> None:
    body = f'{{"model": "tiny", "prompt": "x", "{field}": {number}}}'
    assert error_of(served.send(COMPLETIONS, body))["param"] == field


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"5", b"null", b'"x"', b"\xff\xfe", b"[" * 5000,
        b'{"model": "tiny", "prompt": "x", "n": ' + b"9" * 5000 + b"}",
    ],
)  # fmt: skip
def test_a_body_that_is_no_object_is_refused(served: Served, body: bytes) -> None:
    error = error_of(served.send(COMPLETIONS, body))
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_value") and "JSON" in error["message"]


def test_a_body_of_another_kind_is_refused(served: Served) -> None:
    error_of(served.send(COMPLETIONS, b"model=tiny&prompt=x", "application/x-www-form-urlencoded"))


def test_a_missing_field_is_named(served: Served) -> None:
    assert error_of(served.send(COMPLETIONS, b'{"model": "tiny"}'))["param"] == "prompt"
    assert error_of(served.send(COMPLETIONS, b'{"prompt": "x"}'))["param"] == "model"
    assert error_of(served.send(CHAT, b'{"model": "tiny"}'))["param"] == "messages"


def test_a_field_inside_another_is_named_with_its_place(served: Served) -> None:
    error = error_of(served.post(COMPLETIONS, prompt="x", stream_options={"include_usage": "yes"}))
    assert error["param"] == "stream_options.include_usage"


def test_a_prompt_that_is_too_long_has_its_own_code(served: Served) -> None:
    error = error_of(served.post(COMPLETIONS, prompt=[5] * 1500))
    assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_an_unknown_model_is_not_found(served: Served, path: str) -> None:
    extra = {"prompt": "x"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "x"}]}
    error = error_of(served.post(path, model="gpt-5", **extra), 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found") and "tiny" in error["message"]


@pytest.mark.parametrize("length", ["said", "unsaid"])
def test_a_body_that_is_too_large_is_refused_unread(served: Served, length: str) -> None:
    body = json.dumps({"model": "tiny", "prompt": "x" * 30_000}).encode()

    async def pieces() -> Any:
        for start in range(0, len(body), 4096):
            yield body[start : start + 4096]

    sent = served.client.post(
        COMPLETIONS, content=body if length == "said" else pieces(), headers={"content-type": "application/json"}
    )
    error = error_of(served.run(sent), 413)
    assert error["code"] == "body_too_large" and "20000" in error["message"]


def test_paths_and_methods_that_are_not_there(served: Served) -> None:
    assert error_of(served.get("/v1/nothing"), 404)["code"] == "not_found"
    assert error_of(served.send(COMPLETIONS + "/", b"{}"), 404)["code"] == "not_found"
    response = served.get(COMPLETIONS)
    assert error_of(response, 405)["code"] == "method_not_allowed" and response.headers["allow"] == "POST"


def test_every_answer_has_a_request_id(served: Served) -> None:
    for response in (served.get("/v1/models"), served.get("/nothing"), served.post(COMPLETIONS, prompt="")):
        assert response.headers["x-request-id"]


@pytest.mark.parametrize(
    ("error", "status", "param"),
    [
        (InvalidRequest("prompt", "wrong"), 400, "messages"),
        (InvalidRequest("n", "wrong"), 400, "n"),
        (PromptTooLong("prompt", "long"), 400, "messages"),
        (UnknownRequest("none"), 404, "request_id"),
        (NotPaused("runs"), 409, "request_id"),
        (RequestFailed("burns"), 500, None),
        (EngineDead("killed"), 503, None),
        (ZeroDivisionError("secret"), 500, None),
    ],
)
def test_what_each_exception_means(error: Exception, status: int, param: str | None) -> None:
    found = as_api_error(error, {"prompt": "messages"})
    assert (found.status, found.param) == (status, param)
    assert "secret" not in str(found)


def test_the_openapi_description_names_models_and_every_error_and_no_422(served: Served) -> None:
    description = served.get("/openapi.json").json()
    schemas, paths = description["components"]["schemas"], description["paths"]
    assert schemas["ChatCompletionRequest"]["properties"]["model"]["enum"] == ["tiny", "other-name"]
    answers = paths[COMPLETIONS]["post"]["responses"]
    assert set(answers) == {"200", "400", "401", "404", "413", "429", "500", "503"}
    assert "text/event-stream" in answers["200"]["content"] and "application/json" in answers["200"]["content"]
    assert all("422" not in operation["responses"] for path in paths.values() for operation in path.values())


def test_a_refused_request_is_in_the_journal_with_its_field_and_trace(tmp_path: Path) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    engine = AsyncEngine(TINY, num_blocks=64, block_size=4, device="cpu", journal=str(tmp_path))
    with serving(engine) as found:
        found.post(COMPLETIONS, {"X-Request-Id": "a", "TraceParent": parent}, prompt="")
        found.post(COMPLETIONS, {"X-Request-Id": "b", "traceparent": parent[:-4]}, prompt="x", best_of=3)
        found.post(COMPLETIONS, {"X-Request-Id": "c"}, prompt=[999])
        found.post(CHAT, {"X-Request-Id": "d"}, model="gpt-5", messages=[{"role": "user", "content": "x"}])
        found.post(COMPLETIONS, {"X-Request-Id": "e", "tRACEPARENT": parent}, prompt="x", max_tokens=1)
        found.post(COMPLETIONS, {"X-Request-Id": "f", "traceparent": "x" * 300}, prompt="x", max_tokens=1)
    events = [event for frame in JournalReader(tmp_path).frames() for event in frame.events]
    refused = [event for event in events if isinstance(event, RequestRefused)]
    assert [(event.request, event.field, event.traceparent) for event in refused] == [
        ("a", "prompt", parent), ("b", "best_of", None), ("c", "prompt", None), ("d", "model", None),
    ]  # fmt: skip
    arrived = [event for event in events if isinstance(event, RequestArrived)]
    assert [(event.request, event.traceparent) for event in arrived] == [("e", parent), ("f", None)]


def test_an_engine_that_is_gone_is_answered_by_503() -> None:
    with serving() as found:
        found.run(found.engine.close())
        error = error_of(found.post(COMPLETIONS, prompt="x"), 503)
        assert error["code"] == "engine_dead" and error["type"] == "server_error"
        assert error_of(found.post(COMPLETIONS, prompt="x", stream=True), 503)["code"] == "engine_dead"
        assert not found.state.names
