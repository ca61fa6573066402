"""Requests explained from the spans of a file (OTLP's JSON, a TracesData message a line), where the journal is gone.

Spans tell what a sequence waited for and who preempted it. They do not tell what others added to a step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ..errors import JournalError
from ..telemetry.culprit import Culprit, merged
from ..telemetry.ending import Ending
from ..telemetry.life_pieces import LifePiece
from ..telemetry.verdict import sentences
from ..telemetry.verdict_words import Cause
from .explained import Explained
from .route_words import Route

NS = 1_000_000_000
_ROUTE = "nanolens.route."
_CAUSES = {
    "queue_next_step": "next_step", "queue_no_blocks": "no_blocks", "queue_sequence_cap": "sequence_cap",
    "queue_token_budget": "token_budget", "queue_head_of_line": "head_of_line", "engine_paused": "engine_paused",
    "queue_sibling_prefill": "sibling_prefill", "preempted": "preemption", "swap": "swap", "paused": "paused",
    "running_prefill": "running", "running_decode": "running",
}  # fmt: skip

_BESIDE = {  # part -> kind, words, and whether blocks count
    "queue_no_blocks": ("holder", "held {share} of the blocks that others had taken", True),
    "queue_head_of_line": ("holder", "ran meanwhile, with {share} of the blocks", True),
    "queue_sequence_cap": ("runner", "had {share} of the places in the batch", False),
}

Value = Any  # of a span's attribute: text, number, flag or a list of these


@dataclass(slots=True)
class _Span:
    """One span; times in nanoseconds since 1970."""

    id: str
    parent: str
    name: str
    begin: int
    end: int
    attributes: dict[str, Value]
    message: str  # of its status, where that is an error


@dataclass(frozen=True, slots=True)
class _Ran:
    """One time in which a sequence of a request ran, and the blocks that it took in it."""

    request: str
    seq: int
    begin: int
    end: int
    blocks: int


@dataclass(slots=True)
class Trace:
    """The spans of one request: its root, and those under it by the span that they are under."""

    root: _Span
    under: dict[str, list[_Span]] = field(default_factory=dict)


def read_spans(path: str, run_id: str | None = None) -> list[Trace]:
    """The requests of a file, in order of arrival. A half line at its end is left out.

    Args:
        path: the file.
        run_id: only those of this run.

    Raises:
        JournalError: it can't be read, is no such file, or holds no request.
    """
    roots: list[_Span] = []
    under: dict[str, list[_Span]] = {}
    for span in _spans(path):
        if span.parent and span.name != "request" and "nanolens.request" not in span.attributes:
            under.setdefault(span.parent, []).append(span)
        elif "nanolens.request" in span.attributes and run_id in (None, span.attributes.get("nanolens.run")):
            roots.append(span)
    if not roots:
        of_run = f" of run {run_id!r}" if run_id is not None else ""
        raise JournalError(f"{path}: holds no request's span{of_run}; give what nano-trace export --file wrote")
    traces = []
    for root in sorted(roots, key=lambda span: span.begin):
        states = under.get(root.id, [])
        ids = [root.id, *(state.id for state in states)]
        traces.append(Trace(root, {each: under[each] for each in ids if each in under}))
    return [trace for trace in traces if trace.under]


def explain_spans(traces: Iterable[Trace], by: str) -> Iterator[Explained]:
    """Explain them: by e2e all, by ttft those that had a first token."""
    traces = list(traces)
    uses, used = Counter(map(_name, traces)), Counter[str]()
    ran = [run for trace in traces for run in _runs(trace)]
    for trace in traces:
        root = trace.root
        used[_name(trace)] += 1
        first = float(root.attributes.get("nanolens.time_to_first_token_seconds", 0.0))
        if by == "ttft" and not first:
            continue
        until = root.begin + round(first * NS) if by == "ttft" else root.end
        states = _last_sequence(trace)
        parts, culprits, pieces = _divided(trace, states, until, ran)
        causes = _causes(parts, culprits)
        ending = _ending(root)
        subject = f"The first token of {_name(trace)} took" if by == "ttft" else f"{_name(trace)} {ending.verb}"
        headline, others = sentences(subject, until - root.begin, causes)
        seq = int(states[0].attributes.get("nanolens.seq", -1)) if states else -1
        yield Explained(
            _name(trace), seq, root.begin, until - root.begin, "nanolens.unfinished" not in root.attributes, parts,
            headline, tuple(line for line in others if "replay" not in line), culprits, tuple(pieces),
            used[_name(trace)], uses[_name(trace)], _route(root), ending,
        )  # fmt: skip


def _name(trace: Trace) -> str:
    return str(trace.root.attributes["nanolens.request"])


def _ending(root: _Span) -> Ending:
    """How a request ended: of several sequences in one end, the request's."""
    reason = str(root.attributes.get("nanolens.finish_reason", ""))
    kind = str(root.attributes.get("error.type", ""))
    return Ending(reason, kind or reason, root.message if reason == "error" else "")


