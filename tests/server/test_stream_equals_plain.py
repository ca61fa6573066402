"""40 real prompts on the real model: the streamed text is the plain one, byte for byte, and ids are LLM.generate's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from nanolens.engine.llm import LLM
from nanolens.engine.sampling_params import SamplingParams
from nanolens.telemetry.events import RequestArrived, TokensSampled
from serve import NAME, Server
from sse_wire import ends, texts

pytestmark = [pytest.mark.model, pytest.mark.slow]

PATH = "/v1/chat/completions"
MAX_TOKENS = 24
NUM_CLIENTS = 8


@pytest.fixture(scope="module")
def server(smollm2_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("smollm2")
    with Server(directory, "smollm2", num_blocks=512, block_size=16, journal_content=True) as server:
        yield server


@pytest.fixture(scope="module")
def questions(shared_data: Path) -> list[str]:
    lines = (shared_data / "mt_bench_questions.jsonl").read_text().splitlines()
    return [json.loads(line)["turns"][0] for line in lines[::2]]


def chat(question: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}]
    return {"model": NAME, "messages": messages, "max_tokens": MAX_TOKENS} | fields


def streamed(server: Server, name: str, body: dict[str, Any]) -> tuple[bytes, str]:
    """Text and finish reason of a stream."""
    with server.stream(PATH, body, {"X-Request-Id": name}) as stream:
        chunks = stream.chunks()
    return texts(chunks)[0].encode(), ends(chunks)[0]


def plain(server: Server, name: str, body: dict[str, Any]) -> tuple[bytes, str]:
    """Text and finish reason of a plain answer."""
    answer = server.post(PATH, body, {"X-Request-Id": name})
    assert answer.status == 200, answer.body
    choice = answer.json["choices"][0]
    return choice["message"]["content"].encode(), choice["finish_reason"]


def sampled(server: Server) -> dict[str, list[int]]:
    """The tokens of each request, as the journal has them."""
    requests: dict[int, str] = {}
    found: dict[str, list[int]] = {}
    for event in server.events():
        if isinstance(event, RequestArrived):
            requests |= dict.fromkeys(event.seqs, event.request)
        elif isinstance(event, TokensSampled):
            for seq, token in zip(event.seqs, event.tokens, strict=True):
                found.setdefault(requests[seq], []).append(token)
    return found


def test_streamed_text_is_the_plain_one_and_its_ids_are_those_of_generate(
    server: Server, questions: list[str], smollm2: Callable[..., LLM]
) -> None:
    assert len(questions) == 40
    bodies = [chat(question, temperature=0) for question in questions]
    names = [f"{kind}-{number}" for kind in ("stream", "plain") for number in range(40)]
    with ThreadPoolExecutor(NUM_CLIENTS) as clients:
        streams = list(clients.map(lambda name, body: streamed(server, name, body), names[:40], bodies))
        plains = list(clients.map(lambda name, body: plain(server, name, body), names[40:], bodies))
    assert streams == plains
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)
    conversations = [body["messages"] for body in bodies]
    outputs = [output.outputs[0] for output in smollm2().chat(conversations, params, use_tqdm=False)]
    assert streams == [(each.text.encode(), each.finish_reason) for each in outputs]
    ids = sampled(server)
    assert [ids[name] for name in names] == [each.token_ids for each in outputs] * 2


def test_sampled_text_streams_as_it_is_plain(server: Server, questions: list[str]) -> None:
    for number, question in enumerate(questions[:6]):
        body = chat(question, temperature=0.9, seed=number)
        assert streamed(server, f"s{number}", body) == plain(server, f"p{number}", body)
