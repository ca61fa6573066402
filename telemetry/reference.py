"""Writes docs/telemetry.md from the code: every event, metric, span and attribute. `--check` finds where it drifted.

Knows the declarations alone: events.py (its comments too), metric_families.py, span_names.py.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from difflib import unified_diff
from pathlib import Path
from typing import get_args

from . import events, metric_families
from .event_fields import tag_of
from .metric_families import ANY, COUNTERS, GAUGES, HISTOGRAMS, Family
from .span_names import ATTRIBUTES, LINKS, NOTES, SPANS

TARGET = Path(__file__).resolve().parents[1] / "docs" / "telemetry.md"
COMMAND = "python -m nanolens.telemetry.reference"

HEAD = f"""\
# Telemetry

What the engine records, and what is made of it. This page is generated from the code: change that, then run
`{COMMAND}`.

- [Events](#events): the journal's vocabulary.
- [Metrics](#metrics): what a Prometheus scrape of the exporter holds.
- [Spans](#spans): what an OpenTelemetry backend receives.
"""

EVENTS_HEAD = """\
## Events

The journal (`journal="DIR"`) is a sequence of these; `nano-trace tail DIR` shows them, `--json` as objects with these
fields. `t` is CLOCK_MONOTONIC in nanoseconds, `step` the number of the step that was being planned or read, `seq` a
sequence's id, `request` a request's. A default stands for fields that an older journal does not have. In objects
`event` is the event's name; what a field of that name holds is `hit`.
"""

METRICS_HEAD = """\
## Metrics

Served by the exporter (`nano-trace export JOURNAL --metrics-port 9400`, or `LLM(..., metrics_port=9400)`) at
`/metrics`: in the classic text format, or as OpenMetrics, with exemplars, to a scraper that asks for it. Everything
is a projection of the journal, so it costs the engine nothing, and gauges and counters are exact.

- **Known label values are there from the first scrape**, with 0, so that `rate()` works from the start. No label
  holds a request's id, or any other text that a client chose.
- **Gauges** are read from the engine's state when a scrape comes. Once the engine has stopped, or its process is
  gone, `nanolens_engine_up` is 0 and so are the gauges of sequences and blocks.
- **Counters** are those of the run, wherever the exporter joined it: the journal's keyframes carry them. After a gap
  in the journal they go on from the next keyframe and never fall. A new run starts them anew, as any restarted
  process.
- **Histograms** hold what the exporter saw. They sum whole nanoseconds, so sums are exact.
- **A request is observed once**, when it ends, however many sequences it has (n > 1): its times are those of the
  sequence that ends last, so `queue`, `prefill`, `decode`, `preempted` and `paused` add up to `request_seconds`. Time
  that a swapped sequence waits for its blocks is part of `queue` or `preempted`. Its first token is the first of any
  of its sequences, and counts once, from arrival. A request that was under way when the exporter joined is counted
  but has no parts observed.
- **inter_token_seconds** has one value for each token but a sequence's first, n > 1 or not, without an event for
  each: a step gives every sequence that sampled in it one interval.
- **A recompute is never a prefix hit**: what a preempted sequence finds in the cache again is in `refound_tokens`.
"""

SPANS_HEAD = """\
## Spans

One trace for each request. Ids are worked out from the journal: exporting it twice gives the same spans.
"""


def reference() -> str:
    """The whole page."""
    parts = [HEAD, EVENTS_HEAD, *_events(), METRICS_HEAD, *_metrics(), SPANS_HEAD, *_spans()]
    return "\n".join(parts)


def _events() -> Iterator[str]:
    source = _Source(inspect.getsource(events))
    for kind in get_args(events.AnyEvent):
        yield f"### `{tag_of(kind)}`\n\n{source.described(kind.__name__)}"
    yield "### Sequences in a keyframe\n\n" + source.described(events.SequenceSnapshot.__name__)


class _Source:
    """The source of events.py: a struct's fields with their types and comments, which objects don't keep."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()
        self._classes = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}

    def described(self, name: str) -> str:
        """A struct's docstring and a list of its fields."""
        node = self._classes[name]
        fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
        return f"{ast.get_docstring(node)}\n\n" + "".join(map(self._field, fields))

    def _field(self, node: ast.AnnAssign) -> str:
        kind = re.sub(r"Union\[([^\[\]]*)\]", lambda found: found[1].replace(", ", " | "), ast.unparse(node.annotation))
        default = f" = {ast.unparse(node.value)}" if node.value is not None else ""
        rest_of_line = self._lines[(node.end_lineno or node.lineno) - 1][node.end_col_offset or 0 :]
        comment = rest_of_line.partition("#")[2].strip()
        return f"- `{ast.unparse(node.target)}: {kind}{default}`{': ' + comment if comment else ''}\n"


def _metrics() -> Iterator[str]:
    for title, families in (("Gauges", GAUGES), ("Counters", COUNTERS), ("Histograms", HISTOGRAMS)):
        yield f"### {title}\n\n{_table(('metric', 'labels', 'unit', 'what it tells'), map(_row, families))}"
    own = {family.name: family.buckets for family in HISTOGRAMS if family.buckets != metric_families.LATENCY_BUCKETS}
    lines = [f"- those in seconds that are not named here: {_bounds(metric_families.LATENCY_BUCKETS)}; settable"]
    lines += [f"- `{name}`: {_bounds(bounds)}" for name, bounds in own.items()]
    with_exemplars = ", ".join(f"`{family.name}`" for family in HISTOGRAMS if family.has_exemplars)
    yield "Upper bounds of the buckets, besides +Inf:\n\n" + "\n".join(lines) + "\n"
    yield f"With exemplars (`trace_id`) in OpenMetrics: {with_exemplars}.\n"


def _row(family: Family) -> tuple[str, ...]:
    labels = [
        f"`{name}`: {', '.join(values) if values != ANY else 'of the run'}" for name, values in family.labels.items()
    ]
    return f"`{family.name}`", "; ".join(labels), family.unit, family.help


def _bounds(bounds: Sequence[float]) -> str:
    return ", ".join(f"{bound:g}" for bound in bounds)


def _spans() -> Iterator[str]:
    tables: tuple[tuple[str, Mapping[str, str]], ...] = (
        ("Span", SPANS), ("Link", LINKS), ("Span event", NOTES), ("Attribute", ATTRIBUTES),
    )  # fmt: skip
    for title, names in tables:
        rows = ((f"`{name}`", meaning) for name, meaning in names.items())
        yield f"### {title}s\n\n{_table((title.lower(), 'what it is'), rows)}"


def _table(head: Sequence[str], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, or check it.

    Returns:
        The exit status: 1 where `--check` finds another page than the code gives.
    """
    parser = argparse.ArgumentParser(prog=COMMAND, description="Write docs/telemetry.md from the code.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 and show how the page differs")
    parser.add_argument("--file", type=Path, default=TARGET, help="the page, where it is not the repository's")
    options = parser.parse_args(arguments)
    text = reference()
    if not options.check:
        options.file.write_text(text, encoding="utf-8")
        return 0
    found = options.file.read_text(encoding="utf-8") if options.file.exists() else ""
    if found == text:
        return 0
    lines = (found.splitlines(True), text.splitlines(True))
    sys.stderr.writelines(unified_diff(*lines, str(options.file), "the code", n=1))
    sys.stderr.write(f"{options.file} is not what the code says: run `{COMMAND}`\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
