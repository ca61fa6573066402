"""Parts of a fleet that need no Ray: the fold of a journal, prompt hashes, joined scrapes, paths, scaling, settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from nanolens.engine.block_key import BLOCK_KEY, take_block_key
from nanolens.engine.llm import LLM
from nanolens.engine.sampling_params import SamplingParams
from nanolens.errors import InvalidConfig
from nanolens.models.dummy import ByteTokenizer
from nanolens.server.errors import ApiError
from nanolens.server.fleet_journal import MAX_CHANGES, CacheFold
from nanolens.server.fleet_messages import HttpCall, Report
from nanolens.server.fleet_metrics import RouterMetrics, join
from nanolens.server.fleet_paths import is_own, split_replica
from nanolens.server.fleet_prefixes import MAX_BLOCKS, Asked, PromptHashes
from nanolens.server.fleet_scaling import ByQueueAge, wanted_replicas
from nanolens.server.fleet_view import FleetView
from nanolens.server.settings import load_settings
from nanolens.telemetry.events import BlocksCached, JournalDropped, StatusChanged
from nanolens.telemetry.reader import JournalReader
from nanolens.telemetry.state import EngineState

KEY = bytes(range(32))
PROMPT = "a prompt that fills several blocks of four"


def run_journal(monkeypatch: pytest.MonkeyPatch, path: Path, num_blocks: int = 64, prompts: int = 1) -> CacheFold:
    """The fold of a real run, in which some prompts were computed under KEY."""
    monkeypatch.setenv(BLOCK_KEY, KEY.hex())
    with LLM(
        "dummy:llama-tiny", num_blocks=num_blocks, block_size=4, device="cpu", dtype="float32", journal=path, seed=0
    ) as llm:
        for number in range(prompts):
            llm.generate([PROMPT + str(number) * 40 * (number > 0)], SamplingParams(max_tokens=2, temperature=0))
    return fold_of(path)


def fold_of(path: Path) -> CacheFold:
    fold = CacheFold()
    for frame in JournalReader(path).frames():
        for event in frame.events:
            fold.apply(event)
    return fold


def hashes_of(report: Report) -> set[bytes]:
    return {report.added[at : at + 8] for at in range(0, len(report.added), 8)}


def hasher() -> PromptHashes:
    return PromptHashes(ByteTokenizer(264), 4, KEY)


def test_the_hashes_of_a_prompt_are_those_of_the_engine_that_cached_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fold = run_journal(monkeypatch, tmp_path)
    body = json.dumps({"prompt": PROMPT}).encode()
    mine = hasher().read("/v1/completions", body).hashes
    assert len(mine) > 5 and set(mine) <= hashes_of(fold.report("a", 0))
    other = PromptHashes(ByteTokenizer(264), 4, bytes(32)).read("/v1/completions", body).hashes
    assert not set(other) & hashes_of(fold.report("a", 0))


def test_what_is_evicted_leaves_the_fold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fold = run_journal(monkeypatch, tmp_path, num_blocks=32, prompts=6)
    first = set(hasher().read("/v1/completions", json.dumps({"prompt": PROMPT + "1" * 40}).encode()).hashes)
    last = set(hasher().read("/v1/completions", json.dumps({"prompt": PROMPT + "5" * 40}).encode()).hashes)
    held = hashes_of(fold.report("a", 0))
    assert len(held) <= 32 and last <= held and not first <= held


def test_hits_are_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report = run_journal(monkeypatch, tmp_path, prompts=3).report("a", 0)
    assert 0 < report.hit_tokens < report.queried_tokens


def test_changes_since_a_version_are_told_alone() -> None:
    fold = CacheFold()
    fold.apply(BlocksCached(1, 1, 0, [1, 2], b"A" * 8 + b"B" * 8))
    first = fold.report("a", 0)
    assert first.is_whole and hashes_of(first) == {b"A" * 8, b"B" * 8}
    fold.apply(BlocksCached(1, 1, 0, [3], b"C" * 8))
    news = fold.report("a", first.version)
    assert not news.is_whole and hashes_of(news) == {b"C" * 8}
    assert fold.report("a", news.version).added == b""


def test_who_has_missed_too_many_changes_gets_the_whole_cache() -> None:
    fold = CacheFold()
    fold.apply(BlocksCached(1, 1, 0, [0], b"A" * 8))
    seen = fold.report("a", 0).version
    for number in range(MAX_CHANGES + 1):
        fold.apply(BlocksCached(1, 1, 0, [1 + number], number.to_bytes(8, "big")))
    assert fold.report("a", seen).is_whole
    assert not fold.report("a", seen + 1).is_whole


def test_the_longest_wait_is_the_age_of_the_queue() -> None:
    now = [0]
    fold = CacheFold(clock=lambda: now[0])
    fold.apply(StatusChanged(1_000_000_000, 0, 1, "", "WAITING", "arrived"))
    fold.apply(StatusChanged(2_000_000_000, 0, 2, "", "WAITING", "arrived"))
    now[0] = 4_000_000_000
    assert fold.report("a", 0).queue_age_s == 3.0 and fold.report("a", 0).waiting == 2
    fold.apply(StatusChanged(4_000_000_000, 1, 1, "WAITING", "RUNNING", "admitted"))
    assert fold.report("a", 0).queue_age_s == 2.0
    fold.apply(StatusChanged(4_000_000_000, 1, 2, "WAITING", "FINISHED", "aborted"))
    assert fold.report("a", 0).queue_age_s == 0.0


def test_after_lost_events_the_next_keyframe_is_the_truth(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    truth = hashes_of(run_journal(monkeypatch, tmp_path).report("a", 0))
    state = EngineState()
    for frame in JournalReader(tmp_path).frames():
        for event in frame.events:
            state.apply(event)
    fold = CacheFold()
    fold.apply(state.to_keyframe())
    fold.apply(BlocksCached(1, 1, 0, [60], b"X" * 8))
    fold.apply(state.to_keyframe())  # one of those that are written every few seconds: it is known already
    seen = fold.report("a", 0)
    assert hashes_of(seen) == truth | {b"X" * 8}
    fold.apply(JournalDropped(1, 1, 1, "disk full"))
    fold.apply(state.to_keyframe())
    after = fold.report("a", seen.version)
    assert after.is_whole and hashes_of(after) == truth


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"prompt": 5}', b'{"messages": []}', b'{"prompt": [99999999999]}', b'"x"']
)
def test_a_body_that_can_not_be_read_has_no_hashes(body: bytes) -> None:
    assert hasher().read("/v1/completions", body) == Asked()
    assert hasher().read("/v1/chat/completions", body) == Asked()


def test_a_giant_prompt_is_hashed_in_part() -> None:
    text = "x" * 1_000_000
    whole = hasher().read("/v1/completions", json.dumps({"prompt": text}).encode()).hashes
    short = hasher().read("/v1/completions", json.dumps({"prompt": text[:400]}).encode()).hashes
    assert len(whole) == MAX_BLOCKS and whole[: len(short)] == short


def test_a_block_key_that_is_none_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BLOCK_KEY, "secret-nonsense")
    with pytest.raises(InvalidConfig, match=BLOCK_KEY) as caught:
        take_block_key()
    assert "secret-nonsense" not in str(caught.value)


def test_a_block_key_is_taken_out_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BLOCK_KEY, KEY.hex())
    assert take_block_key() == KEY
    assert take_block_key() != KEY


SCRAPE = """\
# HELP one_total How "many".
# TYPE one_total counter
one_total 3.0
# HELP two Some.
# TYPE two gauge
two{kind="a,b"} 1.0
two{} 2.0
"""


def test_scrapes_are_joined_family_by_family_with_the_replica_on_every_sample() -> None:
    joined = join({"r1": SCRAPE, 'r"2': SCRAPE})
    families = {family.name: family for family in parse_text(joined)}
    assert [sample.labels["replica"] for sample in families["one"].samples] == ["r1", 'r"2']
    assert sum("kind" in sample.labels for sample in families["two"].samples) == 2
    assert joined.count("# TYPE one_total counter") == 1


def test_the_routers_own_metrics_end_a_scrape_of_either_format() -> None:
    view = FleetView()
    view.update(["r1"])
    metrics = RouterMetrics(view)
    metrics.routed["r1", "prefix"] += 2
    text = metrics.joined({"r1": SCRAPE.encode()}, False).decode()
    assert 'nanolens_router_requests_total{reason="prefix",replica="r1"} 2.0' in text
    open_scrape = SCRAPE.replace("one_total counter", "one counter").replace("HELP one_total", "HELP one") + "# EOF\n"
    text = metrics.joined({"r1": open_scrape.encode()}, True).decode()
    assert {"one", "two", "nanolens_router_requests"} <= {family.name for family in parse_openmetrics(text)}


def test_a_path_may_name_a_replica() -> None:
    assert split_replica("/replicas/abc/debug/snapshot") == ("abc", "/debug/snapshot")
    assert split_replica("/replicas/abc") == ("", "/replicas/abc")
    assert split_replica("/v1/models") == ("", "/v1/models")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize("path", ["/health", "/ready", "/version", "/metrics", "/debug/fleet"])
def test_what_the_front_answers_itself_is_asked_with_the_methods_of_one_server(method: str, path: str) -> None:
    assert is_own("GET", path) and not is_own(method, "/v1/models")
    with pytest.raises(ApiError) as caught:
        is_own(method, path)
    assert (caught.value.status, caught.value.code) == (405, "method_not_allowed")


@pytest.mark.parametrize(
    ("now", "ages", "requests", "wanted"),
    [
        (2, [0.5, 0.5], 20, 2),  # nobody waits too long, and someone waits
        (2, [3.0, 2.0], 20, 3),
        (2, [90.0, 90.0], 20, 4),  # at most twice as many
        (3, [0.0, 0.0, 0.0], 16, 2),  # those that are left are half full
        (3, [0.0, 0.0, 0.0], 17, 3),
        (1, [0.0], 0, 1),
        (2, [], 0, 1),
    ],
)
def test_replicas_follow_the_age_of_their_queues(now: int, ages: list[float], requests: int, wanted: int) -> None:
    assert wanted_replicas(now, ages, requests, limit_s=2.0, max_num_seqs=16) == wanted


def test_the_scaling_policy_reads_what_replicas_say() -> None:
    class Context:
        target_num_replicas = 1
        aggregated_metrics: Mapping[str, Mapping[Any, float]] | None = {"queue_age_s": {"r": 5.0}}
        total_num_requests = 3.0

    assert ByQueueAge(2.0, 16)(Context())[0] == 2


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"max_replicas": 2}, "give replicas"),
        ({"replicas": 3, "max_replicas": 2}, "max_replicas=2"),
        ({"replicas": 0}, "replicas=0"),
        ({"replicas": 2, "metrics_port": 9000}, "metrics_port=9000"),
        ({"replicas": 2, "recording": False}, "recording=False"),
    ],
)
def test_settings_that_can_not_work_with_replicas_are_refused(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidConfig, match=words):
        load_settings(flags, environment={})


def test_a_replica_always_keeps_a_journal() -> None:
    settings = load_settings({"replicas": 2, "metrics": False}, environment={})
    assert settings.engine.exports


def test_a_call_that_is_made_again_has_no_route_yet() -> None:
    call = HttpCall("POST", "/v1/completions", body=b"x", hashes=(b"h",))
    call.route.replica = "a"
    again = call.again(frozenset("a"))
    assert (again.route.replica, again.avoid, again.body, again.hashes) == ("", frozenset("a"), b"x", (b"h",))
