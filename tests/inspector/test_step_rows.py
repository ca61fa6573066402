"""The steps: where their time went, what they computed, for whom."""

from __future__ import annotations

from made_views import event_rows, keyframe, made_view, sequence, step_row, waiting
from nanolens.inspector.step_rows import bar, decoding, members, step_lines
from nanolens.inspector.view import StepRow
from nanolens.telemetry.events import SequencePreempted, StatusChanged, StepFinished

DONE = StepFinished(
    900, 6, plan_ns=10, launch_ns=20, device_ns=60, collect_ns=50, num_tokens=9, num_sampled=5, wasted=[4], graph=True,
    padding=2, wait_ns=40,
)  # fmt: skip


def done(step: int, **fields: int) -> StepRow:
    return step_row(step, [(3, 0, 4)], decodes=5, finished=DONE, **fields)


def test_a_step_tells_its_parts_and_its_composition() -> None:
    (line,) = step_lines(made_view(keyframe([]), [done(6, interval_ns=110, gap_ns=10, preemptions=1)]))
    assert (line.plan_ns, line.launch_ns, line.device_ns, line.read_ns, line.gap_ns) == (10, 20, 60, 10, 10)
    assert (line.decodes, line.chunks, line.prefill_tokens, line.tokens) == (5, 1, 4, 9)
    assert (line.sampled, line.wasted, line.preemptions, line.graph, line.padding) == (4, 1, 1, True, 2)
    assert line.total_ns == 110 and line.state == "done"


def test_a_step_that_was_never_read_failed_once_a_later_one_was_read() -> None:
    lines = step_lines(made_view(keyframe([]), [step_row(5, decodes=1), done(6), step_row(7, decodes=1)]))
    assert [(line.step, line.state) for line in lines] == [(5, "failed"), (6, "done"), (7, "in flight")]


def test_who_decodes_is_known_for_the_last_step_alone() -> None:
    state = keyframe(
        [sequence(1), sequence(2), sequence(3), sequence(4, phase="prefill"), sequence(5, status="PAUSED")], step=7
    )
    assert decoding(step_row(7, [(3, 4, 4)], decodes=1, idle=[2]), state) == [1]
    assert decoding(step_row(6, decodes=3), state) is None
    assert decoding(step_row(6, [(3, 0, 4)]), state) == []


def test_members_name_chunks_decodes_idle_and_wasted() -> None:
    row = StepRow(step_row(7, [(3, 4, 4)], decodes=2, idle=[8]).planned, DONE)
    view = made_view(keyframe([sequence(1), sequence(2), waiting(9, "no_blocks")], step=7), [row])
    assert members(row, view) == ["prefill: seq 3 4+4", "decode 2: seqs 1 2", "idle: seq 8", "thrown away: seq 4"]


def test_members_of_an_earlier_step_say_how_to_see_who_decoded() -> None:
    row = step_row(6, decodes=2)
    assert members(row, made_view(keyframe([sequence(1)], step=7), [row])) == [
        "decode 2: go to the step (enter) to see which"
    ]


def test_members_tell_who_was_admitted_and_preempted_in_the_step() -> None:
    events = event_rows([
        StatusChanged(1, 6, 2, "WAITING", "RUNNING", "admitted"),
        StatusChanged(1, 7, 3, "WAITING", "RUNNING", "admitted"),
        SequencePreempted(1, 7, 5, 3, "no_blocks", "recompute", 4, 16),
    ])  # fmt: skip
    row = step_row(7, [(3, 0, 4)])
    assert members(row, made_view(keyframe([]), [row], events)) == [
        "prefill: seq 3 0+4", "admitted: seq 3", "preempted: seq 5 for seq 3 (no_blocks)",
    ]  # fmt: skip


def test_long_lists_of_sequences_are_cut_with_a_count() -> None:
    row = step_row(7, [(seq, 0, 4) for seq in range(20)])
    (line,) = members(row, made_view(keyframe([]), [row]))
    assert line.startswith("prefill: seq 0 0+4, ") and line.endswith("seq 4 0+4 and 15 more")


def test_a_step_of_moves_computes_nothing() -> None:
    row = step_row(7, idle=[])
    assert members(row, made_view(keyframe([]), [row])) == ["0 sequences running, nothing computed: blocks move"]


def test_a_bar_is_as_long_as_its_part_of_the_longest_step() -> None:
    (line,) = step_lines(made_view(keyframe([]), [done(6, gap_ns=10)]))  # 10 + 20 + 60 + 10 + 10
    assert bar(line, 110, 11) == [("plan", 1), ("launch", 2), ("device", 6), ("read", 1), ("gap", 1)]
    assert bar(line, 220, 11) == [("launch", 2), ("device", 2), ("read", 1), ("gap", 1)]
    assert bar(line, 0, 11) == [] and bar(line, 110, 0) == []


def test_parts_too_short_for_a_character_add_up_instead_of_vanishing() -> None:
    (line,) = step_lines(made_view(keyframe([]), [done(6, gap_ns=10)]))
    assert sum(count for _, count in bar(line, 110, 4)) == 4
