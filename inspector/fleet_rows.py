"""The replicas of a fleet as rows, text and JSON. Pure functions of what its front and each replica last said."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from .export import Table, Value
from .filters import Field
from .units import duration, share

VERSION = 1
SILENT_NS = 5_000_000_000  # without a sign, from which a replica counts as silent
NS = 1_000_000_000

ReplicaState = Literal["live", "paused", "starting", "silent", "dead", "gone"]


@dataclass(frozen=True, slots=True)
class Sample:
    """What a replica answered at one time.

    Attributes:
        t: clock nanoseconds of the machine that asked.
        snapshot: of GET /debug/snapshot, without sequences; it has `counts`, `blocks` and `totals`.
        skew_ns: how much longer the slowest rank of a step computed than the fastest one, on average since the sample
            before; None where the model has one rank, or no step was done.
    """

    t: int
    snapshot: Mapping[str, Any]
    skew_ns: int | None = None


@dataclass(frozen=True, slots=True)
class FleetRow:
    """One replica.

    Attributes:
        replica: its id.
        state: live; paused (its engine plans no steps); starting (it has not told of itself yet); silent (it is in the
            fleet and gives no sign); dead (its engine answers no more); gone (it is not in the fleet any more).
        trouble: why it is dead, in words.
        model: that it serves; "" before it has answered.
        run: of its engine.
        waiting: sequences in its queue.
        running: sequences.
        paused: sequences; None before it has answered.
        free_blocks: KV blocks without references.
        num_blocks: in its pool.
        queried_tokens: looked up in its cache, on first admissions.
        hit_tokens: those of them that were found.
        preemptions: since its run began; None before it has answered.
        tokens_per_second: sampled and kept lately; None before it has answered twice.
        skew_ns: of its ranks in a step; None where there is one rank.
        sign_ns: since it last answered; None if it never did.
        queue_age_ns: how long the sequence that waits longest has waited.
    """

    replica: str
    state: ReplicaState
    trouble: str
    model: str
    run: str
    waiting: int
    running: int
    paused: int | None
    free_blocks: int
    num_blocks: int
    queried_tokens: int
    hit_tokens: int
    preemptions: int | None
    tokens_per_second: float | None
    skew_ns: int | None
    sign_ns: int | None
    queue_age_ns: int

    @property
    def hit_rate(self) -> float | None:
        """Share of the tokens looked up in its cache that were found; None where none were."""
        return self.hit_tokens / self.queried_tokens if self.queried_tokens else None


@dataclass(frozen=True, slots=True)
class Fleet:
    """A fleet at one time.

    Attributes:
        url: of its front.
        rows: of its replicas, then of those that are gone.
        routed: how often a replica was chosen, by reason.
        trouble: why the front gives no answer, in words; "" while it does.
    """

    url: str
    rows: Sequence[FleetRow]
    routed: Mapping[str, int]
    trouble: str = ""


def fleet_row(report: Mapping[str, Any], samples: Sequence[Sample], now: int, gone: bool = False) -> FleetRow:
    """The row of a replica.

    Args:
        report: its entry in GET /debug/fleet.
        samples: its last answers of one run, oldest first; may be empty.
        now: clock nanoseconds.
        gone: whether the fleet does not list it any more.
    """
    last = samples[-1] if samples else None
    snapshot: Mapping[str, Any] = last.snapshot if last is not None else {}
    counts, blocks, totals = (snapshot.get(name, {}) for name in ("counts", "blocks", "totals"))
    trouble = str(report.get("trouble", ""))
    sign_ns = None if last is None else max(0, now - last.t)
    return FleetRow(
        replica=str(report["id"]),
        state=_state(report, snapshot, sign_ns, gone),
        trouble=trouble,
        model=str(snapshot.get("model", "")),
        run=str(report.get("run", "")),
        waiting=counts.get("WAITING", 0) if snapshot else report.get("waiting", 0),
        running=counts.get("RUNNING", 0) if snapshot else report.get("running", 0),
        paused=counts.get("PAUSED", 0) if snapshot else None,
        free_blocks=blocks.get("free", report.get("free_blocks", 0)),
        num_blocks=blocks.get("total", report.get("num_blocks", 0)),
        queried_tokens=totals.get("prefix_queried_tokens", report.get("queried_tokens", 0)),
        hit_tokens=totals.get("prefix_hit_tokens", report.get("hit_tokens", 0)),
        preemptions=totals.get("preemptions", 0) if snapshot else None,
        tokens_per_second=None if gone else _rate(samples),
        skew_ns=next((each.skew_ns for each in reversed(samples) if each.skew_ns is not None), None),
        sign_ns=sign_ns,
        queue_age_ns=round(float(report.get("queue_age_s", 0.0)) * NS),
    )


def fleet_words(fleet: Fleet) -> str:
    """How many there are, what they do together, and why they were chosen, in a line."""
    rows = [row for row in fleet.rows if row.state != "gone"]
    gone = len(fleet.rows) - len(rows)
    rate = sum(row.tokens_per_second or 0.0 for row in rows)
    hit, queried = (sum(getattr(row, name) for row in rows) for name in ("hit_tokens", "queried_tokens"))
    parts = [f"{len(rows)} replica{'' if len(rows) == 1 else 's'}{f' (+{gone} gone)' if gone else ''}"]
    parts += [f"waiting {sum(row.waiting for row in rows):,}", f"running {sum(row.running for row in rows):,}"]
    parts += [f"tokens/s {rate:,.0f}", f"hit rate {share(hit, queried)}"]
    total = sum(fleet.routed.values())
    reasons = sorted(fleet.routed.items(), key=lambda each: -each[1])
    if total:
        parts.append("routed by " + " ".join(f"{reason} {share(count, total)}" for reason, count in reasons))
    return ", ".join(parts)


def models(fleet: Fleet) -> str:
    """The models that are served, once each."""
    return ", ".join(sorted({row.model for row in fleet.rows if row.model}))


def _age(ns: int | None) -> str:
    """At most 5 characters: tenths of a second are enough."""
    return duration(ns) if ns is None or ns >= 60 * NS else f"{ns / NS:.1f}s"


CELLS: tuple[tuple[str, bool, Callable[[FleetRow], str]], ...] = (  # name, whether it stands right, text
    ("replica", False, lambda row: row.replica),
    ("state", False, lambda row: row.state),
    ("queue", True, lambda row: f"{row.waiting:,}"),
    ("running", True, lambda row: f"{row.running:,}"),
    ("paused", True, lambda row: "-" if row.paused is None else f"{row.paused:,}"),
    ("free blocks", True, lambda row: f"{row.free_blocks:,}/{row.num_blocks:,}"),
    ("hit rate", True, lambda row: share(row.hit_tokens, row.queried_tokens)),
    ("tokens/s", True, lambda row: "-" if row.tokens_per_second is None else f"{row.tokens_per_second:,.0f}"),
    ("preemptions", True, lambda row: "-" if row.preemptions is None else f"{row.preemptions:,}"),
    ("skew", True, lambda row: duration(row.skew_ns)),
    ("last sign", True, lambda row: _age(row.sign_ns)),
    ("longest wait", True, lambda row: _age(row.queue_age_ns)),
    ("model", False, lambda row: row.model),
    ("run", False, lambda row: row.run),
)


def fleet_text(fleet: Fleet) -> str:
    """For `--once`."""
    lines = [[name for name, _, _ in CELLS], *([text(row) for _, _, text in CELLS] for row in fleet.rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(CELLS))]
    table = [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, (_, right, _) in zip(line, widths, CELLS, strict=True)
        ).rstrip()
        for line in lines
    ]
    head = [f"{fleet.url}: {fleet.trouble or 'live'}", fleet_words(fleet)]
    troubles = [f"{row.replica}: {row.trouble}" for row in fleet.rows if row.trouble]
    whole = [*head, *troubles, *(["", *table] if fleet.rows else [])]
    return "".join("".join(char if char.isprintable() else "�" for char in line) + "\n" for line in whole)


def fleet_json(fleet: Fleet) -> dict[str, Any]:
    """For `--json`; times in seconds, names as in GET /debug/fleet where that has them."""
    return {
        "version": VERSION,
        "source": {"title": fleet.url, "state": "stale" if fleet.trouble else "live", "message": fleet.trouble},
        "replicas": [{name: value(row) for name, value in VALUES.items()} for row in fleet.rows],
        "routed": dict(fleet.routed),
    }


def fleet_table(rows: Sequence[FleetRow]) -> Table:
    """Rows for an export: the values of `--json`."""
    return Table("fleet", tuple(VALUES), [[value(row) for value in VALUES.values()] for row in rows])


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / NS


VALUES: dict[str, Callable[[FleetRow], Value]] = {
    "id": lambda row: row.replica,
    "state": lambda row: row.state,
    "trouble": lambda row: row.trouble,
    "model": lambda row: row.model,
    "run": lambda row: row.run,
    "waiting": lambda row: row.waiting,
    "running": lambda row: row.running,
    "paused": lambda row: row.paused,
    "free_blocks": lambda row: row.free_blocks,
    "num_blocks": lambda row: row.num_blocks,
    "queried_tokens": lambda row: row.queried_tokens,
    "hit_tokens": lambda row: row.hit_tokens,
    "hit_rate": lambda row: row.hit_rate,
    "preemptions": lambda row: row.preemptions,
    "tokens_per_second": lambda row: row.tokens_per_second,
    "rank_skew_s": lambda row: _seconds(row.skew_ns),
    "last_sign_s": lambda row: _seconds(row.sign_ns),
    "queue_age_s": lambda row: _seconds(row.queue_age_ns),
}
FIELDS: dict[str, Field[FleetRow]] = {  # of a filter: named as in VALUES, where that has the same
    "replica": Field("text", lambda row: row.replica),
    "state": Field("text", lambda row: row.state, get_args(ReplicaState)),
    "waiting": Field("number", lambda row: row.waiting),
    "running": Field("number", lambda row: row.running),
    "paused": Field("number", lambda row: row.paused),
    "free_blocks": Field("number", lambda row: row.free_blocks),
    "num_blocks": Field("number", lambda row: row.num_blocks),
    "hit_rate": Field("percentage", lambda row: None if row.hit_rate is None else 100 * row.hit_rate),
    "tokens_per_second": Field("number", lambda row: row.tokens_per_second),
    "preemptions": Field("number", lambda row: row.preemptions),
    "skew": Field("duration", lambda row: row.skew_ns),
    "sign": Field("duration", lambda row: row.sign_ns),
    "waits": Field("duration", lambda row: row.queue_age_ns),
    "model": Field("text", lambda row: row.model),
    "run": Field("text", lambda row: row.run),
    "trouble": Field("text", lambda row: row.trouble),
}


def _state(report: Mapping[str, Any], snapshot: Mapping[str, Any], sign_ns: int | None, gone: bool) -> ReplicaState:
    if gone:
        return "gone"
    if report.get("trouble"):
        return "dead"
    if not report.get("run"):
        return "starting"
    if sign_ns is None or sign_ns >= SILENT_NS:
        return "silent"
    return "paused" if snapshot.get("engine_paused") else "live"


def _rate(samples: Sequence[Sample]) -> float | None:
    """Tokens sampled per second, from the first sample to the last."""
    if len(samples) < 2 or samples[-1].t <= samples[0].t:
        return None
    first, last = (int(each.snapshot["totals"].get("generated_tokens", 0)) for each in (samples[0], samples[-1]))
    return max(0, last - first) * NS / (samples[-1].t - samples[0].t)
