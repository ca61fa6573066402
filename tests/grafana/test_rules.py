"""The rules and the files around them: promtool takes them, each alert is tested both ways and is in the runbook."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import promql_parser as ql
import pytest
import yaml
from prometheus_client.utils import floatToGoString

from journals import busy_engine
from nanolens.telemetry.metric_families import BY_NAME
from nanolens.telemetry.metrics import Metrics
from promql_checks import (
    PROMETHEUS_OWN,
    base_name,
    matchers,
    nodes,
    router_families,
    selectors,
    unguarded_divisions,
)  # fmt: skip

REPO = Path(__file__).resolve().parents[2]
GRAFANA = REPO / "grafana"
RULES = sorted((GRAFANA / "rules").glob("*.yml"))
TESTS = sorted((GRAFANA / "rules" / "tests").glob("*.yml"))
FAMILIES = {**BY_NAME, **router_families()}
HISTOGRAMS = {family.name for family in BY_NAME.values() if family.kind == "histogram"}
ASKED_FOR = {
    "NanolensSchedulerStuck", "NanolensKvPressure", "NanolensPreemptionStorm", "NanolensTtftBurnsFast",
    "NanolensTtftBurnsSlowly", "NanolensItlBurnsFast", "NanolensItlBurnsSlowly", "NanolensQueueAge",
    "NanolensEventsLost", "NanolensSpansLost", "NanolensEngineDown", "NanolensExporterDown", "NanolensSwapFailures",
    "NanolensJournalGaps", "NanolensReplicaLost", "NanolensReplicasKeepDying", "NanolensFleetShort",
    "NanolensReplicaLate",
}  # fmt: skip
# What is about all that answers behind an address: its objectives, and whether it or its one server is there.
OF_ADDRESS = re.compile(r"instance:nanolens_(ttft_late|itl_late|first_tokens|next_tokens):|Nanolens(Ttft|Itl)Burns|"
                        "NanolensEngineDown|NanolensReplicasKeepDying|NanolensFleetShort")  # fmt: skip


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def all_rules() -> list[dict[str, Any]]:
    return [rule for path in RULES for group in read(path)["groups"] for rule in group["rules"]]


ALERTS = {rule["alert"]: rule for rule in all_rules() if "alert" in rule}
RECORDED = {rule["record"] for rule in all_rules() if "record" in rule}


@pytest.fixture
def promtool(require: Callable[[str], str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    program = require("promtool")

    def run(*arguments: str | Path, text: str = "") -> subprocess.CompletedProcess[str]:
        command = [program, *map(str, arguments)]
        return subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, cwd=GRAFANA)

    return run


Promtool = Callable[..., "subprocess.CompletedProcess[str]"]


def test_promtool_takes_the_config_and_finds_the_rules(promtool: Promtool) -> None:
    done = promtool("check", "config", "prometheus.yml")
    assert done.returncode == 0 and f"{len(RULES)} rule files found" in done.stdout, done.stdout + done.stderr


def test_promtool_takes_the_rules(promtool: Promtool) -> None:
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", *RULES)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_fires_when_it_should_and_only_then(promtool: Promtool) -> None:
    done = promtool("test", "rules", *TESTS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_takes_the_metrics_of_a_busy_engine(promtool: Promtool) -> None:
    engine = busy_engine()
    metrics = Metrics()
    metrics.apply_all(engine.events)
    text = metrics.render(openmetrics=False).decode()
    assert 'nanolens_requests_total{finish_reason="length"}' in text
    done = promtool("check", "metrics", text=text)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_alerts_that_were_asked_for_are_there() -> None:
    assert set(ALERTS) >= ASKED_FOR


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_is_tested_firing_and_not_firing(name: str) -> None:
    cases = [case for path in TESTS for test in read(path)["tests"] for case in test["alert_rule_test"]]
    expected = [bool(case["exp_alerts"]) for case in cases if case["alertname"] == name]
    assert True in expected and False in expected


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_how_urgent_it_is_what_it_means_and_what_to_do(name: str) -> None:
    alert = ALERTS[name]
    assert alert["labels"]["severity"] in ("page", "ticket")
    notes = alert["annotations"]
    assert set(notes) == {"summary", "description", "runbook"} and "{{ $labels.instance }}" in notes["summary"]
    path, _, anchor = notes["runbook"].partition("#")
    sections = runbook_sections(REPO / path)
    assert anchor == name.lower() and name in sections
    assert sections[name].startswith(f"`{alert['labels']['severity']}`.") and len(sections[name]) > 100


def runbook_sections(path: Path) -> dict[str, str]:
    parts = re.split(r"^## (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {title: text.strip() for title, text in zip(parts[1::2], parts[2::2], strict=True)}


def test_the_runbook_has_no_section_without_an_alert() -> None:
    assert set(runbook_sections(REPO / "docs" / "runbook.md")) == set(ALERTS)


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.get("alert") or rule["record"])
def test_a_rule_asks_for_metrics_and_label_values_that_exist(rule: dict[str, Any]) -> None:
    ql.parse(rule["expr"])
    assert unguarded_divisions(rule["expr"]) == []
    for selector in selectors(rule["expr"]):
        if selector.name in PROMETHEUS_OWN | RECORDED:
            continue
        family = FAMILIES[base_name(selector.name, HISTOGRAMS)]
        for label, value in matchers(selector).items():
            if label == "replica":  # whether there is one: rules name none
                assert value == ""
                continue
            allowed = map(floatToGoString, family.buckets) if label == "le" else family.labels[label]
            assert set(value.split("|")) <= set(allowed), f"{label}={value}"


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.get("alert") or rule["record"])
def test_a_rule_keeps_engines_apart(rule: dict[str, Any]) -> None:
    of_address = OF_ADDRESS.match(rule.get("alert") or rule["record"])
    for node in nodes(rule["expr"]):
        if isinstance(node, ql.AggregateExpr):
            labels = node.modifier.labels
            about = {s.name for s in selectors(node.prettify())}
            if of_address or about == {"nanolens_engine_ended"}:  # which is asked of one server alone
                assert labels[:2] == ["job", "instance"]
            else:
                assert labels[:3] == ["job", "instance", "replica"] and labels[3:] in ([], ["reason"])


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_about_one_engine_names_its_replica(name: str) -> None:
    summary = ALERTS[name]["annotations"]["summary"]
    assert ("$labels.replica" in summary) == (not OF_ADDRESS.match(name))


def test_every_recorded_series_is_used_or_named_for_boards() -> None:
    used = {s.name for rule in ALERTS.values() for s in selectors(rule["expr"])}
    unused = RECORDED - used
    assert unused == {"instance:nanolens_prefix_hits:ratio_rate5m"}


def test_the_data_sources_are_those_that_links_and_exemplars_lead_to() -> None:
    sources = {s["uid"]: s for s in read(GRAFANA / "provisioning" / "datasources" / "nanolens.yaml")["datasources"]}
    assert {uid: s["type"] for uid, s in sources.items()} == {"prometheus": "prometheus", "tempo": "tempo"}
    exemplars = sources["prometheus"]["jsonData"]["exemplarTraceIdDestinations"]
    assert exemplars == [{"name": "trace_id", "datasourceUid": "tempo"}]
    interval = read(GRAFANA / "prometheus.yml")["global"]["scrape_interval"]
    assert sources["prometheus"]["jsonData"]["timeInterval"] == interval  # $__rate_interval follows from it


def test_compose_pins_its_images_and_mounts_what_is_there() -> None:
    services = read(GRAFANA / "compose.yaml")["services"]
    assert set(services) == {"prometheus", "tempo", "grafana"}
    for service in services.values():
        assert re.fullmatch(r"[a-z]+/[a-z]+:v?\d+\.\d+\.\d+", service["image"])
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert not source.startswith(".") or (GRAFANA / source).exists(), volume
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        assert service.get("network_mode") == "host" or service["ports"]
    assert services["grafana"]["environment"]["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert "--enable-feature=exemplar-storage" in services["prometheus"]["command"]


def test_compose_and_provisioning_agree_about_places_and_ports() -> None:
    services = read(GRAFANA / "compose.yaml")["services"]
    (provider,) = read(GRAFANA / "provisioning" / "dashboards" / "nanolens.yaml")["providers"]
    mounted = {volume.split(":")[1]: volume.split(":")[0] for volume in services["grafana"]["volumes"]}
    assert mounted[provider["options"]["path"]] == "./dashboards"
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (GRAFANA / "dashboards" / Path(home).name).is_file()
    tempo = read(GRAFANA / "tempo.yaml")
    receivers = tempo["distributor"]["receivers"]["otlp"]["protocols"]
    published = {port.rsplit(":")[-1] for port in services["tempo"]["ports"]}
    taken = {receiver["endpoint"].split(":")[1] for receiver in receivers.values()}
    assert published == taken | {str(tempo["server"]["http_listen_port"])}
    provisioned = read(GRAFANA / "provisioning" / "datasources" / "nanolens.yaml")["datasources"]
    sources = {source["uid"]: source["url"] for source in provisioned}
    assert sources["tempo"] == "http://127.0.0.1:3200"
    listens = next(flag for flag in services["prometheus"]["command"] if flag.startswith("--web.listen-address="))
    assert sources["prometheus"] == "http://" + listens.partition("=")[2]
