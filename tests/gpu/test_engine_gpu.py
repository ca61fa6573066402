"""The whole engine on a GPU: the CPU's tokens with every backend, transformers' logits, and nothing left behind."""

from __future__ import annotations

import gc
import itertools
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from nanolens import LLM, SamplingParams
from nanolens.errors import InvalidConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

TINY = ("dummy:llama-tiny", "dummy:qwen3-tiny")


def prompts(count: int = 12) -> list[list[int]]:
    draw = random.Random(3)
    return [[draw.randrange(256) for _ in range(draw.randint(3, 90))] for _ in range(count)]


def greedy_ids(model: str, device: str, max_tokens: int = 200, **options: Any) -> list[list[int]]:
    settings = {"num_blocks": 400, "max_num_seqs": 7, "dtype": "float32", "audit": True, "max_model_len": 512}
    with LLM(model, device=device, **(settings | options)) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        return [output.outputs[0].token_ids for output in llm.generate(prompts(), params, use_tqdm=False)]


@pytest.fixture(scope="module")
def on_cpu() -> dict[str, list[list[int]]]:
    return {model: greedy_ids(model, "cpu") for model in TINY}


@pytest.mark.parametrize("model", TINY)
@pytest.mark.parametrize(
    ("attention", "overlap", "enforce_eager"),
    list(itertools.product(("triton", "torch"), (True, False), (True, False))),
)
def test_greedy_ids_are_the_cpus(
    on_cpu: dict[str, list[list[int]]], model: str, attention: str, overlap: bool, enforce_eager: bool
) -> None:
    ids = greedy_ids(model, "cuda", attention=attention, overlap=overlap, enforce_eager=enforce_eager)
    assert ids == on_cpu[model]


@pytest.mark.parametrize("batching", ["mixed", "prefill_first"])
def test_a_short_pool_and_small_chunks_change_nothing(on_cpu: dict[str, list[list[int]]], batching: str) -> None:
    ids = greedy_ids(TINY[1], "cuda", num_blocks=60, max_prefill_chunk=16, batching=batching)
    assert ids == on_cpu[TINY[1]]


def test_sampled_tokens_do_not_depend_on_neighbours_or_graphs() -> None:
    params = [
        SamplingParams(temperature=0.8, seed=i, max_tokens=40, ignore_eos=True, **own)
        for i, own in enumerate([{}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.1}, {"presence_penalty": 1.0}, {}])
    ]
    found = []
    for eager in (False, True):
        with LLM(TINY[1], device="cuda", dtype="float32", num_blocks=200, enforce_eager=eager) as llm:
            together = llm.generate(prompts(6), params, use_tqdm=False)
            found.append([output.outputs[0].token_ids for output in together])
            alone = [llm.generate(p, own, use_tqdm=False)[0] for p, own in zip(prompts(6), params, strict=True)]
            assert [output.outputs[0].token_ids for output in alone] == found[-1]
    assert found[0] == found[1]


def test_a_bf16_forward_is_near_transformers(tmp_path: Path) -> None:
    import transformers

    from nanolens.kernels.attention import build_metadata
    from nanolens.models import load_model
    from nanolens.models.batch import ForwardBatch

    config = transformers.Qwen3Config(
        vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, max_position_embeddings=4096, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}, pad_token_id=None, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    reference = transformers.Qwen3ForCausalLM(config).to(torch.bfloat16)
    reference.save_pretrained(tmp_path)
    ids = torch.randint(0, 10000, (300,))
    device = torch.device("cuda")
    model = load_model(str(tmp_path), "bfloat16", device)
    pages = [torch.zeros((20, 16, 8, 128), dtype=torch.bfloat16, device=device) for _ in range(56)]
    table = torch.randperm(20, device=device)[None].int()
    positions = torch.arange(300, device=device)
    slots = table[0].long()[positions // 16] * 16 + positions % 16
    metadata = build_metadata(table, [300], [300], 16, None, "triton")
    with torch.inference_mode():
        caches = list(zip(pages[::2], pages[1::2], strict=True))
        hidden = model.forward(ids.to(device), positions, ForwardBatch(caches, slots, metadata))
        ours = model.logits(hidden).double()
        theirs = reference.to(device)(ids.to(device)[None]).logits[0].double()
    assert float((ours - theirs).norm() / theirs.norm()) < 2e-2


def test_a_closed_engine_gives_its_memory_back() -> None:
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    with LLM(TINY[0], device="cuda", num_blocks=2000) as llm:
        llm.generate([[1, 2, 3]], SamplingParams(max_tokens=4), use_tqdm=False)
    del llm
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() <= before + (8 << 20)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"attention": "flash", "block_size": 16}, "block_size"),
        ({"num_blocks": 1 << 26}, "num_blocks"),
        ({"gpu_memory_utilization": 0.001, "max_model_len": 4096}, "gpu_memory_utilization"),
    ],
)
def test_what_does_not_fit_is_said(options: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidConfig, match=word):
        LLM(TINY[0], device="cuda", dtype="bfloat16", **options)
