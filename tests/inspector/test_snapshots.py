"""Each screen of nano-inspect as a picture, at two sizes; `pytest --snapshot-update` takes new ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pytest_textual_snapshot")

from screens import SCREENS, app_of, go_to, in_utc

SIZES = {"80x24": (80, 24), "160x50": (160, 50)}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_looks_as_it_did(name: str, size: str, snap_compare: Callable[..., bool]) -> None:
    async def keys(pilot: Any) -> None:
        await go_to(name, pilot)

    with in_utc():
        assert snap_compare(app_of(name), terminal_size=SIZES[size], run_before=keys)
