"""Traces as requests: Azure's CSV of lengths, Mooncake's JSON lines with prefix identities, MT-bench's questions.

Knows the files' formats. Requests come without their times, which `read_times` has: offline everything arrives at once.
"""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from ..errors import InvalidConfig

Lengths = tuple[int, int]
Request = tuple[list[int], int]  # prompt, output tokens
Numbered = tuple[int, dict[str, Any]]  # a line's number and its object

MOONCAKE_BLOCK = 512  # tokens that one of its hash ids stands for
AZURE_COLUMNS = ("ContextTokens", "GeneratedTokens")


def read_trace(
    path: Path,
    limit: int | None,
    scale: float,
    output_len: Lengths,
    rng: random.Random,
    vocab_size: int,
    chat: Callable[[list[dict[str, str]]], list[int]],
) -> tuple[list[Request], bool]:
    """Read a trace in the format that its content shows.

    Args:
        path: a CSV with ContextTokens and GeneratedTokens; JSON lines with input_length, output_length and hash_ids,
            or with turns (the first one is asked).
        limit: rows at most.
        scale: factor on the lengths.
        output_len: least and most output tokens where the trace holds none.
        rng: draws ids and lengths.
        vocab_size: ids stay below it.
        chat: turns a conversation into token ids.

    Returns:
        The requests, and whether `scale` is in them already.

    Raises:
        InvalidConfig: the file can't be read, or a line of it is none of these.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            if path.suffix == ".csv":
                found = list(islice(_azure(path, csv.DictReader(file), scale, rng, vocab_size), limit))
                scaled = True
            else:
                rows = list(islice(json_lines(path, file), limit))
                scaled = _has_hash_ids(path, rows)
                if scaled:
                    found = [_mooncake(path, row, scale, vocab_size) for row in rows]
                else:
                    found = [_question(path, row, output_len, rng, chat) for row in rows]
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"trace {path}: can't be read: {error}") from error
    if not found:
        raise InvalidConfig(f"trace {path}: it holds no requests")
    return found, scaled


def read_times(path: Path, limit: int | None) -> list[float] | None:
    """When each request of a trace arrived: seconds after the first, rising; None where the trace holds no times.

    Raises:
        InvalidConfig: the file can't be read, or a time of it is none.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            if path.suffix == ".csv":
                rows = enumerate(csv.DictReader(file), 2)
                found = [(number, row.get("TIMESTAMP")) for number, row in islice(rows, limit)]
            else:
                found = [(number, row.get("timestamp")) for number, row in islice(json_lines(path, file), limit)]
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"trace {path}: can't be read: {error}") from error
    if not found or found[0][1] is None:
        return None
    times = sorted(_seconds(f"trace {path}, line {number}", value) for number, value in found)
    return [time - times[0] for time in times]


def _seconds(where: str, value: Any) -> float:
    """Of a date and time (Azure), or of milliseconds (Mooncake)."""
    try:
        return datetime.fromisoformat(value).timestamp() if isinstance(value, str) else float(value) / 1e3
    except (TypeError, ValueError):
        raise InvalidConfig(f"{where}: {value!r} is no time: a date and time, or milliseconds") from None


def _has_hash_ids(path: Path, rows: list[Numbered]) -> bool:
    """Whether the lines are Mooncake's; False: they are MT-bench's."""
    first = rows[0][1] if rows else {"turns": []}
    if "hash_ids" in first or "turns" in first:
        return "hash_ids" in first
    raise InvalidConfig(
        f"trace {path}: its lines hold {', '.join(first) or 'nothing'}; known are lines with hash_ids (Mooncake) or "
        "turns (MT-bench), and .csv files with ContextTokens (Azure)"
    )


def json_lines(path: Path, file: Iterator[str]) -> Iterator[Numbered]:
    """(line number, object) of each line that is not blank."""
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InvalidConfig(f"trace {path}, line {number}: no JSON ({error})") from error
        if not isinstance(row, dict):
            raise InvalidConfig(f"trace {path}, line {number}: must be a JSON object")
        yield number, row


def _azure(
    path: Path, rows: csv.DictReader[str], scale: float, rng: random.Random, vocab_size: int
) -> Iterator[Request]:
    """Lengths alone: the ids are drawn."""
    missing = [name for name in AZURE_COLUMNS if name not in (rows.fieldnames or ())]
    if missing:
        raise InvalidConfig(f"trace {path}: no column {missing[0]}; needed are {', '.join(AZURE_COLUMNS)}")
    for row in rows:
        where = f"trace {path}, line {rows.line_num}"
        num_prompt, num_output = (_length(where, name, row[name], scale) for name in AZURE_COLUMNS)
        yield [rng.randrange(vocab_size) for _ in range(num_prompt)], num_output


def _mooncake(path: Path, numbered: Numbered, scale: float, vocab_size: int) -> Request:
    """Equal hash ids give equal blocks of ids; the ids of a block depend on its hash id alone."""
    number, row = numbered
    where = f"trace {path}, line {number}"
    num_prompt = _length(where, "input_length", row.get("input_length"), scale)
    num_output = _length(where, "output_length", row.get("output_length"), scale)
    hash_ids, block = row.get("hash_ids"), max(1, round(MOONCAKE_BLOCK * scale))
    if not isinstance(hash_ids, list):
        raise InvalidConfig(f"{where}: hash_ids must be a list")
    # Rounding may leave the last block's worth of ids uncovered, or need less than all blocks.
    prompt: list[int] = []
    for hash_id in hash_ids:
        if len(prompt) >= num_prompt:
            break
        draw = random.Random(f"block {hash_id}")
        prompt += [draw.randrange(vocab_size) for _ in range(block)]
    draw = random.Random(f"rest of {number}")
    prompt += [draw.randrange(vocab_size) for _ in range(num_prompt - len(prompt))]
    return prompt[:num_prompt], num_output


def _question(
    path: Path,
    numbered: Numbered,
    output_len: Lengths,
    rng: random.Random,
    chat: Callable[[list[dict[str, str]]], list[int]],
) -> Request:
    """The first turn of a conversation, under the model's chat template."""
    number, row = numbered
    turns = row.get("turns")
    if not isinstance(turns, list) or not turns or not isinstance(turns[0], str):
        raise InvalidConfig(f"trace {path}, line {number}: turns must be a list of texts")
    return chat([{"role": "user", "content": turns[0]}]), rng.randint(*output_len)


def _length(where: str, name: str, value: Any, scale: float) -> int:
    """A scaled length of at least one token."""
    try:
        length = int(value)
    except (TypeError, ValueError):
        raise InvalidConfig(f"{where}: {name}={value!r} must be a whole number") from None
    return scaled_length(length, scale)


def scaled_length(length: int, scale: float) -> int:
    """Rounded down, so that full blocks stay full blocks and others don't become so; at least one."""
    return max(1, math.floor(length * scale + 1e-9))
