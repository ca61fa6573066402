"""What a snapshot shows of a keyframe: seconds, order, limits and what they left out, who holds which block."""

from __future__ import annotations

from typing import Any

from nanolens.server.snapshot_view import ViewLimits, snapshot_view
from nanolens.telemetry.events import EngineStarted, Keyframe, SequenceSnapshot

S = 1_000_000_000


def sequence(seq: int, status: str, **changes: Any) -> SequenceSnapshot:
    fields: dict[str, Any] = {
        "seq": seq, "request": f"r{seq}", "status": status, "phase": "decode", "reason": "admitted", "wait_reason": "",
        "residency": "device", "priority": 0, "arrived_t": 2 * S, "status_t": 5 * S, "num_prompt_tokens": 4,
        "num_output_tokens": 2, "num_computed_tokens": 5, "num_cached_tokens": 0, "prefill_target": 4,
        "max_tokens": 8, "num_preemptions": 0, "block_table": [],
    }  # fmt: skip
    return SequenceSnapshot(**(fields | changes))


def keyframe(*sequences: SequenceSnapshot, **changes: Any) -> Keyframe:
    started = EngineStarted(1 * S, "run", 1000 * S, 7, "0", "m", {}, 8, 4, 64, 32)
    fields: dict[str, Any] = {
        "t": 10 * S, "step": 3, "started": started, "sequences": list(sequences),
        "waiting": [seq.seq for seq in sequences if seq.status == "WAITING"],
        "running": [seq.seq for seq in sequences if seq.status == "RUNNING"],
        "cached_blocks": [], "cached_hashes": b"", "cached_by": [], "free_blocks": [], "totals": {},
    }  # fmt: skip
    return Keyframe(**(fields | changes))


def test_a_snapshot_gives_times_in_seconds() -> None:
    found = snapshot_view(keyframe(sequence(1, "RUNNING", first_token_t=4 * S)), ViewLimits())
    (seq,) = found["sequences"]
    assert (found["version"], found["t"], found["uptime_s"]) == (1, 1010.0, 9.0)
    assert (seq["age_s"], seq["in_status_s"], seq["since_first_token_s"]) == (8.0, 5.0, 6.0)
    assert seq["since_last_token_s"] is None and seq["wait_reason"] is None


def test_a_snapshot_shows_running_then_waiting_in_queue_order_then_the_longest_paused() -> None:
    sequences = [sequence(5, "PAUSED", status_t=4 * S), sequence(4, "PAUSED", status_t=6 * S), sequence(3, "WAITING"),
                 sequence(2, "WAITING"), sequence(1, "RUNNING")]  # fmt: skip
    found = snapshot_view(keyframe(*sequences), ViewLimits())
    assert [seq["seq"] for seq in found["sequences"]] == [1, 3, 2, 5, 4]
    assert found["counts"] == {"RUNNING": 1, "WAITING": 2, "PAUSED": 2}


def test_a_snapshot_says_what_its_limits_left_out() -> None:
    sequences = [sequence(i, "RUNNING", block_table=[0, 1, 2, 3]) for i in range(3)] + [sequence(9, "WAITING")]
    found = snapshot_view(keyframe(*sequences), ViewLimits(max_sequences=2, max_blocks=3))
    assert len(found["sequences"]) == len(found["running"]) == 2 and len(found["waiting"]) == 1
    assert found["omitted"] == {"sequences": 2, "waiting": 0, "running": 1, "blocks": 5}
    assert found["limits"] == {"max_sequences": 2, "max_blocks": 3}
    assert [(seq["block_table"], seq["num_blocks"]) for seq in found["sequences"]] == [([0, 1, 2], 4)] * 2


def test_a_snapshot_counts_who_holds_each_block() -> None:
    sequences = [sequence(1, "RUNNING", block_table=[0, 2]), sequence(2, "PAUSED", block_table=[0, -1, 5])]
    found = snapshot_view(keyframe(*sequences, free_blocks=[1, 3], cached_blocks=[5, 0, 1]), ViewLimits())["blocks"]
    assert found["references"] == [2, 0, 1, 0, 0, 1, 0, 0]
    assert (found["held"], found["shared"], found["free"], found["total"]) == (3, 1, 2, 8)
    assert (found["cached"], found["cached_blocks"]) == (3, [0, 1, 5])
