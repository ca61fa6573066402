"""The counters of a run with pauses and swaps."""

from __future__ import annotations

from nanolens.telemetry.differences import keyframe_differences
from nanolens.telemetry.events import Keyframe
from nanolens.telemetry.totals import TOTAL_NAMES, Totals
from stories import find, story


def test_pauses_swaps_copies_and_breakpoints_are_counted() -> None:
    totals = Totals()
    totals.apply_all(story())
    expected = {
        "pauses": 2, "resumes": 1, "appended_tokens": 3, "swapped_out_blocks": 3, "swapped_in_blocks": 1,
        "demoted_blocks": 1, "swap_failures": 1, "dropped_tokens": 11, "copied_blocks": 1, "steps_retried": 1,
        "breakpoint_hits": 1, "preemptions": 1, "recomputed_tokens": 0, "refound_tokens": 4, "wasted_tokens": 1,
    }  # fmt: skip
    assert {name: totals.counts[name] for name in expected} == expected


def test_blocks_on_the_device_are_conserved() -> None:
    totals = Totals()
    totals.apply_all(story())
    c = totals.counts
    taken = c["blocks_allocated"] + c["blocks_shared"] + c["swapped_in_blocks"]
    assert taken - c["swapped_out_blocks"] == c["blocks_freed"] == 8


def test_names_are_told_once() -> None:
    assert len(set(TOTAL_NAMES)) == len(TOTAL_NAMES)
    assert list(Totals().counts) == list(TOTAL_NAMES)


def test_a_keyframe_with_fewer_names_is_no_difference() -> None:
    """As an older journal has it: what it does not name has not happened."""
    events = story()
    keyframe = events[find(events, Keyframe)]
    assert isinstance(keyframe, Keyframe)
    older = {name: count for name, count in keyframe.totals.items() if count}
    one = Keyframe(**{name: getattr(keyframe, name) for name in keyframe.__struct_fields__} | {"totals": older})
    assert keyframe_differences(one, keyframe) == keyframe_differences(keyframe, one) == []
    one.totals["pauses"] += 1
    assert keyframe_differences(one, keyframe) == ["total pauses: 2 given, 1 expected"]
