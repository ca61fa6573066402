"""Figures as lines of text. Knows no engine."""

from __future__ import annotations

from typing import Any

from .floor import Floor
from .ranks import RankFigures
from .runs import RunResult
from .stats import Distribution


def environment_lines(record: dict[str, Any]) -> list[str]:
    """Where it runs, from a record with `environment`, `dtype` and `device`."""
    env = record["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in env["versions"].items())
    where = env["gpu"] if record["device"].startswith("cuda") else f"{env['cpu']}, {env['threads']} threads"
    work = record["workload"]
    return [
        f"{record['dtype']} on {record['device']} ({where}); {versions}; commit {(env['commit'] or 'unknown')[:12]}",
        f"{work['requests']:,} requests, {work['prompt_tokens']:,} prompt and {work['output_tokens']:,} output tokens",
    ]


def result_lines(result: RunResult, floor: Floor) -> list[str]:
    """A run's figures."""
    work = result.work
    cached_share = work.num_cached_tokens / work.num_prompt_tokens
    itl = "inter-token ms" if result.itl_of == "tokens" else "mean inter-token ms of a request"
    lines = [
        "",
        f"output tokens/s    {result.output_tokens_per_s:12,.1f}",
        f"total tokens/s     {result.total_tokens_per_s:12,.1f}",
        f"requests/s         {result.requests_per_s:12,.2f}",
        f"seconds            {result.elapsed_s:12,.2f}",
        "",
        table(
            ["", "p50", "p90", "p99", "mean", "max"],
            [
                ["time to first token ms", *_cells(result.ttft_ms)],
                [itl, *_cells(result.itl_ms)],
                ["queued ms", *_cells(result.queue_ms)],
            ],
        ),
        "",
        f"steps              {work.num_steps:12,}",
        f"preemptions        {work.num_preemptions:12,}",
        f"cached tokens      {work.num_cached_tokens:12,} of {work.num_prompt_tokens:,} prompt ({cached_share:.1%})",
        f"floor / measured   {floor.seconds / result.elapsed_s:12.1%} floor {floor.seconds:,.2f} s, from "
        f"{floor.read_bytes_per_s / 1e9:,.0f} GB/s read and {floor.flops_per_s / 1e12:,.2f} TFLOP/s measured here",
    ]
    if floor.tensor_parallel_size > 1:
        lines.append(
            f"exchange           {floor.exchange_bytes / 1e9:12,.2f} GB to each of {floor.tensor_parallel_size} ranks: "
            f"{floor.exchange_seconds:,.3f} s at {floor.link_bytes_per_s / 1e9:,.0f} GB/s, not in the floor"
        )
    return lines + ([] if result.ranks is None else rank_lines(result.ranks, result.elapsed_s))


def rank_lines(ranks: RankFigures, elapsed_s: float) -> list[str]:
    """What the ranks of a split model did."""
    decode = ranks.decode
    return [
        f"in collectives     {ranks.collective_share:12.1%} of the steps' device time; {ranks.exchange_share:.1%} "
        "where each step counts the rank that waits least",
        f"decode step us     {microseconds(decode.device_us.p50):>12} p50 on the slowest rank, "
        f"{microseconds(decode.collective_us.p50)} in collectives; the ranks' skew is p50 "
        f"{microseconds(decode.skew_us.p50)}, p99 {microseconds(decode.skew_us.p99)}",
        f"device busy        {ranks.device_s / elapsed_s:12.1%} of the run, over {ranks.num_steps:,} steps",
    ]


def _cells(values: Distribution) -> list[str]:
    return [milliseconds(each) for each in (values.p50, values.p90, values.p99, values.mean, values.max)]


def microseconds(value: float | None) -> str:
    """A whole number, or "-"."""
    return "-" if value is None else f"{value:,.0f}"


def milliseconds(value: float | None) -> str:
    """Three digits that count, or "-"."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def table(head: list[str], rows: list[list[str]]) -> str:
    """Columns under their heads: the first to the left, the others to the right."""
    lines = [head, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(_joined(line, widths) for line in lines)


def _joined(cells: list[str], widths: list[int]) -> str:
    first, *rest = zip(cells, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]).rstrip()
