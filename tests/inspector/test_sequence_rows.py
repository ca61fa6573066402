"""Rows of live sequences, out of views of a fake engine's run."""

from __future__ import annotations

from nanolens.inspector.sequence_rows import FIELDS, SequenceRow, sequence_rows, sequence_table
from nanolens.telemetry.events import StepFinished, StepPlanned
from views import fake_run, view_of_fake_run


def row_of(seq: int, frames: int | None = None) -> SequenceRow:
    return next(row for row in sequence_rows(view_of_fake_run(frames)) if row.seq == seq)


def test_each_live_sequence_has_its_row() -> None:
    view = view_of_fake_run()
    rows = sequence_rows(view)
    assert [row.seq for row in rows] == list(range(9))
    for row, seq in zip(rows, view.keyframe.sequences, strict=True):
        assert (row.request, row.state, row.phase) == (seq.request, seq.status, seq.phase)
        assert (row.prompt, row.cached, row.computed, row.output) == (
            seq.num_prompt_tokens, seq.num_cached_tokens, seq.num_computed_tokens, seq.num_output_tokens,
        )  # fmt: skip
        assert (row.priority, row.preemptions, row.residency) == (seq.priority, seq.num_preemptions, seq.residency)
        assert row.blocks == len(seq.block_table)
        assert row.age_ns == view.keyframe.t - seq.status_t


def test_the_reason_is_why_it_waits_or_why_it_changed() -> None:
    assert row_of(8).reason == "no_blocks"
    assert row_of(1).reason == "await_input"
    assert row_of(2).reason == "admitted"
    assert row_of(5).state == "WAITING" and row_of(5).reason == "head_of_line"


def test_blocks_in_the_swap_space_count() -> None:
    assert (row_of(5).blocks, row_of(5).residency) == (4, "host")
    assert (row_of(1).blocks, row_of(1).residency) == (4, "disk")
    assert (row_of(0).blocks, row_of(0).residency) == (0, "none")


def test_ttft_is_known_from_the_first_token_on() -> None:
    assert row_of(8).ttft_ns is None
    seq = view_of_fake_run().keyframe.sequences[7]
    assert row_of(7).ttft_ns == seq.first_token_t - seq.arrived_t > 0


def test_the_last_itl_is_what_the_events_say_at_every_frame() -> None:
    checked = 0
    for frames in range(1, len(fake_run()) + 1):
        tokens = token_times(frames)
        for row in sequence_rows(view_of_fake_run(frames)):
            if row.itl_ns is not None:
                assert row.itl_ns == tokens[row.seq][-1] - tokens[row.seq][-2]
                checked += 1
            elif row.state == "RUNNING":
                assert len(tokens.get(row.seq, [])) < 2
    assert checked > 40


def token_times(frames: int) -> dict[int, list[int]]:
    """When each sequence's tokens were read: its output counted before and after each step.finished."""
    found: dict[int, list[int]] = {}
    before: dict[int, int] = {}
    for count in range(1, frames + 1):
        finished = [event for event in fake_run()[count - 1] if isinstance(event, StepFinished)]
        for seq in view_of_fake_run(count).keyframe.sequences:
            if seq.num_output_tokens > before.get(seq.seq, 0):
                assert len(finished) == 1
                found.setdefault(seq.seq, []).append(finished[0].t)
            before[seq.seq] = seq.num_output_tokens
    return found


def test_an_export_has_seconds_and_names() -> None:
    table = sequence_table([row_of(8), row_of(7)])
    assert table.title == "sequences"
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert rows[1]["ttft_s"] == (row_of(7).ttft_ns or 0) / 1e9 > 0 and rows[0]["ttft_s"] is None
    assert rows[0]["request"] == "behind" and rows[0]["blocks"] == 0


def test_every_column_can_be_filtered_by() -> None:
    row = row_of(7)
    assert [field.value(row) for field in FIELDS.values()] == list(row)


def test_the_fake_run_has_steps_of_each_kind() -> None:
    planned = [event for frame in fake_run() for event in frame if isinstance(event, StepPlanned)]
    assert {event.kind for event in planned} == {"prefill", "decode", "mixed"}
