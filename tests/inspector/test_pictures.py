"""The pictures of docs/inspect.md are what the program shows; `pytest --snapshot-update` takes new ones."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from screens import SCREENS, app_of, go_to, in_utc

SIZE = (132, 36)
PICTURES = [name for name in SCREENS if name != "help"]


def picture_of(name: str) -> str:
    """The screen as SVG, with an id of its own, and no font from elsewhere."""

    async def show() -> str:
        app = app_of(name)
        async with app.run_test(size=SIZE) as pilot:
            await go_to(name, pilot)
            return app.export_screenshot()

    with in_utc():
        svg = asyncio.run(show())
    svg = re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    return re.sub(r"\bterminal-\d+-", f"{name}-", svg)


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_of_the_guide_is_up_to_date(name: str, repo: Path, request: pytest.FixtureRequest) -> None:
    path, svg = repo / "docs" / "images" / f"inspect-{name}.svg", picture_of(name)
    if request.config.getoption("--snapshot-update", default=False):
        path.write_text(svg, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == svg, "see the picture, then take it again with pytest --snapshot-update"


def test_the_guide_shows_these_pictures_and_no_others(repo: Path) -> None:
    shown = re.findall(r"\]\(images/inspect-(\w+)\.svg\)", (repo / "docs" / "inspect.md").read_text(encoding="utf-8"))
    assert sorted(shown) == sorted(PICTURES)
    assert {path.name for path in (repo / "docs" / "images").iterdir()} == {f"inspect-{name}.svg" for name in PICTURES}
