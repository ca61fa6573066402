"""The waiting queue: order, what each needs, who holds it, and why the first one waits."""

from __future__ import annotations

from made_views import NOW, SECOND, keyframe, made_view, sequence, step_row, waiting
from nanolens.inspector.queue_rows import HeadWait, head_wait, holders, queue_rows
from nanolens.inspector.view import View


def head_of(view: View) -> HeadWait:
    found = head_wait(view, queue_rows(view), holders(view))
    assert found is not None
    return found


def test_the_queue_is_in_the_order_of_the_keyframe() -> None:
    state = keyframe([waiting(3, "head_of_line"), waiting(5, "no_blocks")])
    state.waiting = [5, 3]
    assert [(row.place, row.seq, row.reason) for row in queue_rows(made_view(state))] == [
        (1, 5, "no_blocks"), (2, 3, "head_of_line"),
    ]  # fmt: skip


def test_tokens_still_to_compute_count_prompt_output_and_what_was_appended() -> None:
    seq = waiting(1, "no_blocks", num_prompt_tokens=10, num_output_tokens=3, num_appended_tokens=2)
    resumed = waiting(2, "no_blocks", [3, 4], num_prompt_tokens=8, num_output_tokens=1, num_computed_tokens=8)
    rows = queue_rows(made_view(keyframe([seq, resumed])))
    assert [row.to_compute for row in rows] == [15, 1]


def test_needed_blocks_have_room_for_the_next_token_and_leave_out_those_on_the_device() -> None:
    fresh = waiting(1, "no_blocks", num_prompt_tokens=8)  # 9 tokens in blocks of 4
    swapped = waiting(2, "swap_in", [5, -1, -2], num_prompt_tokens=11, num_output_tokens=1)  # 13 tokens
    rows = queue_rows(made_view(keyframe([fresh, swapped], host_blocks=4)))
    assert [(row.needed, row.blocks, row.slots) for row in rows] == [(3, 0, 0), (3, 1, 2)]


def test_waiting_time_counts_from_the_status() -> None:
    rows = queue_rows(made_view(keyframe([waiting(1, "", status_t=NOW - 4 * SECOND)])))
    assert rows[0].waited_ns == 4 * SECOND


def test_holders_are_in_the_order_of_what_they_hold_and_tell_what_would_become_free() -> None:
    state = keyframe([sequence(1, [0, 1]), sequence(2, [1, 2, 3, -1], status="PAUSED"), waiting(3, "no_blocks")])
    found = holders(made_view(state))
    assert [(each.seq, each.blocks, each.own, each.part) for each in found] == [(2, 3, 2, 3 / 16), (1, 2, 1, 2 / 16)]


def test_the_head_that_waits_for_blocks_tells_what_it_lacks_and_who_has_it() -> None:
    seqs = [sequence(1, [0, 1, 2]), sequence(2, [3]), waiting(7, "no_blocks", num_prompt_tokens=20)]
    head = head_of(made_view(keyframe(seqs, num_blocks=6, free=[4, 5])))
    assert (head.row.seq, head.free, head.reserve, head.short) == (7, 2, 0, 4)
    assert head.words == (
        "seq 7 waits: blocks are short: it needs at most 6, 2 free; most are held by seq 1 (3 blocks)"
    )


def test_an_admission_leaves_a_reserve_only_while_something_runs() -> None:
    waits = waiting(7, "no_blocks", num_prompt_tokens=20)
    busy = head_of(made_view(keyframe([sequence(1, range(298)), waits], num_blocks=300)))
    idle = head_of(made_view(keyframe([sequence(1, range(298), status="PAUSED"), waits], num_blocks=300)))
    assert (busy.reserve, busy.short) == (3, 7) and (idle.reserve, idle.short) == (0, 4)


def test_one_that_others_pass_is_not_the_head() -> None:
    seqs = [waiting(3, "swap_in", [-1]), waiting(4, "sibling_prefill"), waiting(5, "sequence_cap"), sequence(1, [0])]
    head = head_of(made_view(keyframe(seqs, host_blocks=2, max_num_seqs=1)))
    assert head.row.seq == 5 and head.short == 0
    assert head.words == "seq 5 waits: all slots for running sequences are taken: 1 run of at most 1"


def test_where_all_are_passed_the_first_one_speaks() -> None:
    head = head_of(made_view(keyframe([waiting(3, "swap_in", [-1])], host_blocks=2)))
    assert head.words == "seq 3 waits: its KV is coming back to the device: 1 slot of the swap space"


def test_a_spent_token_budget_names_the_step() -> None:
    view = made_view(
        keyframe([waiting(3, "token_budget")], max_num_batched_tokens=8), [step_row(7, [(1, 0, 5)], decodes=3)]
    )
    words = head_of(view).words
    assert words == "seq 3 waits: the step's token budget was spent: step 7 computes 8 tokens of at most 8"


def test_a_paused_engine_tells_its_cause() -> None:
    state = keyframe([waiting(3, "engine_paused")], engine_paused="breakpoint 2")
    assert head_of(made_view(state)).words == "seq 3 waits: the engine is paused (breakpoint 2)"


def test_nothing_waits_in_an_empty_queue() -> None:
    assert head_wait(made_view(keyframe([sequence(1, [0])])), [], []) is None
