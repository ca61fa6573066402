"""The rows of a fleet: states, rates, words."""

from __future__ import annotations

from typing import Any

import pytest

from nanolens.inspector.filters import RowFilter
from nanolens.inspector.fleet_rows import (
    FIELDS,
    NS,
    SILENT_NS,
    Fleet,
    FleetRow,
    Sample,
    fleet_json,
    fleet_row,
    fleet_table,
    fleet_text,
    fleet_words,
)

REPORT: dict[str, Any] = {
    "id": "r1", "run": "run", "waiting": 7, "running": 2, "free_blocks": 5, "num_blocks": 9, "queue_age_s": 1.5,
    "trouble": "", "queried_tokens": 8, "hit_tokens": 4,
}  # fmt: skip


def sample(t_s: float, tokens: int = 0, skew_ns: int | None = None, **more: Any) -> Sample:
    totals = {"generated_tokens": tokens, "preemptions": 3}
    counts = {"WAITING": 1, "PAUSED": 2}
    snapshot = {"model": "m", "counts": counts, "blocks": {"free": 4, "total": 9}, "totals": totals, **more}
    return Sample(round(t_s * NS), snapshot, skew_ns)


def test_a_replica_that_has_not_answered_shows_what_the_front_knows() -> None:
    row = fleet_row(REPORT, [], 0)
    assert (row.waiting, row.running, row.paused, row.free_blocks, row.preemptions) == (7, 2, None, 5, None)
    assert row.state == "silent" and row.sign_ns is None and row.queue_age_ns == 1_500_000_000


def test_its_own_answer_counts_more() -> None:
    row = fleet_row(REPORT, [sample(1)], 2 * NS)
    assert (row.waiting, row.running, row.paused, row.free_blocks, row.preemptions) == (1, 0, 2, 4, 3)
    assert row.sign_ns == NS and row.tokens_per_second is None


def test_a_rate_is_of_all_its_samples() -> None:
    assert fleet_row(REPORT, [sample(1, 100), sample(2, 150), sample(3, 300)], 3 * NS).tokens_per_second == 100


@pytest.mark.parametrize(
    ("change", "later_ns", "gone", "state"),
    [
        ({}, 0, False, "live"), ({"run": ""}, 0, False, "starting"), ({"trouble": "killed"}, 0, False, "dead"),
        ({}, SILENT_NS, False, "silent"), ({"trouble": "killed"}, 0, True, "gone"),
    ],
)  # fmt: skip
def test_states(change: dict[str, str], later_ns: int, gone: bool, state: str) -> None:
    assert fleet_row(REPORT | change, [sample(1)], NS + later_ns, gone).state == state


def test_the_last_skew_that_is_known_is_shown() -> None:
    assert fleet_row(REPORT, [sample(1, skew_ns=5), sample(2, skew_ns=7), sample(3)], 3 * NS).skew_ns == 7


def test_sums_leave_out_who_is_gone() -> None:
    rows = [fleet_row(REPORT, [], 0), fleet_row(REPORT | {"id": "r2"}, [], 0, gone=True)]
    words = fleet_words(Fleet("http://h:1", rows, {"load": 1, "prefix": 3}))
    assert words == (
        "1 replica (+1 gone), waiting 7, running 2, tokens/s 0, hit rate 50%, routed by prefix 75% load 25%"
    )


def test_what_a_terminal_would_act_on_is_not_printed() -> None:
    assert "\x1b" not in fleet_text(Fleet("u", [fleet_row(REPORT | {"id": "\x1b[31m"}, [], 0)], {}))


ANSWERED = fleet_row(REPORT, [sample(1, 100), sample(3, 300, 7_500_000)], 4 * NS)
LATE = fleet_row(REPORT | {"id": "r2", "run": "", "queried_tokens": 0, "trouble": "killed"}, [], 4 * NS)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("R2", ["r2"]), ("waiting>1", ["r2"]), ("waiting:1 running=0", ["r1"]), ("paused=2", ["r1"]),
        ("free_blocks<5", ["r1"]), ("num_blocks>8", ["r1", "r2"]), ("hit_rate:50%", ["r1"]), ("hit_rate>50", []),
        ("tokens_per_second>=100", ["r1"]), ("preemptions>0", ["r1"]), ("skew>7ms", ["r1"]), ("sign<2s", ["r1"]),
        ("waits>1s", ["r1", "r2"]), ("state:dead", ["r2"]), ("!state:dead", ["r1"]), ("model:M", ["r1"]),
        ("run=run", ["r1"]), ("trouble:kill", ["r2"]),
    ],
)  # fmt: skip
def test_a_filter_knows_every_column(text: str, found: list[str]) -> None:
    rows: RowFilter[FleetRow] = RowFilter(FIELDS, lambda row: row.replica)
    assert rows.take(text) == ""
    assert [row.replica for row in rows.kept([ANSWERED, LATE])] == found


def test_what_once_prints_is_what_json_says() -> None:
    fleet = Fleet("u", [ANSWERED, LATE], {})
    head, *printed = (line.split() for line in fleet_text(fleet).splitlines()[4:])
    told, late = fleet_json(fleet)["replicas"]
    assert head[-5:] == ["sign", "longest", "wait", "model", "run"]
    assert printed[0] == [
        told["id"], told["state"], str(told["waiting"]), str(told["running"]), str(told["paused"]),
        f"{told['free_blocks']}/{told['num_blocks']}", f"{told['hit_rate']:.0%}", f"{told['tokens_per_second']:.0f}",
        str(told["preemptions"]), f"{told['rank_skew_s'] * 1e3:.1f}ms", f"{told['last_sign_s']:.1f}s",
        f"{told['queue_age_s']:.1f}s", told["model"], told["run"],
    ]  # fmt: skip
    assert (told["hit_rate"], told["last_sign_s"], late["hit_rate"], late["last_sign_s"]) == (0.5, 1.0, None, None)
    assert fleet_table(fleet.rows).rows == [list(told.values()), list(late.values())]
