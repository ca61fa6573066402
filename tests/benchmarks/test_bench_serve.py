"""`nano-bench serve` against a small server that says what it is told to: figures, kinds of errors, and its check."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest

from fake_openai import (
    DONE,
    END,
    STREAM_HEAD,
    Body,
    FakeOpenAI,
    answer_text,
    chunk,
    event,
    good,
    piece,
    refusal,
    serving,
    usage,
    whole,
)
from nanolens.benchmarks.cli import main
from nanolens.benchmarks.serve_check import check_streams, differing
from nanolens.benchmarks.serve_figures import Goals, figures
from nanolens.benchmarks.serve_http import Target
from nanolens.benchmarks.serve_load import LEFT, Answer, Client, LoadResult, send_all
from nanolens.benchmarks.serve_requests import COMPLETIONS, Ask, Behaviour, Pace, Prompt, Shape, asks

SMALL = ("--num-requests", "12", "--input-len", "4:9", "--output-len", "3:6")
VLLM_NAMES = {
    "date", "endpoint_type", "model_id", "tokenizer_id", "num_prompts", "request_rate", "burstiness", "max_concurrency",
    "duration", "completed", "total_input_tokens", "total_output_tokens", "request_throughput", "request_goodput",
    "output_throughput", "total_token_throughput",
    *(f"{part}_{name}_ms" for name in ("ttft", "tpot", "itl", "e2el") for part in ("mean", "median", "std", "p99")),
}  # fmt: skip


def bench(fake: FakeOpenAI, tmp_path: Path, *flags: str, status: int = 0) -> dict:
    path = tmp_path / "figures.json"
    assert main(["serve", fake.url, *flags, "--json", str(path)]) == status
    return json.loads(path.read_text())


def answer(index: int = 0, key: int | None = 0, **fields: object) -> Answer:
    """A whole answer of four tokens: sent at 0, text at 10, 20, 40 and 50 ms."""
    text = str(fields.pop("text", "abcd"))
    ask = Ask(index, 0.0, COMPLETIONS, b"", key, 4)
    made = {
        "request_id": f"r{index}", "sent_t": 0, "end_t": 60_000_000, "status": 200,
        "times": [10_000_000, 20_000_000, 40_000_000, 50_000_000], "last_t": 50_000_000, "pieces": list(text),
        "finish_reason": "length", "num_prompt_tokens": 7, "num_output_tokens": 4, "outcome": "", "message": "",
        "ids": frozenset({f"cmpl-{index}"}),
    } | fields  # fmt: skip
    return Answer(ask, **made)  # type: ignore[arg-type]


def sent(script: Callable[[Body], AsyncIterator[bytes]], count: int = 1, **client: object) -> LoadResult:
    """What came of requests for three tokens each."""
    shape = Shape("fake")
    with serving(script) as fake:
        many = asks([Prompt([5, 6], 3)], Pace(), shape, Behaviour(), 0, count)
        return asyncio.run(send_all(Client(Target.parse(fake.url), **client), many))  # type: ignore[arg-type]


def test_latencies_are_those_of_the_pieces() -> None:
    one = answer()
    assert (one.ttft_ms, one.e2e_ms, one.itls_ms) == (10.0, 50.0, [10.0, 20.0, 10.0])
    assert one.tpot_ms == pytest.approx(40 / 3)
    assert answer(num_output_tokens=1).tpot_ms is None


def test_figures_are_those_of_whole_answers() -> None:
    slow = answer(1, times=[90_000_000], last_t=90_000_000, num_output_tokens=4)
    left = answer(2, outcome=LEFT)
    broken = answer(3, outcome="timeout", message="no end within 1 s")
    found = figures(LoadResult([answer(), slow, left, broken], 2.0, 4), Goals())
    assert (found["completed"], found["failed"], found["total_output_tokens"]) == (2, 1, 8)
    assert (found["request_throughput"], found["output_throughput"]) == (1.0, 4.0)
    assert found["total_token_throughput"] == (14 + 8) / 2
    assert (found["mean_ttft_ms"], found["median_ttft_ms"], found["std_ttft_ms"]) == (50.0, 10.0, 40.0)
    assert found["p99_ttft_ms"] == 90.0
    assert found["errors_by_kind"] == {"timeout": 1}
    assert found["outcomes"] == {"whole": 2, "left": 1, "timeout": 1}
    assert found["error_examples"] == {"timeout": "r3: no end within 1 s"}


def test_goodput_counts_requests_that_meet_every_goal() -> None:
    late = answer(1, times=[80_000_000], last_t=99_000_000)
    result = LoadResult([answer(), late, answer(2, outcome="timeout")], 2.0, 3)
    assert figures(result, Goals.parse(["ttft:50", "e2el:60"]))["request_goodput"] == 0.5
    assert figures(result, Goals.parse(["ttft:9"]))["request_goodput"] == 0.0
    assert figures(result, Goals())["request_goodput"] is None


def test_slow_readers_count_in_throughput_and_not_in_latencies() -> None:
    ask = Ask(1, 0.0, COMPLETIONS, b"", 0, 4, is_slow=True)
    slow = Answer(**{**{name: getattr(answer(1), name) for name in Answer.__dataclass_fields__}, "ask": ask})
    found = figures(LoadResult([slow], 1.0, 1), Goals())
    assert (found["completed"], found["mean_ttft_ms"]) == (1, None)


def test_the_json_file_has_the_names_of_vllms_benchmark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as fake:
        record = bench(fake, tmp_path, *SMALL, "--goodput", "ttft:10000")
    assert record.keys() >= VLLM_NAMES
    assert (record["completed"], record["failed"], record["num_prompts"]) == (12, 0, 12)
    assert record["request_goodput"] == record["request_throughput"] > 0
    out = capsys.readouterr().out
    for words in ("12 requests of 12 prompts", "time to first token", "output tokens/s", "good requests/s", "12 whole"):
        assert words in out


def test_tokens_are_counted_as_the_server_counts_them(tmp_path: Path) -> None:
    with serving() as fake:
        record = bench(fake, tmp_path, *SMALL)
    bodies = [body for body in fake.requests if body is not None]
    assert record["total_input_tokens"] == sum(len(body["prompt"]) for body in bodies)
    assert record["total_output_tokens"] == sum(body["max_tokens"] for body in bodies)


def test_at_most_so_many_are_open(tmp_path: Path) -> None:
    with serving(partial(good, pause_s=0.002)) as fake:
        record = bench(fake, tmp_path, *SMALL, "--max-concurrency", "3")
    assert (record["max_concurrent_requests"], record["completed"]) == (3, 12)


def test_a_load_by_time_ends_and_its_answers_are_whole(tmp_path: Path) -> None:
    flags = ("--input-len", "4:9", "--output-len", "3:6", "--duration", "0.3", "--max-concurrency", "4")
    with serving(partial(good, pause_s=0.002)) as fake:
        record = bench(fake, tmp_path, *flags, "--distinct", "5")
    assert record["completed"] == len(fake.requests) > 0
    assert len({str(body and body["prompt"]) for body in fake.requests}) <= 5


def test_real_text_goes_to_the_chat_endpoint(tmp_path: Path) -> None:
    with serving() as fake:
        record = bench(fake, tmp_path, "--text", "--output-len", "3")
    assert (record["endpoint_type"], record["completed"]) == ("openai-chat", 16)
    assert all(body is not None and body["messages"][0]["role"] == "user" for body in fake.requests)


def test_the_servers_vocabulary_bounds_the_ids(tmp_path: Path) -> None:
    with serving() as fake:
        fake.gets["/v1/models"] = whole(200, {"data": [{"id": "fake", "vocab_size": 50}]})
        bench(fake, tmp_path, *SMALL)
    assert max(max(body["prompt"]) for body in fake.requests if body is not None) < 50


def test_an_early_close_is_seen_by_the_server_and_is_no_error(tmp_path: Path) -> None:
    with serving(partial(good, pause_s=0.002)) as fake:
        record = bench(fake, tmp_path, *SMALL, "--output-len", "50", "--early-close", "1")
    assert record["outcomes"] == {"left": 12}
    assert fake.left == 12


def test_bad_requests_that_are_refused_are_no_errors(tmp_path: Path) -> None:
    with serving() as fake:
        record = bench(fake, tmp_path, "--num-requests", "14", "--bad-requests", "1")
    assert record["outcomes"] == {"refused": 14}


def test_a_bad_request_that_is_accepted_is_an_error(tmp_path: Path) -> None:
    async def anything(body: Body) -> AsyncIterator[bytes]:
        yield STREAM_HEAD + chunk(piece("a", "x", "stop") + DONE) + END

    with serving(anything) as fake:
        record = bench(fake, tmp_path, "--num-requests", "12", "--bad-requests", "1", status=1)
    assert record["errors_by_kind"] == {"bad_request_accepted": 12}


def test_slow_readers_get_whole_answers(tmp_path: Path) -> None:
    with serving() as fake:
        record = bench(fake, tmp_path, *SMALL, "--slow-readers", "1", "--slow-pause", "0.01")
    assert (record["completed"], record["mean_itl_ms"]) == (12, None)


def streamed(*parts: bytes) -> Callable[[Body], AsyncIterator[bytes]]:
    async def script(body: Body) -> AsyncIterator[bytes]:
        yield STREAM_HEAD
        for part in parts:
            yield part

    return script


def answered(response: bytes) -> Callable[[Body], AsyncIterator[bytes]]:
    async def script(body: Body) -> AsyncIterator[bytes]:
        yield response

    return script


@pytest.mark.parametrize(
    ("script", "kind", "message"),
    [
        (answered(refusal(429, "full")), "http_429", "full"),
        (answered(refusal(503, "stopping")), "http_503", "stopping"),
        (answered(whole(500, b"oops", "text/plain")), "http_500", "status 500: b'oops'"),
        (streamed(chunk(piece("a", "x"))), "disconnected", "closed after status 200"),
        (answered(b""), "disconnected", "closed before a response"),
        (streamed(chunk(event({"error": {"message": "the engine died"}}) + DONE) + END), "error_event", "engine died"),
        (streamed(chunk(piece("a", "x", "stop")) + END), "malformed", "without [DONE]"),
        (streamed(chunk(piece("a", "x", "abort") + DONE) + END), "finish_abort", "'abort'"),
        (streamed(chunk(piece("a", "x", "stop") + usage("a", 2, 1) + DONE) + END), "short", "1 of 3 tokens"),
        (answered(b"hello\r\n\r\n"), "malformed", "no HTTP"),
    ],
)
def test_errors_have_their_kinds(script: Callable[[Body], AsyncIterator[bytes]], kind: str, message: str) -> None:
    (one,) = sent(script).answers
    assert (one.outcome, one.is_error) == (kind, True)
    assert message in one.message


def test_an_answer_that_takes_too_long_is_a_timeout() -> None:
    (one,) = sent(partial(good, pause_s=5.0), timeout_s=0.05).answers
    assert (one.outcome, one.message) == ("timeout", "no end within 0.05 s")


def test_a_server_that_is_gone_is_a_connect_error() -> None:
    with serving() as fake:
        target = Target.parse(fake.url)
    many = asks([Prompt([5], 3)], Pace(), Shape("fake"), Behaviour(), 0, 2)
    result = asyncio.run(send_all(Client(target), many))
    assert [one.outcome for one in result.answers] == ["connect", "connect"]


def test_no_server_ends_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as fake:
        url = fake.url
    with pytest.raises(SystemExit) as ended:
        main(["serve", url])
    assert ended.value.code == 2
    assert "no server with OpenAI's API" in capsys.readouterr().err


def test_equal_prompts_must_have_equal_texts() -> None:
    cut = answer(2, outcome=LEFT, text="ab")
    assert differing([answer(), answer(1), cut, answer(3, key=1, text="other")]) == ([], 2)
    wrong, _ = differing([answer(), answer(1, text="abXd"), answer(2, outcome=LEFT, text="b")])
    assert wrong == ["r1 from character 2 against r0", "r2 from character 0 against r0"]


def test_an_id_in_two_streams_is_found() -> None:
    findings = {each.name: each for each in check_streams([answer(), answer(1, ids=frozenset({"cmpl-0"}))], True)}
    assert findings["no id in two streams"].holds is False
    assert "cmpl-0 in r0 and r1" in findings["no id in two streams"].detail


def test_mixed_streams_fail_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    count = 0

    async def mixing(body: Body) -> AsyncIterator[bytes]:
        nonlocal count
        count += 1
        name, other = f"c{count}", count % 5 == 0
        yield STREAM_HEAD + chunk(piece(name, answer_text(body, 0) + ("?" if other else ""), "length"))
        yield chunk(usage(name, 1, body["max_tokens"]) + DONE) + END

    with serving(mixing) as fake:
        record = bench(fake, tmp_path, "--num-requests", "40", "--distinct", "2", "--check", status=1)
    assert record["failed"] == 0
    assert "FAILED      equal prompts, equal texts" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("gauges", "snapshot", "failed"),
    [
        ('nanolens_sequences{status="RUNNING"} 0.0\nnanolens_kv_blocks{state="used"} 0.0\n', {"sequences": []}, set()),
        ('nanolens_sequences{status="RUNNING"} 2.0\n', {"sequences": []}, {"gauges are back at zero"}),
        ('nanolens_kv_blocks{state="used"} 3.0\n', {"sequences": []}, {"gauges are back at zero"}),
        ("", {"sequences": []}, {"gauges are back at zero"}),
        (
            'nanolens_sequences{status="RUNNING"} 0\nnanolens_requests_arrived_total 3.0\n'
            'nanolens_requests_total{finish_reason="stop"} 2.0\n',
            {"sequences": [{"seq": 1}]},
            {"every request that arrived has ended", "no sequence, no block held"},
        ),
    ],
)
def test_the_check_finds_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gauges: str, snapshot: dict, failed: set[str]
) -> None:
    monkeypatch.setattr("nanolens.benchmarks.serve_check.check_server.__defaults__", (0.0,))
    with serving() as fake:
        fake.gets["/metrics"] = whole(200, gauges.encode(), "text/plain")
        fake.gets["/debug/snapshot"] = whole(200, snapshot)
        record = bench(fake, tmp_path, *SMALL, "--check", status=int(bool(failed)))
    assert {each["name"] for each in record["check"] if each["holds"] is False} == failed


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--text", "--trace", "x.csv"), "--text and --trace both name prompts"),
        (("--limit", "3"), "--limit counts rows of a trace"),
        (("--duration", "3", "--num-requests", "3"), "--duration and --num-requests both end the load"),
        (("--duration", "3"), "--duration needs --request-rate or --max-concurrency"),
        (("--early-close", "2"), "early_close=2.0: must be from 0 to 1"),
        (("--early-close", "0.1", "--no-stream"), "--early-close takes streams"),
        (("--goodput", "itl:3"), "goodput='itl:3': must be ttft:MS"),
        (("--goodput", "ttft:-3"), "goodput='ttft:-3'"),
        (("--request-rate", "0"), "rate=0.0: must be above 0"),
        (("--max-concurrency", "0"), "max_concurrency=0: must be at least 1"),
        (("--timeout", "0"), "timeout=0.0: must be above 0"),
        (("--temperature", "-1"), "temperature=-1.0"),
        (("--json", "no/such/place.json"), "its directory does not exist"),
        (("--trace", "nothing.csv"), "nothing.csv: can't be read"),
    ],
)
def test_bad_flags_end_with_status_2(capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], message: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "http://127.0.0.1:9", *flags])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
