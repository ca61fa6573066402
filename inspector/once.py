"""A view as text and as JSON, for `--once` and `--json`. Knows no source and writes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ..telemetry.rank_skew import rank_skew
from .clock_words import clock
from .figures import figures, tokens_per_second
from .sequence_rows import SequenceRow, sequence_rows, sequence_table
from .units import duration, printable
from .view import StepRow, View

VERSION = 1
NS = 1_000_000_000
STEPS = 20  # of the last ones, in JSON

_COLUMNS: tuple[tuple[str, bool, Callable[[SequenceRow], str]], ...] = (  # name, whether it stands right, text
    ("id", True, lambda row: str(row.seq)),
    ("request", False, lambda row: row.request),
    ("state", False, lambda row: row.state),
    ("phase", False, lambda row: row.phase),
    ("reason", False, lambda row: row.reason),
    ("age", True, lambda row: duration(row.age_ns)),
    ("priority", True, lambda row: str(row.priority)),
    ("prompt", True, lambda row: str(row.prompt)),
    ("cached", True, lambda row: str(row.cached)),
    ("computed", True, lambda row: str(row.computed)),
    ("output", True, lambda row: str(row.output)),
    ("blocks", True, lambda row: str(row.blocks)),
    ("residency", False, lambda row: row.residency),
    ("preemptions", True, lambda row: str(row.preemptions)),
    ("TTFT", True, lambda row: duration(row.ttft_ns)),
    ("ITL", True, lambda row: duration(row.itl_ns)),
)


def as_text(view: View, title: str) -> str:
    """What is looked at, the header's figures, and the live sequences; lines as long as they have to be.

    Args:
        view: the engine.
        title: of its source.
    """
    keyframe, started = view.keyframe, view.keyframe.started
    state = f"{view.status.state}: {view.status.message}" if view.status.message else view.status.state
    if view.stopped is not None:
        state = f"ended ({view.stopped.reason})"
    lines = [
        f"{title}: {state}",
        f"model {started.model}, run {started.run_id}, step {keyframe.step}, "
        f"{clock(view.now_t, started.wall_offset_ns, 3)}, up {duration(view.now_t - started.t)}",
        ", ".join(f"{figure.name} {figure.value}" for figure in figures(view)),
    ]
    if keyframe.engine_paused:
        lines.append(f"engine paused ({keyframe.engine_paused})")
    rows = sequence_rows(view)
    if rows:
        lines += ["", *_table(rows)]
    return "\n".join(printable(line) for line in lines) + "\n"


def as_json(view: View, title: str) -> dict[str, Any]:
    """The same, for programs; times in seconds.

    `sequences` has the columns of the Sequences view; the rest is named as in GET /debug/snapshot where that has it.
    """
    keyframe, started = view.keyframe, view.keyframe.started
    table = sequence_table(sequence_rows(view))
    references = Counter(block for seq in keyframe.sequences for block in seq.block_table if block >= 0)
    return {
        "version": VERSION,
        "source": {"title": title, "state": view.status.state, "message": view.status.message},
        "run": started.run_id,
        "model": started.model,
        "t": (view.now_t + started.wall_offset_ns) / NS,
        "uptime_s": (view.now_t - started.t) / NS,
        "step": keyframe.step,
        "engine_paused": keyframe.engine_paused,
        "stopped": view.stopped.reason if view.stopped else None,
        "counts": dict(Counter(seq.status for seq in keyframe.sequences)),
        "tokens_per_second": tokens_per_second(view),
        "sequences": [
            dict(zip(table.columns, row, strict=True)) | {"block_table": seq.block_table}
            for row, seq in zip(table.rows, keyframe.sequences, strict=True)
        ],
        "waiting": keyframe.waiting,
        "is_order_sure": view.is_order_sure,
        "running": keyframe.running,
        "blocks": {
            "block_size": started.block_size,
            "total": started.num_blocks,
            "free": len(keyframe.free_blocks),
            "held": len(references),
            "shared": sum(count > 1 for count in references.values()),
            "cached": len(keyframe.cached_blocks),
        },
        "totals": keyframe.totals,
        "steps": [_step(step) for step in view.steps[-STEPS:]],
    }


def _step(step: StepRow) -> dict[str, Any]:
    planned, finished = step.planned, step.finished
    done: dict[str, Any] = {}
    if finished is not None:
        names = ("plan", "launch", "device", "collect", "wait")
        done = {f"{name}_s": getattr(finished, f"{name}_ns") / NS for name in names}
        done |= {"num_tokens": finished.num_tokens, "num_sampled": finished.num_sampled, "wasted": finished.wasted}
        done |= {"interval_s": step.interval_ns / NS, "gap_s": step.gap_ns / NS}
    skew = rank_skew(step.ranks) if step.ranks is not None else None
    if step.ranks is not None and skew is not None:
        done["ranks"] = {
            "device_s": [ns / NS for ns in step.ranks.device_ns],
            "collective_s": [ns / NS for ns in step.ranks.collective_ns],
            "late_s": [ns / NS for ns in step.ranks.late_ns],
            "skew_s": skew.spread_ns / NS,
            "straggler": skew.slowest,
        }
    return {
        "step": planned.step,
        "kind": planned.kind,
        "decodes": planned.decodes,
        "num_prefill_tokens": step.num_prefill_tokens,
        "running": planned.running,
        "waiting": planned.waiting,
        "free": planned.free,
        "preemptions": step.preemptions,
        **done,
    }


def _table(rows: Sequence[SequenceRow]) -> list[str]:
    lines = [[name for name, _, _ in _COLUMNS], *([text(row) for _, _, text in _COLUMNS] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_COLUMNS))]
    return ["  ".join(_cells(line, widths)).rstrip() for line in lines]


def _cells(line: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [
        text.rjust(width) if right else text.ljust(width)
        for text, width, (_, right, _) in zip(line, widths, _COLUMNS, strict=True)
    ]
