"""Durations in a narrow column."""

from __future__ import annotations

import pytest

from nanolens.inspector.units import duration, share


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (None, "-"), (0, "0µs"), (850_000, "850µs"), (999_600, "1.0ms"), (1_240_000, "1.2ms"), (12_340_000, "12.3ms"),
        (99_960_000, "100ms"), (123_400_000, "123ms"), (999_700_000, "1.00s"), (1_240_000_000, "1.24s"),
        (9_996_000_000, "10.0s"), (12_340_000_000, "12.3s"), (59_700_000_000, "1m00s"), (185_000_000_000, "3m05s"),
        (7_800_000_000_000, "2h10m"), (273_600_000_000_000, "3d04h"),
    ],
)  # fmt: skip
def test_a_duration_takes_at_most_six_characters(ns: int | None, text: str) -> None:
    assert duration(ns) == text
    assert len(text) <= 6


def test_a_share_of_nothing_is_a_dash() -> None:
    assert (share(1, 3), share(0, 5), share(0, 0)) == ("33%", "0%", "-")
