"""Places in time, out of words."""

from __future__ import annotations

from datetime import datetime

import pytest

from nanolens.errors import InspectError
from nanolens.inspector.clock_words import Jump, clock, read_jump
from views import view_of_fake_run

VIEW = view_of_fake_run()
T = VIEW.keyframe.t


@pytest.mark.parametrize(
    ("text", "jump"),
    [
        ("step 120", Jump(step=120)),
        ("120", Jump(step=120)),
        (" 1,200 ", Jump(step=1200)),
        ("+10", Jump(steps=10)),
        ("-3", Jump(steps=-3)),
        ("-30s", Jump(t=T - 30_000_000_000)),
        ("+2m", Jump(t=T + 120_000_000_000)),
        ("-1.5 h", Jump(t=T - 5_400_000_000_000)),
        ("-20ms", Jump(t=T - 20_000_000)),
        ("first", Jump(t=VIEW.first.t)),
        ("LAST", Jump(t=VIEW.last.t)),
    ],
)
def test_a_place_is_read(text: str, jump: Jump) -> None:
    assert read_jump(text, VIEW) == jump


def test_a_time_of_day_is_the_one_that_the_journal_has() -> None:
    offset = VIEW.keyframe.started.wall_offset_ns
    text = clock(T, offset, 3)
    jump = read_jump(text, VIEW)
    assert jump.t is not None and 0 <= T - jump.t < 1_000_000
    assert clock(jump.t, offset, 3) == text


def test_a_time_of_day_across_midnight_is_the_nearer_one() -> None:
    offset = VIEW.keyframe.started.wall_offset_ns
    now = datetime.fromtimestamp((T + offset) / 1e9)
    jump = read_jump(f"{now:%H:%M}", VIEW)
    assert jump.t is not None and abs(T - jump.t) <= 60_000_000_000


@pytest.mark.parametrize("text", ["", "soon", "step", "12:99", "25:00", "-30x", "1.5", "--3", "٣"])
def test_what_is_no_place_is_refused_with_the_ways_there_are(text: str) -> None:
    with pytest.raises(InspectError, match="step 120"):
        read_jump(text, VIEW)
