"""Causes in words: how a verdict says who was waited for, and what would help. Works nothing out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .culprit import Culprit, time_words

TRY = "try nano-trace replay JOURNAL --set"
LEAST_CHUNK = 16  # tokens: shorter ones cost more steps than they spare
SHOWN = 2  # culprits named in a sentence
HOST = {
    "collect": "in what followed from the tokens before: callbacks, texts, the queues",
    "plan": "in planning",
    "launch": "in launching",
    "between": "outside the engine's step",
}


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason for which time went by, over all parts that it stands behind.

    Attributes:
        name: key of what `words` says.
        ns: nanoseconds.
        culprits: the heaviest first.
        limit: of the setting that was reached, or the tokens of the largest chunk; 0 where none is.
        own: what the request did itself, for the cause `own`.
    """

    name: str
    ns: int
    culprits: tuple[Culprit, ...] = ()
    limit: int = 0
    own: str = ""


def share_words(part: int, whole: int) -> str:
    """Per cent without decimals."""
    return f"{100 * part / whole:.0f}%" if whole else "0%"


def who(culprits: Sequence[Culprit], whole: int) -> str:
    """`a (60%), b (30%) and 3 more`: requests, and what share of the time is theirs; "" where it is nobody's."""
    named = [(culprit.request or culprit.words, culprit.weight_ns) for culprit in culprits if culprit.weight_ns]
    if not named:
        return ""
    if len(named) == 1 and named[0][1] > 0.995 * whole:
        return named[0][0]
    shown = [f"{name} ({share_words(ns, whole)})" for name, ns in named[:SHOWN] if ns >= 0.005 * whole]
    if not shown:
        return f"{len(named)} others"
    if len(named) > len(shown):
        return f"{', '.join(shown)} and {len(named) - len(shown)} more"
    return " and ".join(shown)


def words(cause: Cause) -> str:
    """What completes `60% of it (1.20 s) ...`."""
    by = who(cause.culprits, cause.ns)
    top = cause.culprits[0] if cause.culprits else None
    plain = _WAITS.get(cause.name)
    if plain is not None:
        begins, joins = plain
        limit = f" of {cause.limit}" if cause.limit else ""
        return begins.format(limit=limit) + (f"{joins}{by}" if by else "")
    if cause.name == "host":
        where = HOST.get(top.kind, "") if top else ""
        return f"with the device idle, the host {where}" + (f" ({_longest(top)})" if top else "")
    if cause.name == "rank_skew":
        ranks = who([replace(culprit, words=culprit.words.partition("; ")[0]) for culprit in cause.culprits], cause.ns)
        return f"waiting for the slowest rank: {ranks}" + (f" ({_longest(top)})" if top else "")
    if cause.name == "stalled_step":
        more = f", and {len(cause.culprits) - 1} more" if len(cause.culprits) > 1 else ""
        if top and top.kind == "failed":
            return f"in {top.words}{more}"
        return f"while the process or the machine stood still{f': {top.words}{more}' if top else ''}"
    if cause.name == "back_pressure":
        return f"waiting for its own reader, which {top.words if top else 'took the stream too slowly'}"
    if cause.name == "evicted":
        return f"computing prompt tokens that the cache had lost: {top.words if top else ''}"
    if cause.name == "preemption":
        return _preemption(cause)
    if cause.name == "swap":
        moves = f" ({top.words})" if top else ""
        return f"waiting for its KV to come back from the swap space{moves}"
    return f"for its own work: {cause.own}"


def own_words(cause: Cause, total: int) -> str:
    """The sentence about the request's own work."""
    return f"Its own work took {share_words(cause.ns, total)} ({time_words(cause.ns)}): {cause.own}."


def advice(cause: Cause) -> str:
    """What would help, or "" where no setting does."""
    if cause.name == "prefill_interference":
        shorter = cause.limit // 2
        return f"shorter chunks; {TRY} max_prefill_chunk={shorter}" if shorter >= LEAST_CHUNK else ""
    if cause.name == "preemption" and any("no_blocks" not in culprit.words for culprit in cause.culprits):
        return ""
    return _ADVICE.get(cause.name, "")


def _preemption(cause: Cause) -> str:
    """Holders hold, preemptors take a place; tokens that were lost by itself are nobody's."""
    top = cause.culprits[0] if cause.culprits else None
    if top is None:
        return "after it was preempted"
    if top.kind == "holder":
        held = [culprit for culprit in cause.culprits if culprit.kind == "holder"]
        return f"after it was preempted for want of blocks, held by {who(held, cause.ns)}"
    took = [culprit for culprit in cause.culprits if culprit.kind != "holder" and culprit.request]
    if top.kind == "lost" and not top.request:
        return f"computing again: {top.words}"
    return f"after it lost its place to {who(took, cause.ns) or 'itself'}: {top.words}"


def _longest(top: Culprit) -> str:
    return top.words.rpartition("; ")[2]


_WAITS: dict[str, tuple[str, str]] = {  # how it begins, and what joins it to those who caused it
    "no_blocks": ("waiting for free blocks", ", held by "),
    "sequence_cap": ("waiting for a place in the batch{limit} (max_num_seqs)", ", taken by "),
    "token_budget": ("waiting for room in the token budget{limit} of a step (max_num_batched_tokens)", ", taken by "),
    "next_step": ("waiting for the next step to be planned", ", behind "),
    "head_of_line": ("waiting behind others in the queue", ": "),
    "sibling_prefill": ("waiting for the sibling that computed the prompt they share", ": "),
    "engine_paused": ("while the engine was paused", ": "),
    "prefill_interference": ("stretched by the prefill of others in its steps", ": "),
    "batch": ("for sharing its steps with the decodes of others", ": "),
    "paused": ("paused", ": "),
    "running": ("running: its own work and what others added to it, which spans do not tell apart", ""),
    "unknown": ("in a time that the journal does not tell of", ": "),
}
_ADVICE: dict[str, str] = {
    "no_blocks": f"more blocks; {TRY} num_blocks=2x",
    "preemption": f"more blocks; {TRY} num_blocks=2x",
    "sequence_cap": f"more places; {TRY} max_num_seqs=2x",
    "token_budget": f"a larger budget; {TRY} max_num_batched_tokens=2x",
    "evicted": f"more blocks, which keep more prefixes; {TRY} num_blocks=2x",
}
