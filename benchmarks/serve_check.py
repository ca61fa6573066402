"""`nano-bench serve --check`: after a load, is everything as it was before? Streams, gauges, blocks, memory.

Knows the server's /metrics and /debug/snapshot, and answers; nothing of its inside.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..errors import InvalidConfig
from .serve_http import Broken, Target, fetch
from .serve_load import LEFT, Answer
from .serve_memory import MemoryWatch

SETTLING_S = 10.0  # how long gauges may take to come down
GAUGES = (
    "nanolens_sequences",
    "nanolens_waiting_sequences",
    "nanolens_preempted_waiting_sequences",
    'nanolens_kv_blocks{state="used"}',
    'nanolens_host_kv_blocks{state="used"}',
    'nanolens_disk_kv_blocks{state="used"}',
)


@dataclass(frozen=True)
class Finding:
    """One thing that was checked. `holds` is None where it could not be."""

    name: str
    holds: bool | None
    detail: str

    def line(self) -> str:
        """For people."""
        return f"{ {True: 'ok', False: 'FAILED', None: 'not checked'}[self.holds]:12}{self.name}: {self.detail}"


def check_streams(answers: Sequence[Answer], is_greedy: bool) -> list[Finding]:
    """No answer lost, none mixed with another's: ids are of one answer each, equal prompts have equal texts."""
    lost = [answer for answer in answers if answer.is_error]
    kinds = sorted({answer.outcome for answer in lost})
    unexpected = f"{len(lost)} of {len(answers)} requests ended in an error: {', '.join(kinds)}"
    findings = [Finding("every request has its end", not lost, unexpected if lost else f"{len(answers)} requests")]
    owners: dict[str, str] = {}
    twice = [
        f"{name} in {owners[name]} and {answer.request_id}"
        for answer in answers
        for name in answer.ids
        if owners.setdefault(name, answer.request_id) != answer.request_id
    ]
    findings.append(
        Finding("no id in two streams", not twice, twice[0] if twice else f"{len(owners)} ids of as many streams")
    )
    if not is_greedy:
        return [*findings, Finding("equal prompts, equal texts", None, "the temperature is not 0")]
    wrong, compared = differing(answers)
    detail = f"{compared} texts compared" + (f", {len(wrong)} differ: {', '.join(wrong[:3])}" if wrong else "")
    return [*findings, Finding("equal prompts, equal texts", not wrong if compared else None, detail)]


def differing(answers: Sequence[Answer]) -> tuple[list[str], int]:
    """Requests whose text is not that of the first whole answer to the same prompt (or a beginning of it, where the
    client left), and how many were compared.
    """
    known: dict[int, Answer] = {}
    for answer in answers:
        if answer.is_complete and answer.ask.key is not None:
            known.setdefault(answer.ask.key, answer)
    wrong, compared = [], 0
    for answer in answers:
        own = known.get(answer.ask.key) if answer.ask.key is not None else None
        if own is None or own is answer or not (answer.is_complete or answer.outcome == LEFT):
            continue
        compared += 1
        is_same = answer.text == own.text if answer.is_complete else own.text.startswith(answer.text)
        if not is_same:
            place = next((i for i, (a, b) in enumerate(zip(answer.text, own.text, strict=False)) if a != b), -1)
            wrong.append(f"{answer.request_id} from character {place} against {own.request_id}")
    return wrong, compared


async def check_server(target: Target, settling_s: float = SETTLING_S) -> list[Finding]:
    """The server's gauges and its snapshot, once they have come to rest or `settling_s` is over.

    Raises:
        InvalidConfig: the server can't be reached at all.
    """
    return [
        await _settled(target, "/metrics", "gauges are back at zero", _gauges, settling_s),
        await _settled(target, "/metrics", "every request that arrived has ended", _counts, settling_s),
        await _settled(target, "/debug/snapshot", "no sequence, no block held", _snapshot, settling_s),
        await _settled(target, "/health", "the server is healthy", lambda text: (True, "status 200"), 0.0),
    ]


async def _settled(
    target: Target, path: str, name: str, look: Callable[[str], tuple[bool, str]], settling_s: float
) -> Finding:
    """Ask until it holds."""
    deadline = time.monotonic() + settling_s
    while True:
        try:
            status, body = await fetch(target, path)
        except Broken as error:
            raise InvalidConfig(f"the check needs {path}: {error}") from error
        if status in (401, 403, 404):
            return Finding(name, None, f"{path} gives status {status}")
        if status != 200:
            holds, detail = False, f"{path} gives status {status}"
        else:
            holds, detail = look(body.decode("utf-8", "replace"))
        if holds or time.monotonic() >= deadline:
            return Finding(name, holds, detail)
        await asyncio.sleep(0.1)


def samples(text: str) -> dict[str, float]:
    """Series of a scrape in the text format -> value."""
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            try:
                found[series] = float(value)
            except ValueError:
                continue  # a line with a timestamp is none of ours
    return found


def _gauges(text: str) -> tuple[bool, str]:
    found = {name: value for name, value in samples(text).items() if name.startswith(GAUGES)}
    if not found:
        return False, "the scrape has none of them"
    above = [f"{name} {value:g}" for name, value in found.items() if value]
    return not above, ", ".join(above) or f"{len(found)} series"


def _counts(text: str) -> tuple[bool, str]:
    found = samples(text)
    arrived = found.get("nanolens_requests_arrived_total", 0.0)
    ended = {name: value for name, value in found.items() if name.startswith("nanolens_requests_total{") and value}
    by_reason = ", ".join(f"{value:g} {name.partition('=')[2].strip('}')}" for name, value in ended.items())
    return arrived == sum(ended.values()), f"{arrived:g} arrived; {by_reason or 'none ended'}"


def _snapshot(text: str) -> tuple[bool, str]:
    snapshot = json.loads(text)
    live = [key for key in ("sequences", "waiting", "running") if snapshot.get(key)]
    used = _used_blocks(snapshot)
    detail = ", ".join(f"{len(snapshot[key])} in {key}" for key in live) or "no sequence"
    return not live and not used, detail + (f", {used} blocks held" if used else ", no block held")


def _used_blocks(snapshot: dict[str, object]) -> int:
    """Blocks that sequences hold, wherever the snapshot says it."""
    blocks = snapshot.get("blocks")
    used = blocks.get("used", 0) if isinstance(blocks, dict) else 0
    return int(used) if isinstance(used, int | float) else len(used) if isinstance(used, list | dict) else 0


def check_memory(watch: MemoryWatch | None) -> Finding:
    """Whether the memory of the server's processes stayed as it was."""
    name = "memory is flat"
    if watch is None or not watch.pids:
        return Finding(name, None, "the server's processes are not on this machine, or another user's")
    growth = watch.growth
    if growth is None:
        return Finding(name, None, f"{len(watch.samples)} samples are too few: let it run longer")
    was, now = (size / (1 << 20) for size in growth)
    return Finding(name, watch.is_flat, f"{was:,.1f} MiB, then {now:,.1f} MiB in {len(watch.pids)} processes")
