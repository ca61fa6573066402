"""The table of status changes, cell by cell."""

from __future__ import annotations

import itertools
import logging

import pytest

from fake_engine import Clock, FakeEngine
from nanolens.engine.sampling_params import SamplingParams
from nanolens.engine.sequence import TRANSITIONS, Sequence, SequenceStatus
from nanolens.errors import IllegalTransition
from nanolens.telemetry.events import AnyEvent, StatusChanged

# What users of the engine rely on, written out apart from the engine's own table.
EXPECTED = {
    (None, "WAITING"): {"arrived"},
    ("WAITING", "RUNNING"): {"admitted", "readmitted", "resumed"},
    ("WAITING", "PAUSED"): {"operator"},
    ("WAITING", "FINISHED"): {"aborted"},
    ("WAITING", "ERROR"): {"error"},
    ("RUNNING", "WAITING"): {"preempted"},
    ("RUNNING", "PAUSED"): {"prefill_complete", "stop", "length", "await_input", "operator", "breakpoint"},
    ("RUNNING", "FINISHED"): {"stop", "length", "aborted"},
    ("RUNNING", "ERROR"): {"error"},
    ("PAUSED", "RUNNING"): {"resumed"},
    ("PAUSED", "WAITING"): {"resumed"},
    ("PAUSED", "FINISHED"): {"delivered", "aborted", "expired"},
    ("PAUSED", "ERROR"): {"error"},
}
STATES = [status.value for status in SequenceStatus]
REASONS = sorted(set().union(*EXPECTED.values()))
CELLS = list(itertools.product([None, *STATES], STATES))


def sequence_in(status: str | None, events: list[AnyEvent]) -> Sequence:
    seq = Sequence(7, "r", [1, 2, 3], SamplingParams(), 0, 0, events.append, Clock(), 64)
    seq.status = SequenceStatus(status) if status else None
    return seq


def test_the_table_is_the_documented_one() -> None:
    table = {(old.value if old else None, new.value): set(reasons) for (old, new), reasons in TRANSITIONS.items()}
    assert table == EXPECTED


@pytest.mark.parametrize(("old", "new"), CELLS)
def test_a_cell_takes_its_reasons_and_no_other(old: str | None, new: str) -> None:
    for reason in [*REASONS, "", "because"]:
        events: list[AnyEvent] = []
        seq = sequence_in(old, events)
        seq.reason, seq.wait_reason, seq.status_t = "before", "no_blocks", 5
        if reason in EXPECTED.get((old, new), set()):
            seq.transition(SequenceStatus(new), reason, step=3)
            assert (seq.status, seq.reason, seq.wait_reason) == (SequenceStatus(new), reason, "")
            request = "r" if old is None else ""
            assert events == [StatusChanged(seq.status_t, 3, 7, old or "", new, reason, request)]
            assert seq.status_t > 5
        else:
            with pytest.raises(IllegalTransition, match=f"sequence 7: .*-> {new}"):
                seq.transition(SequenceStatus(new), reason)
            unchanged = SequenceStatus(old) if old else None
            assert (seq.status, seq.reason, seq.wait_reason, seq.status_t) == (unchanged, "before", "no_blocks", 5)
            assert events == []


def test_every_state_can_be_reached_and_only_the_final_ones_are_dead_ends() -> None:
    reached, frontier = set(), [None]
    while frontier:
        state = frontier.pop()
        for old, new in EXPECTED:
            if old == state and new not in reached:
                reached.add(new)
                frontier.append(new)
    assert reached == set(STATES)
    dead_ends = {state for state in STATES if not any(old == state for old, _ in EXPECTED)}
    assert dead_ends == {status.value for status in SequenceStatus if status.is_final} == {"FINISHED", "ERROR"}


def test_a_change_is_logged_with_its_fields_at_debug_only(caplog: pytest.LogCaptureFixture) -> None:
    engine = FakeEngine()
    with caplog.at_level(logging.INFO, logger="nanolens.sequence"):
        engine.add([1, 2, 3], 2)
        engine.run()
    assert not caplog.records
    with caplog.at_level(logging.DEBUG, logger="nanolens.sequence"):
        request = engine.add([4, 5, 6], 2)
        engine.run()
    changes = [(r.from_status, r.to_status, r.reason) for r in caplog.records]  # type: ignore[attr-defined]
    assert changes == [
        ("", "WAITING", "arrived"), ("WAITING", "RUNNING", "admitted"), ("RUNNING", "FINISHED", "length"),
    ]  # fmt: skip
    assert f"request={request}" in caplog.messages[0] and "to_status=WAITING" in caplog.messages[0]
