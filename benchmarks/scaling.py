"""Prints runs of `nano-bench offline --json FILE` beside each other: what more ranks gave.

`python -P -m nanolens.benchmarks.scaling FILE...`; runs of one model and size count as one, the median one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from .report import table
from .stats import median

HEAD = ["model", "ranks", "runs", "output tokens/s", "x 1 rank", "floor s", "ratio", "in collectives", "device busy"]


def main(argv: list[str] | None = None) -> int:
    """Files to a table; files that can't be read are named. Returns 1 where none can."""
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for name in sys.argv[1:] if argv is None else argv:
        try:
            record = json.loads(Path(name).read_text(encoding="utf-8"))
            key = record["model"], record["floor"]["tensor_parallel_size"]
            groups.setdefault(key, []).append(record)
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"{name}: not a run that can be read: {error!r}", file=sys.stderr)
    if groups:
        print(table(HEAD, [_row(key, groups) for key in sorted(groups)]))
    return 0 if groups else 1


def _row(key: tuple[str, int], groups: dict[tuple[str, int], list[dict[str, Any]]]) -> list[str]:
    records = groups[key]
    alone = groups.get((key[0], 1))
    speed = _median(records, "output_tokens_per_s")
    ranks = records[-1]["result"]["ranks"]
    return [
        key[0],
        str(key[1]),
        str(len(records)),
        f"{speed:,.0f}",
        f"{speed / _median(alone, 'output_tokens_per_s'):.2f}" if alone else "-",
        f"{median([record['floor']['seconds'] for record in records]):.2f}",
        f"{median([record['floor']['ratio'] for record in records]):.2f}",
        f"{median([record['result']['ranks']['collective_share'] for record in records]):.1%}" if ranks else "-",
        f"{ranks['device_s'] / records[-1]['result']['elapsed_s']:.1%}" if ranks else "-",
    ]


def _median(records: list[dict[str, Any]], name: str) -> float:
    return median([record["result"][name] for record in records])


if __name__ == "__main__":
    sys.exit(main())
