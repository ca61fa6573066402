"""Tables as CSV and JSON."""

from __future__ import annotations

import csv
import io
import json

from nanolens.inspector.export import Table, as_csv, as_json

TABLE = Table("things", ["id", "name", "age_s"], [[1, 'a "b", c\nd', 0.5], [2, "ü", None]])


def test_csv_is_read_back() -> None:
    assert list(csv.reader(io.StringIO(as_csv(TABLE), newline=""))) == [
        ["id", "name", "age_s"], ["1", 'a "b", c\nd', "0.5"], ["2", "ü", ""],
    ]  # fmt: skip


def test_a_request_id_is_no_formula_in_a_spreadsheet() -> None:
    table = Table("things", ["request", "change"], [["=HYPERLINK(1)", -5], ["@x", 1], ["a=b", 2]])
    rows = list(csv.reader(io.StringIO(as_csv(table))))[1:]
    assert rows == [["'=HYPERLINK(1)", "-5"], ["'@x", "1"], ["a=b", "2"]]


def test_json_names_each_value() -> None:
    assert json.loads(as_json(TABLE)) == {
        "title": "things",
        "rows": [{"id": 1, "name": 'a "b", c\nd', "age_s": 0.5}, {"id": 2, "name": "ü", "age_s": None}],
    }


def test_an_empty_table_has_its_header() -> None:
    assert as_csv(Table("none", ["a", "b"], [])) == "a,b\r\n"
    assert json.loads(as_json(Table("none", ["a"], []))) == {"title": "none", "rows": []}
