"""docs/server.md and README against the code: flags, variables, metrics and endpoints that they name exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from nanolens.server.admission import QueueAdmission
from nanolens.server.cli import SHORT_FLAGS
from nanolens.server.server_metrics import ServerMetrics
from nanolens.server.settings import OPTIONS
from promql_checks import router_families
from serve import NAME, Server

OTHER_FLAGS = {"--help", "--config", "--no-metrics", "--clients"}


@pytest.fixture(scope="module")
def guide(repo: Path) -> str:
    return (repo / "docs" / "server.md").read_text(encoding="utf-8")


def test_every_flag_that_is_named_exists(guide: str) -> None:
    flags = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", guide)) - OTHER_FLAGS
    assert flags <= {option.flag for option in OPTIONS.values()} | set(SHORT_FLAGS.values())


def test_every_variable_that_is_named_exists(guide: str) -> None:
    named = set(re.findall(r"NANOLENS_[A-Z_]+", guide)) - {"NANOLENS_CONFIG"}
    assert named <= {option.variable for option in OPTIONS.values()} and named


def test_the_table_of_metrics_is_that_of_the_server(guide: str) -> None:
    found = {
        sample.name
        for family in ServerMetrics(QueueAdmission(1, 0)).collect()
        for sample in family.samples or [type("None", (), {"name": f"{family.name}_total"})]
    }
    assert set(re.findall(r"^\| `(nanolens_server_\w+)`", guide, re.MULTILINE)) == found


def test_the_table_of_the_routers_metrics_is_that_of_the_router(guide: str) -> None:
    table = re.findall(r"^\| `(nanolens_router_\w+)` \| (.*?) ?\|", guide, re.MULTILINE)
    named = {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in table}
    assert named == {name: set(family.labels) for name, family in router_families().items()}


def test_every_endpoint_is_in_the_guide(guide: str, tiny_server: Server) -> None:
    paths = tiny_server.get("/openapi.json").json["paths"]
    assert paths and [path for path in paths if path.partition("/{")[0] not in guide] == []


@pytest.mark.parametrize("file", ["README.md", "docs/server.md"])
def test_the_bodies_of_the_curl_examples_are_taken(repo: Path, tiny_server: Server, file: str) -> None:
    text = (repo / file).read_text(encoding="utf-8")
    found = re.findall(r"curl http://127\.0\.0\.1:8000(/v1/\S+) .*?-d '(\{.*?\})'", text, re.DOTALL)
    assert found
    for path, body in found:
        answer = tiny_server.post(path, json.loads(body) | {"model": NAME, "max_tokens": 2})
        assert answer.status == 200, answer.body
