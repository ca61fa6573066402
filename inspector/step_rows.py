"""The steps of a view: where each one's time went, what it computed and for whom. Knows no screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

from ..telemetry.events import Keyframe, SequencePreempted, StatusChanged
from ..telemetry.rank_skew import rank_skew
from .clock_words import iso
from .describe import plural
from .export import NS_PER_S, Table, in_seconds
from .view import StepRow, View

PARTS = ("plan", "launch", "device", "read", "gap")
SHOWN_SEQUENCES, SHOWN_CHUNKS = 10, 5


@dataclass(frozen=True, slots=True)
class StepLine:
    """One step in figures. Durations are nanoseconds, 0 while it is in flight.

    Attributes:
        state: done, in flight, or failed (later ones were read, it never was).
        read_ns: host time of collecting its tokens, without the wait for the device.
        interval_ns: from the reading of the step before to the reading of this one.
        gap_ns: of the interval, what nobody worked on.
        decodes: sequences that compute one token.
        chunks: pieces of prompts.
        prefill_tokens: in these.
        tokens: all that it computes.
        sampled: tokens that were kept.
        skew_ns: how much longer the slowest rank computed than the fastest one, where several share the model.
        straggler: that rank; -1 where there is one rank, or it is not known yet.
    """

    step: int
    t: int
    kind: str
    state: str
    interval_ns: int
    plan_ns: int
    launch_ns: int
    device_ns: int
    read_ns: int
    gap_ns: int
    decodes: int
    chunks: int
    prefill_tokens: int
    tokens: int
    sampled: int
    wasted: int
    running: int
    waiting: int
    free: int
    preemptions: int
    queried_tokens: int
    hit_tokens: int
    graph: bool
    padding: int
    skew_ns: int = 0
    straggler: int = -1

    def part_ns(self, part: str) -> int:
        """One of PARTS."""
        return {
            "plan": self.plan_ns,
            "launch": self.launch_ns,
            "device": self.device_ns,
            "read": self.read_ns,
            "gap": self.gap_ns,
        }[part]

    @property
    def total_ns(self) -> int:
        """All parts; more than the interval where the host works while the device does."""
        return self.plan_ns + self.launch_ns + self.device_ns + self.read_ns + self.gap_ns


def step_lines(view: View) -> list[StepLine]:
    """The view's steps, oldest first."""
    last_read = max((row.planned.step for row in view.steps if row.finished is not None), default=0)
    return [_line(row, last_read) for row in view.steps]


def step_table(lines: Sequence[StepLine], view: View | None) -> Table:
    """Steps for an export: durations in seconds; `seconds` from the engine's start to the plan, and its time."""
    if view is None:
        return Table("steps", [field.name for field in fields(StepLine)], [])
    started = view.keyframe.started
    others = [field.name for field in fields(StepLine) if field.name not in ("step", "t")]
    told = len(others) if any(line.straggler >= 0 for line in lines) else others.index("skew_ns")  # ranks come last
    names = ["step", "seconds", *others[:told], "time"]
    rows = []
    for line in lines:
        step, t, *rest = astuple(line)
        rows.append([step, (t - started.t) / NS_PER_S, *rest[:told], iso(t, started.wall_offset_ns)])
    return in_seconds("steps", names, rows)


def _line(row: StepRow, last_read: int) -> StepLine:
    planned, finished = row.planned, row.finished
    prefill, skew = row.num_prefill_tokens, rank_skew(row.ranks) if row.ranks is not None else None
    return StepLine(
        step=planned.step,
        t=planned.t,
        kind=planned.kind,
        state="done" if finished else "failed" if planned.step < last_read else "in flight",
        interval_ns=row.interval_ns,
        plan_ns=finished.plan_ns if finished else 0,
        launch_ns=finished.launch_ns if finished else 0,
        device_ns=finished.device_ns if finished else 0,
        read_ns=max(0, finished.collect_ns - finished.wait_ns) if finished else 0,
        gap_ns=row.gap_ns,
        decodes=planned.decodes,
        chunks=len(planned.chunks),
        prefill_tokens=prefill,
        tokens=planned.decodes + prefill,
        sampled=finished.num_sampled - len(finished.wasted) if finished else 0,
        wasted=len(finished.wasted) if finished else 0,
        running=planned.running,
        waiting=planned.waiting,
        free=planned.free,
        preemptions=row.preemptions,
        queried_tokens=row.queried_tokens,
        hit_tokens=row.hit_tokens,
        graph=finished.graph if finished else False,
        padding=finished.padding if finished else 0,
        skew_ns=skew.spread_ns if skew else 0,
        straggler=skew.slowest if skew else -1,
    )


def decoding(row: StepRow, keyframe: Keyframe) -> list[int] | None:
    """Who computes one token in a step, by id; those that have ended since are left out.

    None where the state does not tell: it is known for the last planned step alone, so go to the step to see it.
    """
    planned = row.planned
    if planned.step != keyframe.step or not planned.decodes:
        return None if planned.decodes else []
    others = {seq for seq, _, _ in planned.chunks}.union(planned.idle)
    return [
        seq.seq for seq in keyframe.sequences
        if seq.status == "RUNNING" and seq.phase == "decode" and seq.seq not in others
    ]  # fmt: skip


def members(row: StepRow, view: View) -> list[str]:
    """Which sequences a step is about, in lines."""
    planned, finished = row.planned, row.finished
    lines = []
    if planned.chunks:
        chunks = [f"seq {seq} {start}+{count}" for seq, start, count in planned.chunks]
        lines.append("prefill: " + _list(chunks, ", ", SHOWN_CHUNKS))
    if planned.decodes:
        known = decoding(row, view.keyframe)
        who = "go to the step (enter) to see which" if known is None else _ids(known)
        lines.append(f"decode {planned.decodes}: {who}")
    if planned.idle:
        lines.append(f"idle: {_ids(planned.idle)}")
    if finished and finished.wasted:
        lines.append(f"thrown away: {_ids(finished.wasted)}")
    moves = [each.event for each in view.events if each.step == planned.step]
    admitted = [e.seq for e in moves if isinstance(e, StatusChanged) and e.new == "RUNNING"]
    if admitted:
        lines.append(f"admitted: {_ids(admitted)}")
    preempted = [f"seq {e.seq} for seq {e.by} ({e.cause})" for e in moves if isinstance(e, SequencePreempted)]
    if preempted:
        lines.append("preempted: " + _list(preempted, ", ", SHOWN_CHUNKS))
    return lines or [f"{plural(planned.running, 'sequence')} running, nothing computed: blocks move"]


def _ids(seqs: Sequence[int]) -> str:
    return ("seq " if len(seqs) == 1 else "seqs ") + _list([str(seq) for seq in seqs], " ", SHOWN_SEQUENCES)


def _list(words: Sequence[str], between: str, most: int) -> str:
    return between.join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def bar(line: StepLine, longest_ns: int, width: int) -> list[tuple[str, int]]:
    """The parts of a step as lengths of a bar, in the order of PARTS; together at most `width`.

    Args:
        line: the step.
        longest_ns: total of the step whose bar is `width` long.
        width: in characters.
    """
    if longest_ns <= 0 or width <= 0:
        return []
    found, done, drawn = [], 0, 0
    for part in PARTS:
        done += line.part_ns(part)
        end = min(width, round(done * width / longest_ns))
        if end > drawn:
            found.append((part, end - drawn))
            drawn = end
    return found