def _route(root: _Span) -> Route | None:
    """What a fleet's router decided on."""
    found = {name.removeprefix(_ROUTE): value for name, value in root.attributes.items() if name.startswith(_ROUTE)}
    return {"replica": root.attributes.get("nanolens.replica", "?")} | found if found else None


def _last_sequence(trace: Trace) -> list[_Span]:
    """The statuses of the sequence that ended last, in order."""
    by_seq: dict[int, list[_Span]] = {}
    for span in trace.under.get(trace.root.id, []):
        if span.attributes.get("nanolens.event") == "sequence.status":
            by_seq.setdefault(int(span.attributes.get("nanolens.seq", -1)), []).append(span)
    states = max(by_seq.values(), key=lambda spans: max(span.end for span in spans), default=[])
    return sorted(states, key=lambda span: span.begin)


def _divided(
    trace: Trace, states: list[_Span], until: int, ran: list[_Ran]
) -> tuple[dict[str, int], dict[str, list[Culprit]], list[LifePiece]]:
    parts: dict[str, int] = {}
    culprits: dict[str, list[Culprit]] = {}
    pieces: list[LifePiece] = []
    at, by = trace.root.begin, None
    for state in states:
        begin, end = at, min(state.end, until)
        if begin >= end:
            continue
        children, lost = trace.under.get(state.id, []), 0
        own = int(state.attributes.get("nanolens.seq", -1))
        for kind, part, words, ns in _portions(state, children, begin, end):
            if part in _BESIDE:
                culprits.setdefault(part, []).extend(_beside(part, ns, [r for r in ran if r.seq != own], begin, end))
            parts[part] = parts.get(part, 0) + ns
            lost += ns if part == "preempted" else 0
            pieces.append(LifePiece(kind, words, at, at + ns, *_steps(children, at, at + ns), _blocks(children)))
            at += ns
        if lost and by is not None:
            culprits.setdefault("preempted", []).append(_preemptor(by, lost))
        by = next((span for span in children if span.name == "preempted"), None)
    if at < until:
        parts["unknown"] = until - at
        pieces.append(LifePiece("waiting", "not in the spans", at, until, -1, -1, 0))
    by_weight = {part: sorted(merged(found), key=lambda c: -c.weight_ns) for part, found in culprits.items() if found}
    return parts, by_weight, pieces


def _portions(state: _Span, children: list[_Span], begin: int, end: int) -> Iterator[tuple[str, str, str, int]]:
    """(kind, part, words, nanoseconds) of one status, in order as far as it is known."""
    length = end - begin
    if state.name == "RUNNING":
        turn = max((min(span.end, end) for span in children if span.name == "prefill"), default=begin)
        if turn > begin:
            yield "prefill", "running_prefill", "RUNNING prefill", turn - begin
        if end > turn:
            yield "decode", "running_decode", "RUNNING decode", end - turn
    elif state.name == "PAUSED":
        yield "paused", "paused", f"PAUSED ({state.attributes.get('nanolens.reason', '')})", length
    else:
        preempted = state.attributes.get("nanolens.reason") == "preempted"
        waits = [
            (name.removeprefix("nanolens.wait.").removesuffix("_seconds"), round(seconds * NS))
            for name, seconds in state.attributes.items()
            if name.startswith("nanolens.wait.")
        ]
        known = sum(ns for _, ns in waits)
        if known < length:
            yield "waiting", "preempted" if preempted else "queue_next_step", "WAITING (next step)", length - known
        left = length - max(0, length - known)
        for reason, ns in waits:
            part = _part_of_wait(reason, preempted)
            ns, left = min(ns, left), left - min(ns, left)
            if ns:
                yield part if part in ("preempted", "swap") else "waiting", part, f"WAITING ({reason})", ns


def _runs(trace: Trace) -> Iterator[_Ran]:
    for span in trace.under.get(trace.root.id, []):
        if span.name == "RUNNING":
            blocks = _blocks(trace.under.get(span.id, []))
            yield _Ran(_name(trace), int(span.attributes.get("nanolens.seq", -1)), span.begin, span.end, blocks)


