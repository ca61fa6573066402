"""W25: one bad request (an id outside the vocabulary, an empty prompt) takes the engine down. The engine's side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fake_engine import VOCAB_SIZE, FakeEngine, solo
from nanolens.engine.engine import Message
from nanolens.engine.sampling_params import SamplingParams
from nanolens.errors import InvalidRequest
from nanolens.telemetry.events import RequestArrived, RequestFinished, RequestRefused

HEALTHY = list(range(6))
IN_VOCABULARY = f"must be a token id from 0 to {VOCAB_SIZE - 1}"


class Letters:
    """A tokenizer of one token a letter."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(letter) % VOCAB_SIZE for letter in text]

    def decode(self, token_ids: list[int], /, *, skip_special_tokens: bool) -> str:
        return "".join(chr(token_id) for token_id in token_ids)

    def apply_chat_template(self, messages: list[Message]) -> list[int]:
        return self.encode("".join(message["content"] for message in messages))


def request(prompt: Any, **params: Any) -> Callable[[FakeEngine], object]:
    return lambda engine: engine.add_request(prompt, SamplingParams(**params))


def chat(messages: list[Any]) -> Callable[[FakeEngine], object]:
    return lambda engine: engine.add_request(engine.chat_prompt(messages))


BAD = {
    "bias": (request([1], logit_bias={VOCAB_SIZE: 5}), "logit_bias", f"logit_bias {{{VOCAB_SIZE}}}: {IN_VOCABULARY}"),
    "stop": (request([1], stop_token_ids=[VOCAB_SIZE + 7]), "stop_token_ids",
             f"stop_token_ids[0]={VOCAB_SIZE + 7}: {IN_VOCABULARY}"),
    "negative": (request([-1]), "prompt", f"prompt[0]=-1: {IN_VOCABULARY}"),
    "beyond": (request([VOCAB_SIZE]), "prompt", f"prompt[0]={VOCAB_SIZE}: {IN_VOCABULARY}"),
    "no ids": (request([]), "prompt", "prompt is empty: at least one token is needed"),
    "no text": (request(""), "prompt", "prompt is empty: at least one token is needed"),
    "float": (request([1.5]), "prompt", f"prompt[0]=1.5: {IN_VOCABULARY}"),
    "bool": (request([True]), "prompt", f"prompt[0]=True: {IN_VOCABULARY}"),
    "too long": (request(list(range(100)) * 6), "prompt",
                 "prompt has 600 tokens: at most 255 fit, since max_model_len=256 holds prompt and output"),
    "no messages": (chat([]), "messages", "messages=[]: at least one message is needed"),
    "no role": (chat([{"content": "x"}]), "messages", "messages[0]: a message is an object with role and content"),
    "no content": (chat([{"role": "user"}]), "messages", "messages[0].content: must be a text"),
}  # fmt: skip


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("bad", BAD)
def test_a_bad_request_is_refused_and_its_healthy_neighbour_goes_on(bad: str, overlap: bool) -> None:
    send, field, message = BAD[bad]
    engine = FakeEngine(overlap=overlap)
    engine.tokenizer = Letters()
    healthy = engine.add(HEALTHY, 8)
    engine.step()
    for _ in range(2):
        with pytest.raises(InvalidRequest) as refused:
            send(engine)
        assert (refused.value.field, str(refused.value)) == (field, message)
        assert engine.snapshot().waiting == [] and list(engine.core.requests) == [healthy]
        engine.step()
    engine.run()
    assert engine.ids(healthy) == solo(HEALTHY, 8)
    assert len(engine.of(RequestArrived)) == len(engine.of(RequestFinished)) == 1
    if field != "messages":  # refused before it had a request's name
        assert [event.field for event in engine.of(RequestRefused)] == [field] * 2
        assert engine.core.recorder.totals.counts["requests_refused"] == 2


def test_the_engine_serves_the_next_request_after_all_of_them() -> None:
    engine = FakeEngine()
    engine.tokenizer = Letters()
    for send, _, _ in BAD.values():
        with pytest.raises(InvalidRequest):
            send(engine)
    name = engine.add(HEALTHY, 8)
    engine.run()
    assert engine.ids(name) == solo(HEALTHY, 8)
