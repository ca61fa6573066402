"""The table of lives that a journal tells: where each sequence's time went. Reads the journal, knows no engine."""

from __future__ import annotations

from pathlib import Path

from ..telemetry.lives import Life, Lives
from ..telemetry.reader import JournalReader
from .report import milliseconds, table

HEAD = ["sequence", "queued", "prefill", "decode", "preempted", "total ms", "blocks", "cached", "preemptions", "tokens"]


def read_lives(journal: str | Path) -> list[Life]:
    """The lives of a journal's last run, in order of arrival.

    Raises:
        JournalError: no journal there, or a damaged one.
    """
    lives = Lives()
    for frame in JournalReader(journal).frames():
        lives.apply_all(frame.events)
    return list(lives.lives.values())


def life_table(lives: list[Life]) -> str:
    """Times in milliseconds; blocks at their most, cached tokens of the prompt, output tokens."""
    rows = []
    for life in lives:
        parts = (life.queued_ns, life.prefill_ns, life.decode_ns, life.preempted_ns, life.lifetime_ns)
        counts = (life.peak_blocks, life.num_cached_tokens, life.num_preemptions, life.num_output_tokens)
        times = [milliseconds(each / 1e6) for each in parts]
        rows.append([f"{life.seq} {life.status} ({life.reason})", *times, *map(str, counts)])
    return table(HEAD, rows)
