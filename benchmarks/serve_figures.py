"""Figures of a load: under the names of vLLM's serving benchmark, so that results compare, and as lines of text.

Knows answers, not how they were got.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidConfig
from .report import milliseconds, table
from .serve_load import Answer, LoadResult
from .stats import percentile

MEASURES = {"ttft": "time to first token", "tpot": "time per output token", "itl": "inter-token", "e2el": "end to end"}
PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True)
class Goals:
    """Service levels: the most milliseconds of a request's TTFT, TPOT and end-to-end latency; None: any.

    A request is good when it is whole and meets them all.
    """

    ttft: float | None = None
    tpot: float | None = None
    e2el: float | None = None

    @classmethod
    def parse(cls, pairs: Sequence[str]) -> Goals:
        """Of texts such as ttft:200.

        Raises:
            InvalidConfig: it names no measure, or no time.
        """
        given: dict[str, float] = {}
        for pair in pairs:
            name, _, text = pair.partition(":")
            try:
                value = float(text)
            except ValueError:
                value = math.nan
            if name not in ("ttft", "tpot", "e2el") or not 0.0 < value < math.inf:
                raise InvalidConfig(f"goodput={pair!r}: must be ttft:MS, tpot:MS or e2el:MS with milliseconds above 0")
            given[name] = value
        return cls(**given)

    @property
    def is_set(self) -> bool:
        """Whether there is any."""
        return self != Goals()

    def met_by(self, answer: Answer) -> bool:
        """Whether a request is good; one token has no TPOT, and meets any."""
        reached = ((self.ttft, answer.ttft_ms), (self.tpot, answer.tpot_ms), (self.e2el, answer.e2e_ms))
        return answer.is_complete and all(
            goal is None or value is None or value <= goal for goal, value in reached
        )


def figures(result: LoadResult, goals: Goals) -> dict[str, Any]:
    """Rates, percentiles and errors; values of whole answers, those of slow readers aside from latencies.

    Rates are over the time from the first sending to the last end. ITL is the time between two pieces of text as they
    reach the client: where a token completes no character, it comes with the next one.
    """
    whole = [answer for answer in result.answers if answer.is_complete]
    timed = [answer for answer in whole if not answer.ask.is_slow]
    failed = [answer for answer in result.answers if answer.is_error]
    seconds = result.elapsed_s or math.nan
    prompt_tokens = sum(answer.num_prompt_tokens for answer in whole)
    output_tokens = sum(answer.num_output_tokens for answer in whole)
    record: dict[str, Any] = {
        "duration": result.elapsed_s,
        "completed": len(whole),
        "failed": len(failed),
        "total_input_tokens": prompt_tokens,
        "total_output_tokens": output_tokens,
        "request_throughput": _rate(len(whole), seconds),
        "request_goodput": _rate(sum(map(goals.met_by, whole)), seconds) if goals.is_set else None,
        "output_throughput": _rate(output_tokens, seconds),
        "total_token_throughput": _rate(prompt_tokens + output_tokens, seconds),
        "max_concurrent_requests": result.peak,
    }
    values: dict[str, list[float | None]] = {
        "ttft": [answer.ttft_ms for answer in timed],
        "tpot": [answer.tpot_ms for answer in timed],
        "itl": [itl for answer in timed for itl in answer.itls_ms],
        "e2el": [answer.e2e_ms for answer in timed],
    }
    for name, many in values.items():
        record |= _spread(name, [value for value in many if value is not None])
    record["outcomes"] = dict(Counter(answer.outcome or "whole" for answer in result.answers))
    record["errors_by_kind"] = dict(Counter(answer.outcome for answer in failed))
    record["error_examples"] = {answer.outcome: f"{answer.request_id}: {answer.message}" for answer in failed[::-1]}
    return record


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if seconds > 0 else None


def _spread(name: str, values: list[float]) -> dict[str, float | None]:
    """Mean, median, standard deviation and percentiles; None throughout where there are no values."""
    keys = [f"{part}_{name}_ms" for part in ("mean", "median", "std", *(f"p{each}" for each in PERCENTILES), "max")]
    if not values:
        return dict.fromkeys(keys)
    ordered = sorted(values)
    mean = math.fsum(ordered) / len(ordered)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in ordered) / len(ordered))
    spread = [percentile(ordered, each) for each in PERCENTILES]
    return dict(zip(keys, [mean, spread[0], deviation, *spread, ordered[-1]], strict=True))


def figure_lines(record: dict[str, Any]) -> list[str]:
    """What `figures` gave."""
    rows = [
        [f"{words} ms", *(milliseconds(record[f"{part}_{name}_ms"]) for part in ("p50", "p90", "p99", "mean", "max"))]
        for name, words in MEASURES.items()
    ]
    outcomes = ", ".join(f"{many} {kind}" for kind, many in sorted(record["outcomes"].items(), key=lambda x: -x[1]))
    lines = [
        "",
        f"requests           {outcomes or 'none'}",
        f"seconds            {record['duration']:12,.2f}",
        f"requests/s         {_shown(record['request_throughput'])}",
    ]
    if record["request_goodput"] is not None:
        lines.append(f"good requests/s    {_shown(record['request_goodput'])}")
    lines += [
        f"output tokens/s    {_shown(record['output_throughput'])}",
        f"total tokens/s     {_shown(record['total_token_throughput'])}",
        f"open at most       {record['max_concurrent_requests']:12,}",
        "",
        table(["", "p50", "p90", "p99", "mean", "max"], rows),
    ]
    return lines + [f"error {kind}: {example}" for kind, example in record["error_examples"].items()]


def _shown(value: float | None) -> str:
    return "           -" if value is None else f"{value:12,.2f}"
