"""What bad input gets: an error that names the field and the limit, and a healthy neighbour that never notices."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from nanolens.engine.llm import LLM
from nanolens.engine.sampling_params import SamplingParams
from nanolens.errors import InvalidConfig, InvalidRequest, ModelLoadError, PromptTooLong, UnknownModel
from nanolens.inspector.trace_cli import main as nano_trace
from real_engine import TINY, greedy, is_idle, prompt_of, scripted_llm, tiny_llm, tiny_parts
from tiny_models import save_tiny
from tiny_tokenizers import byte_level_tokenizer

VOCAB = 264
POOL = 64 * 4  # tokens that the engines here hold
IN_VOCABULARY = f"must be a token id from 0 to {VOCAB - 1}"
HEALTHY = prompt_of(10)

Bad = tuple[Callable[[LLM], object], str, str]


def add(prompt: Any = (1, 2), **params: Any) -> Callable[[LLM], object]:
    return lambda llm: llm.engine.add_request(prompt, SamplingParams(**params))


def generate(prompts: Any, params: Any = None) -> Callable[[LLM], object]:
    return lambda llm: llm.generate(prompts, params, use_tqdm=False)


def chat(messages: Any) -> Callable[[LLM], object]:
    return lambda llm: llm.chat(messages, use_tqdm=False)


# What is sent, the field that the error names, its message.
REQUESTS: dict[str, Bad] = {
    "empty text": (add(""), "prompt", "prompt is empty: at least one token is needed"),
    "empty ids": (add([]), "prompt", "prompt is empty: at least one token is needed"),
    "no prompt": (add(None), "prompt", "prompt: must be a text or a list of token ids, not NoneType"),
    "a number": (add(7), "prompt", "prompt: must be a text or a list of token ids, not int"),
    "bytes": (add(b"hello"), "prompt", "prompt: must be a text or a list of token ids, not bytes"),
    "lone surrogate": (add("a\ud800"), "prompt", "prompt holds a lone surrogate at character 1: send Unicode"),
    "id beyond": (add([1, VOCAB]), "prompt", f"prompt[1]={VOCAB}: {IN_VOCABULARY}"),
    "id negative": (add([-1]), "prompt", f"prompt[0]=-1: {IN_VOCABULARY}"),
    "id no whole number": (add([1.0]), "prompt", f"prompt[0]=1.0: {IN_VOCABULARY}"),
    "id a text": (add(["1"]), "prompt", f"prompt[0]='1': {IN_VOCABULARY}"),
    "over the pool": (add([1] * POOL), "prompt", f"prompt has {POOL} tokens: at most {POOL - 1} fit, "
                      f"since max_model_len={POOL} holds prompt and output"),
    "max_tokens": (add(max_tokens=0), "max_tokens", "max_tokens=0: must be at least 1"),
    "top_k": (add(top_k=-2), "top_k", "top_k=-2: must be at least -1 (0 and -1 turn it off)"),
    "top_p": (add(top_p=0.0), "top_p", "top_p=0.0: must be above 0 and at most 1"),
    "temperature": (add(temperature=-0.1), "temperature", "temperature=-0.1: must be at least 0 (0 is greedy)"),
    "temperature nan": (add(temperature=math.nan), "temperature",
                        "temperature=nan: must be a finite number (0 is greedy)"),
    "n": (add(n=0), "n", "n=0: must be at least 1"),
    "logprobs": (add(logprobs=21), "logprobs", "logprobs=21: must be at most 20"),
    "min_tokens": (add(min_tokens=9, max_tokens=8), "min_tokens", "min_tokens=9: must be at most max_tokens (8)"),
    "stop": (add(stop=["a", ""]), "stop", "stop[1]='': must not be empty; leave it out"),
    "stop id": (add(stop_token_ids=[VOCAB + 7]), "stop_token_ids", f"stop_token_ids[0]={VOCAB + 7}: {IN_VOCABULARY}"),
    "bias": (add(logit_bias={VOCAB: 5}), "logit_bias", f"logit_bias {{{VOCAB}}}: {IN_VOCABULARY}"),
    "generate bytes": (generate(b"hello"), "prompt",
                       "prompts[0]: prompt: must be a text or a list of token ids, not bytes"),
    "generate a number": (generate(7), "prompt",
                          "prompts[0]: prompt: must be a text or a list of token ids, not int"),
    "a mapping": (add({1: 2}), "prompt", "prompt: must be a text or a list of token ids, not dict"),
    "mixed prompts": (generate([1, [2, 3]]), "prompts",
                      "prompts mixes token ids and prompts: give a list of one kind"),
    "text among ids": (generate([1, "a"]), "prompts", "prompts mixes token ids and prompts: give a list of one kind"),
    "second prompt": (generate(["a", ""]), "prompt", "prompts[1]: prompt is empty: at least one token is needed"),
    "params": (generate(["a", "b"], [SamplingParams()]), "params",
               "1 params for 2 prompts: give one, or one each"),
    "no messages": (chat([]), "messages", "messages=[]: at least one message is needed"),
    "message without role": (chat([{"content": "x"}]), "messages",
                             "messages[0]: a message is an object with role and content"),
    "message without content": (chat([{"role": "user"}]), "messages", "messages[0].content: must be a text"),
    "unknown role": (chat([{"role": "cook", "content": "x"}]), "messages",
                     "role='cook': must be system, user or assistant"),
}  # fmt: skip


@pytest.fixture(scope="module")
def alone() -> list[int]:
    """What the healthy request gives on an engine of its own."""
    with tiny_llm() as llm:
        ids: list[int] = llm.generate(HEALTHY, greedy(12), use_tqdm=False)[0].outputs[0].token_ids
    return ids


@pytest.mark.parametrize("bad", REQUESTS)
def test_a_bad_request_names_its_field_and_the_healthy_one_beside_it_ends_as_alone(bad: str, alone: list[int]) -> None:
    request, field, message = REQUESTS[bad]
    with tiny_llm() as llm:
        outputs: list[Any] = []
        llm.engine.add_request(HEALTHY, greedy(12), on_finish=outputs.append)
        for _ in range(3):
            llm.engine.step()
        before = llm.engine.snapshot()
        with pytest.raises(InvalidRequest) as refused:
            request(llm)
        assert (refused.value.field, str(refused.value)) == (field, message)
        after = llm.engine.snapshot()
        assert (after.sequences, after.waiting, after.free_blocks) == (before.sequences, [], before.free_blocks)
        while llm.engine.step():
            pass
        assert [output.outputs[0].token_ids for output in outputs] == [alone]
        assert is_idle(llm.engine.snapshot())


def test_a_prompt_over_max_model_len_says_what_fits() -> None:
    with tiny_llm(max_model_len=20) as llm:
        with pytest.raises(PromptTooLong, match=r"^prompt has 20 tokens: at most 19 fit, since max_model_len=20 holds"):
            llm.engine.add_request([1] * 20)
        output = llm.generate([1] * 19, greedy(5), use_tqdm=False)[0].outputs[0]
        assert (len(output.token_ids), output.finish_reason) == (1, "length")


def test_the_id_of_a_live_request_is_refused_and_free_again_after_it() -> None:
    with tiny_llm() as llm:
        llm.engine.add_request(HEALTHY, greedy(4), request_id="mine")
        with pytest.raises(InvalidRequest, match=r"^request_id='mine': a live request has this id$") as refused:
            llm.engine.add_request([1], greedy(4), request_id="mine")
        assert refused.value.field == "request_id"
        while llm.engine.step():
            pass
        assert llm.engine.add_request([1], greedy(4), request_id="mine") == "mine"


def test_a_model_without_a_chat_template_says_so(tmp_path: Path) -> None:
    save_tiny(tmp_path, vocab_size=len(byte_level_tokenizer()))
    byte_level_tokenizer().save_pretrained(tmp_path)
    with LLM(str(tmp_path), num_blocks=16, device="cpu") as llm:
        with pytest.raises(InvalidRequest, match="this model has no chat template: send a prompt instead of messages"):
            llm.chat([{"role": "user", "content": "hello"}])
        assert llm.generate("hello", greedy(4), use_tqdm=False)[0].outputs[0].finish_reason == "length"


@pytest.mark.parametrize("overlap", [False, True])
def test_a_sequence_whose_logits_are_not_finite_fails_alone(overlap: bool) -> None:
    """Position 5 after token 200 has no valid logits: that request ends in error, and the other as it does alone."""

    def logits_of(position: int, token: int) -> dict[int, float]:
        return {0: math.nan} if (position, token) == (5, 200) else {token + 1: 1.0}

    with scripted_llm(logits_of, overlap=overlap) as llm:
        good, bad = llm.generate([[1, 2, 3], [195, 196, 197]], greedy(8), use_tqdm=False)
        assert good.outputs[0].token_ids == list(range(4, 12))
        assert good.error is None
        assert bad.outputs[0].finish_reason == "error"
        assert bad.outputs[0].token_ids == [198, 199, 200]
        assert bad.error == "sequence 1: non-finite logits at position 6"
        assert is_idle(llm.engine.snapshot())


OPTIONS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "misspelt": ({"blok_size": 4}, TypeError, "unknown option 'blok_size'; did you mean block_size?"),
    "unknown": ({"zzz": 1}, TypeError, "unknown option 'zzz'; options are aging_s, attention, audit, batching"),
    "zero": ({"block_size": 0}, InvalidConfig, "block_size=0: must be a whole number of at least 1"),
    "no number": ({"max_num_seqs": "8"}, InvalidConfig, "max_num_seqs='8': must be a whole number of at least 1"),
    "no choice": ({"batching": "both"}, InvalidConfig, "batching='both': must be one of mixed, prefill_first"),
    "policy": ({"policy": "lifo"}, InvalidConfig, "policy='lifo': must be one of fcfs, priority, sjf"),
    "memory": ({"gpu_memory_utilization": 1.5}, InvalidConfig,
               "gpu_memory_utilization=1.5: must be above 0 and at most 1"),
    "beyond the model": ({"max_model_len": 5000}, InvalidConfig,
                         "max_model_len=5000: the model has positions for at most 4096 tokens"),
    "beyond the pool": ({"num_blocks": 4, "block_size": 16, "max_model_len": 100}, InvalidConfig,
                        "num_blocks=4 of 16 tokens hold 64 tokens, fewer than max_model_len=100: "
                        "give at least 7 blocks, or lower max_model_len"),
    "journal unrecorded": ({"recording": False, "journal": "j"}, InvalidConfig,
                           "journal='j' with recording=False: nothing would be written; drop one"),
}  # fmt: skip


@pytest.mark.parametrize("bad", OPTIONS)
def test_an_option_that_cannot_work_is_named(bad: str) -> None:
    options, kind, message = OPTIONS[bad]
    with pytest.raises(kind, match=re.escape(message)):
        LLM(TINY, parts=tiny_parts(), **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named() -> None:
    with pytest.raises(InvalidConfig, match=r"^device='cuda': torch sees no GPU; use 'cpu'"):
        LLM(TINY, device="cuda")


def test_an_unknown_model_is_told_what_there_is() -> None:
    with pytest.raises(UnknownModel, match=r"'no-such-model' is no directory here and no known model; give a"):
        LLM("no-such-model")
    with pytest.raises(UnknownModel, match=r"'dummy:huge' is no dummy model; there are dummy:qwen3-0.6b"):
        LLM("dummy:huge")


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    save_tiny(tmp_path, shard_size="100KB")
    byte_level_tokenizer().save_pretrained(tmp_path)
    shard = sorted(tmp_path.glob("model-*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(ModelLoadError, match=re.escape(shard.name)):
        LLM(str(tmp_path), device="cpu")


@pytest.mark.parametrize("change", ["shape", "absent"])
def test_a_wrong_tensor_is_named(tmp_path: Path, change: str) -> None:
    save_tiny(tmp_path)
    byte_level_tokenizer().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    tensor = tensors.pop(name)
    if change == "shape":
        tensors[name] = tensor[:-1].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelLoadError, match=re.escape(name)) as refused:
        LLM(str(tmp_path), device="cpu")
    if change == "shape":
        assert re.search(rf"has shape \[63, {tensor.shape[1]}\]; config.json asks for \[64,", str(refused.value))


def test_a_configuration_that_is_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"no config\.json there"):
        LLM(str(tmp_path), device="cpu")
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["MambaForCausalLM"]}))
    with pytest.raises(ModelLoadError, match=r"MambaForCausalLM.*is not supported; supported are LlamaForCausalLM"):
        LLM(str(tmp_path), device="cpu")


@pytest.mark.parametrize("command", ["tail", "check"])
def test_a_journal_that_cannot_be_read_is_named(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = tmp_path / "run-000001.journal"
    for path, message in (
        (tmp_path / "none", f"{tmp_path / 'none'}: no such file or directory"),
        (tmp_path, f"{tmp_path}: holds no journal (no file *.journal)"),
        (foreign, str(foreign)),
    ):
        if path == foreign:
            foreign.write_bytes(b"this is a text and not what an engine wrote\n" * 40)
        assert nano_trace([command, str(path)]) == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.startswith(f"nano-trace: {message}")

