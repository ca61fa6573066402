"""Workloads: the reference's exact draws, scaling, shared prefixes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from nanolens.benchmarks.floor import token_contexts
from nanolens.benchmarks.workload import Job, Workload, WorkloadSpec, make_workload
from nanolens.errors import InvalidConfig


def no_chat(messages: list[dict[str, str]]) -> list[int]:
    raise AssertionError("this workload holds no text")


def make(vocab_size: int = 151_936, **fields: object) -> Workload:
    return make_workload(WorkloadSpec(**fields), vocab_size, no_chat)  # type: ignore[arg-type]


def test_the_reference_workload_is_drawn_as_written_down() -> None:
    workload = make()
    random.seed(0)
    prompts = []
    for _ in range(256):
        length = random.randint(100, 1024)
        prompts.append([random.randint(0, 10_000) for _ in range(length)])
    assert [job.prompt for job in workload.jobs] == prompts
    assert [job.max_tokens for job in workload.jobs] == [random.randint(100, 1024) for _ in range(256)]


def test_the_reference_workload_has_its_known_totals() -> None:
    workload = make()
    assert workload.num_output_tokens == 133_966
    assert workload.num_prompt_tokens == 142_827
    assert workload.spec.is_reference


def test_each_token_after_the_first_reads_all_tokens_before_it() -> None:
    assert token_contexts([Job([1] * 10, 3), Job([1] * 5, 1)]) == 11 + 12
    assert token_contexts(make().jobs) == 120_795_204


def test_ids_stay_inside_a_small_vocabulary() -> None:
    workload = make(264, num_requests=4)
    assert max(max(job.prompt) for job in workload.jobs) == 263


def test_scaled_lengths_are_rounded_down_and_at_least_one() -> None:
    whole, scaled = make(num_requests=8), make(num_requests=8, scale=1 / 32)
    for job, small in zip(whole.jobs, scaled.jobs, strict=True):
        assert small.prompt == job.prompt[: max(1, len(job.prompt) // 32)]
        assert small.max_tokens == max(1, job.max_tokens // 32)


def test_a_shared_prefix_is_that_share_of_each_prompt() -> None:
    own, shared = make(num_requests=6), make(num_requests=6, shared_prefix=0.5)
    common = max((job.prompt for job in shared.jobs), key=len)
    for job, before in zip(shared.jobs, own.jobs, strict=True):
        half = round(len(before.prompt) / 2)
        assert job.prompt[:half] == common[:half]
        assert job.prompt[half:] == before.prompt[half:]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"num_requests": 0}, "num_requests=0"),
        ({"limit": 0}, "limit=0"),
        ({"input_len": (9, 3)}, "input_len=9:3"),
        ({"output_len": (0, 3)}, "output_len=0:3"),
        ({"scale": 0.0}, "scale_lengths=0.0"),
        ({"shared_prefix": 1.5}, "shared_prefix=1.5"),
    ],
)
def test_a_workload_that_cannot_be_drawn_is_refused_by_name(fields: dict[str, object], name: str) -> None:
    with pytest.raises(InvalidConfig, match=name):
        WorkloadSpec(**fields)  # type: ignore[arg-type]


def test_a_request_beyond_the_engine_is_named_with_what_can_be_done() -> None:
    workload = Workload(WorkloadSpec(), [Job([1] * 10, 5), Job([1] * 90, 20)])
    workload.check_fits(110)
    with pytest.raises(InvalidConfig, match=r"request 1 .* takes 110 tokens, .* holds 109 .*--scale-lengths"):
        workload.check_fits(109)


def test_what_runs_is_said_in_one_line() -> None:
    assert WorkloadSpec().describe().startswith("the reference workload: 256 requests, 100 to 1024 prompt")
    trace = WorkloadSpec(trace=Path("a/b.csv"), limit=5, scale=0.5).describe()
    assert trace == "the first 5 requests of b.csv, lengths x 0.5"
