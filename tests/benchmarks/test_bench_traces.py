"""Traces in their three formats, from files written here and, where they are, the shared ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nanolens.benchmarks.workload import Job, WorkloadSpec, make_workload
from nanolens.errors import InvalidConfig

CHAT_PROMPTS = Path(__file__).parents[2] / "benchmarks" / "prompts.jsonl"


def chat(messages: list[dict[str, str]]) -> list[int]:
    return list(messages[0]["content"].encode())


def read(path: Path, vocab_size: int = 1000, **fields: object) -> list[Job]:
    return make_workload(WorkloadSpec(trace=path, **fields), vocab_size, chat).jobs  # type: ignore[arg-type]


def written(path: Path, *lines: object) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def lengths(jobs: list[Job]) -> list[tuple[int, int]]:
    return [(len(job.prompt), job.max_tokens) for job in jobs]


def test_azure_lengths_become_requests_with_drawn_ids(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens", "x,374,44", "y,96,10", "z,5,1")
    jobs = read(path)
    assert lengths(jobs) == [(374, 44), (96, 10), (5, 1)]
    assert max(max(job.prompt) for job in jobs) < 1000
    assert read(path) == jobs
    assert lengths(read(path, limit=2, scale=1 / 32)) == [(11, 1), (3, 1)]


def test_equal_hash_ids_of_mooncake_are_equal_prefixes(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 1200, "output_length": 6, "hash_ids": [1, 2, 3]}
    path = written(tmp_path / "m.jsonl", row, row | {"hash_ids": [1, 2, 9]}, row | {"hash_ids": [4, 2, 3]})
    a, b, c = read(path, scale=1 / 32)
    assert lengths([a, b, c]) == [(37, 1)] * 3
    assert a.prompt[:32] == b.prompt[:32] and a.prompt[32:] != b.prompt[32:]
    assert a.prompt[:16] != c.prompt[:16] and a.prompt[16:] == c.prompt[16:]


def test_a_text_trace_asks_its_first_turn_and_takes_drawn_output_lengths(tmp_path: Path) -> None:
    path = written(tmp_path / "q.jsonl", {"turns": ["Why?", "And then?"]}, "", {"turns": ["How?"]})
    jobs = read(path, output_len=(7, 7))
    assert [(bytes(job.prompt), job.max_tokens) for job in jobs] == [(b"Why?", 7), (b"How?", 7)]


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("a.csv", ["TIMESTAMP,ContextTokens", "x,1"], "no column GeneratedTokens"),
        ("a.csv", ["ContextTokens,GeneratedTokens", "12,many"], "line 2: GeneratedTokens='many'"),
        ("a.csv", ["ContextTokens,GeneratedTokens"], "holds no requests"),
        ("a.jsonl", [], "holds no requests"),
        ("a.jsonl", ["{"], "line 1: no JSON"),
        ("a.jsonl", ["[1]"], "line 1: must be a JSON object"),
        ("a.jsonl", [{"text": "?"}], "its lines hold text; known are"),
        ("a.jsonl", [{"turns": ["a"]}, {"turns": []}], "line 2: turns must be a list of texts"),
        ("a.jsonl", [{"hash_ids": [1], "output_length": 1}], "line 1: input_length=None"),
        ("a.jsonl", [{"hash_ids": 1, "input_length": 1, "output_length": 1}], "line 1: hash_ids must be a list"),
    ],
)
def test_an_unusable_trace_is_refused_with_its_line(
    tmp_path: Path, name: str, lines: list[object], message: str
) -> None:
    with pytest.raises(InvalidConfig, match=message):
        read(written(tmp_path / name, *lines))


def test_a_missing_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"nothing\.csv: can't be read"):
        read(tmp_path / "nothing.csv")


def test_sixteen_chat_prompts_are_shipped() -> None:
    jobs = read(CHAT_PROMPTS, output_len=(64, 64))
    assert len(jobs) == len({bytes(job.prompt) for job in jobs}) == 16


@pytest.mark.model
def test_each_shipped_chat_prompt_has_48_tokens_under_the_embedded_model(smollm2_dir: Path) -> None:
    from nanolens.models import load_tokenizer

    template = load_tokenizer(str(smollm2_dir)).apply_chat_template
    jobs = make_workload(WorkloadSpec(trace=CHAT_PROMPTS), 49_152, template).jobs
    assert {len(job.prompt) for job in jobs} == {48}


def test_the_shared_azure_trace_reads_whole(shared_data: Path) -> None:
    jobs = read(shared_data / "azure2023_conv_first3000.csv", scale=1 / 32)
    assert len(jobs) == 3000


def test_the_shared_mooncake_trace_has_its_known_hits_at_a_32nd_of_its_length(shared_data: Path) -> None:
    jobs = read(shared_data / "mooncake_synthetic_first1000.jsonl", limit=500, scale=1 / 32)
    seen: set[tuple[int, ...]] = set()
    hits = total = 0
    for job in jobs:
        full = [tuple(job.prompt[: end + 16]) for end in range(0, len(job.prompt) - 15, 16)]
        total += len(full)
        hits += sum(prefix in seen for prefix in full)
        seen.update(full)
    assert (hits, total) == (1_079, 12_333)


def test_the_shared_questions_are_asked_under_the_chat_template(shared_data: Path) -> None:
    jobs = read(shared_data / "mt_bench_questions.jsonl", limit=3, output_len=(4, 4))
    assert bytes(jobs[0].prompt).startswith(b"Compose an engaging travel blog post")
