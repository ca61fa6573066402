"""The guides: each is reached from the README, and no link between them is broken."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(([^)#\s]+\.md)[^)]*\)")


def test_every_page_is_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    todo = [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in seen:
            continue
        assert page.is_file(), f"a link leads to {page.relative_to(ROOT)}, which is not there"
        seen.add(page)
        links = LINK.findall(page.read_text(encoding="utf-8"))
        todo += [(page.parent / link).resolve() for link in links if "://" not in link]
    assert set((ROOT / "docs").glob("*.md")) <= seen