def _beside(part: str, ns: int, ran: list[_Ran], begin: int, end: int) -> list[Culprit]:
    """Who ran while one waited, weighed by time, and by blocks where it waited for these."""
    kind, words, by_blocks = _BESIDE[part]
    amounts: dict[tuple[str, int], int] = {}
    for run in ran:
        overlap = min(run.end, end) - max(run.begin, begin)
        if overlap > 0:
            key = run.request, run.seq
            amounts[key] = amounts.get(key, 0) + overlap * (run.blocks if by_blocks else 1)
    whole = sum(amounts.values())
    found = [
        Culprit(kind, request, seq, round(ns * amount / whole), words.format(share=f"{amount / whole:.0%}"))
        for (request, seq), amount in amounts.items()
        if amount
    ]
    return sorted(found, key=lambda culprit: -culprit.weight_ns)


def _part_of_wait(reason: str, preempted: bool) -> str:
    if reason in ("swap_in", "engine_paused"):
        return "swap" if reason == "swap_in" else reason
    return "preempted" if preempted else f"queue_{reason}"


def _preemptor(span: _Span, ns: int) -> Culprit:
    a = span.attributes
    words = (
        f"{a.get('nanolens.preemption.cause', '')}, {a.get('nanolens.preemption.blocks', 0)} blocks and "
        f"{a.get('nanolens.tokens.lost', 0)} computed tokens lost in step {a.get('nanolens.step', -1)}"
    )
    by = int(a.get("nanolens.preemption.by_seq", -1))
    request = str(a.get("nanolens.preemption.by_request", "")) if by != a.get("nanolens.seq") else ""
    return Culprit("preemptor", request, by, ns, words, int(a.get("nanolens.step", -1)))


def _causes(parts: Mapping[str, int], culprits: Mapping[str, list[Culprit]]) -> list[Cause]:
    times: dict[str, int] = {}
    for part, ns in parts.items():
        name = _CAUSES.get(part, "unknown")
        times[name] = times.get(name, 0) + ns
    behind = {_CAUSES[part]: tuple(found) for part, found in culprits.items() if part != "queue_head_of_line"}
    return [Cause(name, times[name], behind.get(name, ())) for name in sorted(times, key=lambda name: -times[name])]


def _steps(children: list[_Span], begin: int, end: int) -> tuple[int, int]:
    steps: list[int] = []
    for span in children:
        if span.name in ("prefill", "decode") and span.begin < end and span.end > begin:
            named = ("nanolens.step", "nanolens.decode.first_step", "nanolens.decode.last_step")
            steps += [int(span.attributes[name]) for name in named if name in span.attributes]
    return (min(steps), max(steps)) if steps else (-1, -1)


def _blocks(children: list[_Span]) -> int:
    counts = ("nanolens.blocks.cached_count", "nanolens.blocks.new_count")
    spans = [span for span in children if span.name == "blocks.allocated"]
    return sum(int(span.attributes.get(name, 0)) for span in spans for name in counts)


# The file


def _spans(path: str) -> Iterator[_Span]:
    try:
        with Path(path).open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield from _spans_of_line(line, f"{path}, line {number}", number > 1 and not line.endswith(b"\n"))
    except OSError as error:
        raise JournalError(f"{path}: can't be read ({error.strerror})") from error


def _spans_of_line(line: bytes, place: str, may_be_half: bool) -> list[_Span]:
    """The spans of a line; none where it is half a line, as a kill leaves it."""
    try:
        message = msgspec.json.decode(line)
        scopes = [scope for resource in message["resourceSpans"] for scope in resource["scopeSpans"]]
        return [_span(span) for scope in scopes for span in scope["spans"]]
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        if may_be_half and isinstance(error, msgspec.DecodeError):
            return []
        wanted = "give what nano-trace export --file wrote"
        raise JournalError(f"{place}: no spans in OTLP's JSON; {wanted}") from error


def _span(span: Mapping[str, Any]) -> _Span:
    attributes = {each["key"]: _value(each["value"]) for each in span.get("attributes", ())}
    return _Span(
        span["spanId"], span.get("parentSpanId", ""), span["name"], int(span["startTimeUnixNano"]),
        int(span["endTimeUnixNano"]), attributes, str(span.get("status", {}).get("message", "")),
    )  # fmt: skip


def _value(value: Mapping[str, Any]) -> Value:
    for kind, content in value.items():
        if kind == "intValue":
            return int(content)
        if kind == "arrayValue":
            return [_value(each) for each in content.get("values", ())]
        return content
    return None
