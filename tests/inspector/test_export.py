"""Tables as CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

from nanolens.inspector.export import Shown, Table, as_csv, as_json, in_seconds
from nanolens.inspector.tui.export_file import write_export

SHOWN = Shown("run-1", 7, "2026-11-30T01:02:03.000004+00:00")
TABLE = Table("things", ["id", "name", "age_s"], [[1, 'a "b", c\nd', 0.5], [2, "ü", None]])


def test_csv_is_read_back() -> None:
    assert list(csv.reader(io.StringIO(as_csv(TABLE, SHOWN), newline=""))) == [
        ["id", "name", "age_s", "run", "shown_at"],
        ["1", 'a "b", c\nd', "0.5", "run-1", SHOWN.time],
        ["2", "ü", "", "run-1", SHOWN.time],
    ]  # fmt: skip


def test_a_request_id_is_no_formula_in_a_spreadsheet() -> None:
    table = Table("things", ["request", "change"], [["=HYPERLINK(1)", -5], ["@x", 1], ["a=b", 2]])
    rows = list(csv.reader(io.StringIO(as_csv(table, SHOWN))))[1:]
    assert [row[:2] for row in rows] == [["'=HYPERLINK(1)", "-5"], ["'@x", "1"], ["a=b", "2"]]


def test_json_names_each_value() -> None:
    assert json.loads(as_json(TABLE, SHOWN)) == {
        "title": "things",
        "run": "run-1",
        "step": 7,
        "shown_at": SHOWN.time,
        "rows": [{"id": 1, "name": 'a "b", c\nd', "age_s": 0.5}, {"id": 2, "name": "ü", "age_s": None}],
    }


def test_an_empty_table_has_its_header() -> None:
    assert as_csv(Table("none", ["a", "b"], []), SHOWN) == "a,b,run,shown_at\r\n"
    assert json.loads(as_json(Table("none", ["a"], []), SHOWN))["rows"] == []


def test_durations_are_told_in_seconds_and_named_so() -> None:
    table = in_seconds("t", ("place", "waited_ns", "itl_ns"), [(1, 2_500_000_000, None)])
    assert (table.columns, table.rows) == (["place", "waited_s", "itl_s"], [[1, 2.5, None]])


def test_a_table_of_a_fleet_says_whose_replicas_it_is_of_and_when(tmp_path: Path) -> None:
    shown = Shown("", None, "2026-11-30T01:02:03.000004+00:00", "http://h:1")
    table = Table("fleet", ["id", "run"], [["a1", "run-1"]])
    assert as_csv(table, shown).splitlines() == ["id,run,fleet,shown_at", f"a1,run-1,http://h:1,{shown.time}"]
    assert json.loads(as_json(table, shown)) == {
        "title": "fleet", "fleet": "http://h:1", "shown_at": shown.time, "rows": [{"id": "a1", "run": "run-1"}],
    }  # fmt: skip
    assert write_export(tmp_path, "csv", table, shown).name == "nano-inspect-fleet-20261130T010203.csv"
