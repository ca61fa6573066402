"""W25: each bad request is refused by name while a real model streams to a healthy one, which never notices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nanolens.engine.llm import LLM
from nanolens.engine.outputs import Delta
from nanolens.engine.sampling_params import SamplingParams
from nanolens.errors import InvalidRequest
from nanolens.telemetry.events import RequestArrived, RequestRefused
from real_engine import is_idle, prompt_of, recorded, tiny_llm

VOCAB = 264
HEALTHY, LENGTH = prompt_of(10), 40
SEEDED = SamplingParams(temperature=0.9, seed=7, max_tokens=LENGTH, ignore_eos=True)
IN_VOCABULARY = f"must be a token id from 0 to {VOCAB - 1}"


def send(prompt: Any, **params: Any) -> Callable[[LLM], object]:
    return lambda llm: llm.engine.add_request(prompt, SamplingParams(**params))


BAD: dict[str, tuple[Callable[[LLM], object], str, str]] = {
    "bias": (send([1], logit_bias={VOCAB: 5}), "logit_bias", f"logit_bias {{{VOCAB}}}: {IN_VOCABULARY}"),
    "stop id": (send([1], stop_token_ids=[VOCAB + 7]), "stop_token_ids",
                f"stop_token_ids[0]={VOCAB + 7}: {IN_VOCABULARY}"),
    "negative": (send([-1]), "prompt", f"prompt[0]=-1: {IN_VOCABULARY}"),
    "beyond": (send([VOCAB]), "prompt", f"prompt[0]={VOCAB}: {IN_VOCABULARY}"),
    "no ids": (send([]), "prompt", "prompt is empty: at least one token is needed"),
    "no text": (send(""), "prompt", "prompt is empty: at least one token is needed"),
    "no messages": (lambda llm: llm.chat([]), "messages", "messages=[]: at least one message is needed"),
}  # fmt: skip


@pytest.fixture(scope="module")
def alone() -> list[int]:
    with tiny_llm() as llm:
        found: list[int] = llm.generate(HEALTHY, SEEDED, use_tqdm=False)[0].outputs[0].token_ids
    return found


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("bad", BAD)
def test_it_is_refused_by_name_and_the_stream_goes_on(bad: str, overlap: bool, alone: list[int]) -> None:
    request, field, message = BAD[bad]
    with tiny_llm(overlap=overlap) as llm:
        stream = llm.stream(HEALTHY, SEEDED)
        deltas: list[Delta] = []
        for delta in stream:
            deltas.append(delta)
            if len(deltas) % 8 == 1:
                before = llm.engine.snapshot()
                with pytest.raises(InvalidRequest) as refused:
                    request(llm)
                assert (refused.value.field, str(refused.value)) == (field, message)
                after = llm.engine.snapshot()
                assert after.waiting == [] and after.sequences == before.sequences
                assert after.free_blocks == before.free_blocks
        assert [token for delta in deltas for token in delta.token_ids] == alone
        assert deltas[-1].finish_reason == "length"
        assert is_idle(llm.engine.snapshot())


def test_all_of_them_are_recorded_as_refused_and_none_as_arrived(alone: list[int]) -> None:
    with tiny_llm() as llm:
        events = recorded(llm)
        for request, _, _ in BAD.values():
            with pytest.raises(InvalidRequest):
                request(llm)
        assert llm.generate(HEALTHY, SEEDED, use_tqdm=False)[0].outputs[0].token_ids == alone
    fields = [field for _, field, _ in BAD.values() if field != "messages"]  # those have no request id yet
    assert [event.field for event in events if isinstance(event, RequestRefused)] == fields
    assert sum(isinstance(event, RequestArrived) for event in events) == 1


def test_a_prompt_outside_a_list_names_its_place() -> None:
    with tiny_llm() as llm:
        events = recorded(llm)
        with pytest.raises(InvalidRequest, match=rf"^prompts\[1\]: prompt\[2\]={VOCAB}: {IN_VOCABULARY}$") as refused:
            llm.generate([[1, 2], [1, 2, VOCAB], [3]], SEEDED, use_tqdm=False)
        assert refused.value.field == "prompt"
        assert not events and is_idle(llm.engine.snapshot())  # nothing was queued, not even the good ones
