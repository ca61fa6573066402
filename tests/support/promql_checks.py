"""What tests ask of PromQL expressions: the metrics in them, and constructs that mislead. Uses promql-parser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import promql_parser as ql

from nanolens.server.fleet_metrics import RouterMetrics
from nanolens.server.fleet_view import FleetView

CHILDREN = ("lhs", "rhs", "expr", "param", "vector_selector", "args")
SUFFIXES = ("_bucket", "_sum", "_count")
ROUTER_REASONS = {"prefix", "load", "no_blocks", "only", "full", "pinned"}
# What Prometheus itself knows of each target.
PROMETHEUS_OWN = {"up", "scrape_duration_seconds", "scrape_samples_scraped"}


@dataclass(frozen=True)
class RouterFamily:
    """A family that the front of a fleet adds to the scrapes of its replicas; fields as in MetricFamily."""

    kind: str
    labels: dict[str, tuple[str, ...]]
    has_exemplars: bool = False


def router_families() -> dict[str, RouterFamily]:
    """Families of the router by the names that their samples have."""
    view = FleetView()
    view.update(["r0", "r1"])
    view.died("r0")
    metrics = RouterMetrics(view)
    metrics.routed["r1", "prefix"] = metrics.retried["r1"] = metrics.broken["r1"] = 1
    found = {}
    for family in metrics.collect():
        labels: dict[str, set[str]] = {}
        for sample in family.samples:
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
        if family.name == "nanolens_router_requests":
            labels["reason"] = ROUTER_REASONS
        name = family.name + ("_total" if family.type == "counter" else "")
        found[name] = RouterFamily(family.type, {label: tuple(values) for label, values in labels.items()})
    return found


def with_values(expr: str, **values: str) -> str:
    """An expression with Grafana's variables replaced, its intervals by five minutes where none is given."""
    known = {"__rate_interval": "5m", "__range": "30m", "job": ".*", "instance": ".*", "replica": ".*"}
    known |= {"ttft_slo": "1.0", "itl_slo": "0.1"} | values
    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda found: known[found[1] or found[2]], expr)


def nodes(expr: str) -> Iterator[Any]:
    """Every node of an expression's tree, from the outside in."""
    stack = [ql.parse(expr)]
    while stack:
        node = stack.pop()
        yield node
        for name in CHILDREN:
            below = getattr(node, name, None)
            stack += below if isinstance(below, list) else [below] if isinstance(below, ql.Expr) else []


def selectors(expr: str) -> list[Any]:
    """Its vector selectors, those of ranges too."""
    return [node for node in nodes(expr) if isinstance(node, ql.VectorSelector)]


def matchers(selector: Any) -> dict[str, str]:
    """Label -> value of a selector's matchers."""
    return {matcher.name: matcher.value for matcher in selector.matchers.matchers}


def unguarded_divisions(expr: str) -> list[str]:
    """Divisors that are not of the form `(x > 0)`."""
    found = []
    for node in nodes(expr):
        if isinstance(node, ql.BinaryExpr) and str(node.op) == "/":
            guard = node.rhs
            while isinstance(guard, ql.ParenExpr):
                guard = guard.expr
            if not (isinstance(guard, ql.BinaryExpr) and str(guard.op) == ">" and guard.rhs.val == 0):
                found.append(node.rhs.prettify())
    return found


def base_name(name: str, histograms: set[str]) -> str:
    """The family of a series' name."""
    for suffix in SUFFIXES:
        if name.removesuffix(suffix) in histograms:
            return name.removesuffix(suffix)
    return name
