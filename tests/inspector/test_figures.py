"""The header's figures and sparklines."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from nanolens.inspector.figures import figures, groups, sparkline, tokens_per_second
from views import view_of_fake_run

SECOND = 1_000_000_000


def named(name: str) -> str:
    return next(figure.value for figure in figures(view_of_fake_run()) if figure.name == name)


def test_values_are_those_of_the_keyframe() -> None:
    view = view_of_fake_run()
    totals = view.keyframe.totals
    assert named("free blocks") == "1/24" and named("waiting") == "2"
    assert named("running") == "3 +4 paused"
    assert named("hit rate") == f"{totals['prefix_hit_tokens'] / totals['prefix_queried_tokens']:.0%}"
    assert named("preemptions") == str(totals["preemptions"])


def test_few_free_blocks_worry() -> None:
    view = view_of_fake_run()
    assert figures(view)[0].worry
    roomy = msgspec.structs.replace(view.keyframe, free_blocks=list(range(12)))
    assert not figures(replace(view, keyframe=roomy))[0].worry


def test_tokens_per_second_counts_from_the_first_step_on_where_nothing_before_is_known() -> None:
    view = replace(view_of_fake_run(), events=[])
    done = [step.finished for step in view.steps if step.finished]
    begin = done[0].t - view.steps[0].interval_ns
    expected = sum(each.num_sampled for each in done) * 1e9 / (view.keyframe.t - begin)
    assert tokens_per_second(view) == pytest.approx(expected)


def test_tokens_per_second_forgets_what_is_long_ago() -> None:
    view = view_of_fake_run()
    later = msgspec.structs.replace(view.keyframe, t=view.keyframe.t + 60_000_000_000)
    assert tokens_per_second(replace(view, keyframe=later)) == 0


def test_an_engine_that_is_silent_makes_no_tokens() -> None:
    assert tokens_per_second(replace(view_of_fake_run(), later_ns=6 * SECOND)) == 0


def test_tokens_per_second_counts_the_silence_before_a_step_too() -> None:
    view = view_of_fake_run()
    steps = [step for step in view.steps if step.finished is not None]
    last = steps[-1].finished
    assert last is not None
    later = replace(steps[-1], finished=msgspec.structs.replace(last, t=last.t + 60 * SECOND))
    now = msgspec.structs.replace(view.keyframe, t=view.keyframe.t + 60 * SECOND)
    expected = pytest.approx(last.num_sampled / 5)
    assert tokens_per_second(replace(view, keyframe=now, steps=[*steps[:-1], later])) == expected
    paused = replace(view.events[0], t=now.t - 35 * SECOND)  # all that an inspector which came later knows
    assert tokens_per_second(replace(view, keyframe=now, steps=[later], events=[paused])) == expected


@pytest.mark.parametrize("width", [1, 5, 7, 27, 28, 100])
def test_groups_hold_every_step_once_in_order(width: int) -> None:
    steps = view_of_fake_run().steps
    found = groups(steps, width)
    assert [step for group in found for step in group] == list(steps)
    assert len(found) <= width and all(len(group) == len(found[-1]) for group in found[1:])


def test_no_steps_and_no_width_give_no_groups() -> None:
    assert groups([], 5) == [] and groups(view_of_fake_run().steps, 0) == []


def test_a_sparkline_reaches_from_the_lowest_to_the_top() -> None:
    assert sparkline([0, 1, 8, None]) == "▁▂█ "
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([5, 10], top=20) == "▃▅"
    assert sparkline([30], top=20) == "█"
