"""docs/telemetry.md: generated from the code, whole, and noticed when it is not what the code says."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import msgspec
import pytest

from nanolens.telemetry.event_fields import tag_of
from nanolens.telemetry.events import AnyEvent, SequenceSnapshot
from nanolens.telemetry.metric_families import FAMILIES
from nanolens.telemetry.reference import main, reference
from nanolens.telemetry.span_names import ATTRIBUTES, LINKS, NOTES, SPANS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "telemetry.md"


def test_the_page_is_what_the_code_says() -> None:
    assert main(["--check"]) == 0


def test_drift_is_found_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "telemetry.md"
    assert main(["--check", "--file", str(page)]) == 1
    assert main(["--file", str(page)]) == 0
    assert page.read_text() == reference() == PAGE.read_text()
    assert main(["--check", "--file", str(page)]) == 0
    capsys.readouterr()
    page.write_text(page.read_text().replace("nanolens_engine_up", "nanolens_engine_on"))
    assert main(["--check", "--file", str(page)]) == 1
    told = capsys.readouterr().err
    assert "+| `nanolens_engine_up`" in told and "run `python -m nanolens.telemetry.reference`" in told


def test_every_event_and_each_of_its_fields_is_there() -> None:
    sections = reference().split("\n### ")
    for kind in get_args(AnyEvent):
        (section,) = [each for each in sections if each.startswith(f"`{tag_of(kind)}`\n")]
        for field in msgspec.structs.fields(kind):
            assert f"\n- `{field.name}: " in section
        assert (kind.__doc__ or "").splitlines()[0] in section
    (snapshot,) = [each for each in sections if each.startswith("Sequences in a keyframe")]
    assert all(f"\n- `{field.name}: " in snapshot for field in msgspec.structs.fields(SequenceSnapshot))


def test_comments_tell_what_a_field_means() -> None:
    assert "- `decodes: int`\n" in reference()
    assert "- `cause: str`: operator, steps (those granted are done), or \"breakpoint N\"\n" in reference()
    assert "- `config: dict[str, str | int | float | bool | None]`\n" in reference()
    assert "- `cause: int = -1`: the sibling whose error ended this sequence, or -1\n" in reference()


def test_every_metric_span_link_note_and_attribute_is_there() -> None:
    page = reference()
    for name in (*(family.name for family in FAMILIES), *SPANS, *LINKS, *NOTES, *ATTRIBUTES):
        assert page.count(f"\n| `{name}` | ") == 1, name
    assert all(family.help in page for family in FAMILIES)
