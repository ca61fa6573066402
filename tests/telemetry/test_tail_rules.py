"""Which traces are kept."""

from __future__ import annotations

import random

import pytest

from fake_engine import FakeEngine
from nanolens.errors import InvalidConfig
from nanolens.telemetry.spans import SpanBuilder
from nanolens.telemetry.tail_rules import KEEP_ALL, Outcome, TailRules
from span_checks import roots, spans_of

PLAIN = Outcome(trace_id=1 << 55, request_s=1.0, ttft_s=0.2)  # in the middle of all traces


def outcome(**known: object) -> Outcome:
    return Outcome(**({"trace_id": 1 << 55, "request_s": 1.0, "ttft_s": 0.2} | known))  # type: ignore[arg-type]


def test_without_rules_everything_is_kept() -> None:
    assert TailRules.parse([]) == KEEP_ALL and KEEP_ALL.keeps(PLAIN)


@pytest.mark.parametrize(
    ("rule", "kept", "dropped"),
    [
        ("slow=2.5", {"request_s": 2.6}, {"request_s": 2.5}),
        ("slow=0", {"request_s": 0.1}, {"request_s": 0.0}),
        ("ttft=1", {"ttft_s": 1.1}, {"ttft_s": 1.0, "request_s": 9.0}),
        ("ttft=1", {"ttft_s": None, "request_s": 1.1}, {"ttft_s": None, "request_s": 0.9}),
        ("failed", {"failed": True}, {"aborted": True, "preempted": True}),
        ("aborted", {"aborted": True}, {"failed": True, "preempted": True}),
        ("preempted", {"preempted": True}, {"failed": True, "aborted": True}),
        ("parent", {"parent_sampled": True}, {"parent_sampled": None}),
        ("percent=51", {"trace_id": (7 << 64) | 1 << 55}, {"trace_id": (1 << 56) - 1}),
        (" percent=100 ", {"trace_id": (1 << 128) - 1}, None),
        ("percent=0", None, {"trace_id": 1 << 56}),
    ],
)
def test_each_rule(rule: str, kept: dict[str, object] | None, dropped: dict[str, object] | None) -> None:
    rules = TailRules.parse([rule])
    assert kept is None or rules.keeps(outcome(**kept))
    assert dropped is None or not rules.keeps(outcome(**dropped))


def test_one_rule_is_enough() -> None:
    rules = TailRules.parse(["slow=2", "failed", "percent=10"])
    assert rules == TailRules(slow_s=2.0, failed=True, percent=10.0)
    assert rules.keeps(outcome(failed=True)) and rules.keeps(outcome(request_s=3.0))
    assert not rules.keeps(PLAIN)


def test_a_share_of_the_traces_is_that_share() -> None:
    rng, rules = random.Random(0), TailRules.parse(["percent=10"])
    kept = sum(rules.keeps(outcome(trace_id=rng.getrandbits(128))) for _ in range(20_000))
    assert 1_800 < kept < 2_200


def test_a_smaller_share_is_part_of_a_larger() -> None:
    rng = random.Random(1)
    small, large = TailRules.parse(["percent=5"]), TailRules.parse(["percent=50"])
    for _ in range(2_000):
        one = outcome(trace_id=rng.getrandbits(128))
        assert large.keeps(one) or not small.keeps(one)


@pytest.mark.parametrize(
    ("keep", "dropped"), [([], True), (["failed"], True), (["unsampled"], False), (["unsampled", "failed"], False)]
)
def test_what_the_caller_did_not_sample(keep: list[str], dropped: bool) -> None:
    assert TailRules.parse(keep).drops_as_unsampled(outcome(parent_sampled=False, failed=True)) is dropped
    assert not TailRules.parse(keep).drops_as_unsampled(outcome(parent_sampled=None))
    assert not TailRules.parse(keep).drops_as_unsampled(outcome(parent_sampled=True))


@pytest.mark.parametrize(
    "texts",
    [
        ["slow"], ["slow="], ["slow=fast"], ["slow=-1"], ["slow=nan"], ["ttft=inf"], ["percent=101"], ["percent=-1"],
        ["failed=yes"], ["fialed"], [""], ["10"], ["slow=1", "slow=2"], ["failed", "failed"], ["slow_s=1"],
    ],
)  # fmt: skip
def test_what_is_no_rule_is_refused_by_name(texts: list[str]) -> None:
    with pytest.raises(InvalidConfig, match=r"^keep="):
        TailRules.parse(texts)


@pytest.fixture(scope="module")
def run() -> FakeEngine:
    """Requests 0 to 5: two that share too few blocks, one aborted, one failed, two plain ones."""
    engine = FakeEngine(num_blocks=8, max_num_seqs=2)
    engine.add([1] * 7, max_tokens=14)
    engine.add([2] * 7, max_tokens=14)
    engine.run()
    aborted = engine.add([3] * 4, max_tokens=9)
    engine.step()
    engine.abort(aborted)
    engine.runner.fail_rows = lambda plan: {3: "bad"}
    engine.add([4] * 4, max_tokens=3)
    engine.add([5] * 4, max_tokens=3)
    engine.add([6] * 4, max_tokens=3)
    engine.run()
    engine.core.close()
    return engine


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        (["aborted"], {"req-2"}),
        (["failed"], {"req-3"}),
        (["preempted"], {"req-0", "req-1"}),
        (["aborted", "failed"], {"req-2", "req-3"}),
        (["slow=100"], set()),
        (["slow=0"], {f"req-{i}" for i in range(6)}),
    ],
)
def test_the_builder_keeps_what_the_rules_say(run: FakeEngine, keep: list[str], kept: set[str]) -> None:
    builder = SpanBuilder(rules=TailRules.parse(keep))
    builder.apply_all(run.events)
    spans = builder.take()
    assert set(roots(spans)) == kept
    counts = builder.counts
    assert counts["kept"] == len(spans)
    assert counts["kept"] + counts["dropped_by_rules"] == counts["recorded"] == len(spans_of(run.events))
