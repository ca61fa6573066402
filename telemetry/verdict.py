"""Why a request took as long as it did, in sentences, from its parts and their culprits. Knows no terminal.

Parts with the same reason behind them count as one cause: who waits behind a sequence that waits for blocks, waits for
blocks. A cause other than the request's own work comes first where it takes at least NOTABLE of the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace

from .culprit import Culprit, time_words
from .culprits import HEAD_REASONS, CulpritFinder
from .ending import Ending, ending_of
from .latency import Breakdown, Latency
from .life_pieces import LifePiece, life_pieces
from .tracks import Track
from .verdict_words import Cause, advice, own_words, share_words, words

OWN = ("own", "running")  # causes that are nobody else's, or are not known to be
NOTABLE = 0.1  # of the time, for a headline that is not about the request's own work
MENTIONED = 0.03  # for a sentence
_CAUSES = {
    "queue_next_step": "next_step", "queue_no_blocks": "no_blocks", "queue_sequence_cap": "sequence_cap",
    "queue_token_budget": "token_budget", "queue_sibling_prefill": "sibling_prefill", "engine_paused": "engine_paused",
    "own_prefill": "own", "prefill_interference": "prefill_interference", "own_decode": "own", "batch_cost": "batch",
    "rank_skew": "rank_skew", "stalled_step": "stalled_step", "host_gap": "host", "preempted": "preemption",
    "recompute": "preemption", "swap": "swap", "paused": "paused", "back_pressure": "back_pressure",
    "unknown": "unknown", "queue_head_of_line": "head_of_line",
}  # fmt: skip
_BEHIND = {"holder": "no_blocks", "runner": "sequence_cap", "chunks": "token_budget", "decodes": "token_budget"}
_BESIDE = ("holder", "runner", "chunks", "prefill", "batch", "step", "preemptor", "lost")  # what a sibling can be
SIBLINGS = "its siblings"  # whom they are named by
_ALIVE = {  # what became of the engine -> what goes round the time of a request that has not ended
    "live": ("lives and has taken", ""),
    "dead": ("had taken", " when its engine died"),
    "stopped": ("had taken", " when its engine stopped"),
}
_LIMITS = {"sequence_cap": "max_num_seqs", "token_budget": "max_num_batched_tokens"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is said of a request.

    Attributes:
        headline: the first sentence.
        sentences: the others.
        causes: all, those that took most first, its own work among them.
        culprits: part -> who it was spent on.
        evidence: what it did when, in order.
        ending: how it ended.
    """

    headline: str
    sentences: tuple[str, ...]
    causes: tuple[Cause, ...]
    culprits: dict[str, list[Culprit]]
    evidence: tuple[LifePiece, ...]
    ending: Ending = field(default_factory=Ending)


def verdict(
    latency: Latency, breakdown: Breakdown, by: str = "e2e", finder: CulpritFinder | None = None, engine: str = "live"
) -> Verdict:
    """The verdict on one request.

    Args:
        latency: of its journal.
        breakdown: the request's.
        by: e2e, or ttft: on its time to the first token.
        finder: of that journal; None makes one.
        engine: what became of it at the journal's end: live, dead, stopped; anything else: that can't be seen.
    """
    finder = finder or CulpritFinder(latency)
    parts = breakdown.ttft_parts if by == "ttft" else breakdown.parts
    culprits = {part: found for part in parts if (found := finder.find(breakdown, part, by))}
    track = breakdown.first if by == "ttft" else breakdown.track
    until = track.first_token_t if by == "ttft" else breakdown.end_t
    limits = _limits(latency) | {"prefill_interference": finder.largest_chunk(track, until)}
    times = _times(parts, culprits, finder.behind_heads(track, until))
    behind = _culprits_of_causes(culprits, set(breakdown.request.seqs), track.seq)
    total = breakdown.ttft_ns if by == "ttft" else breakdown.total_ns
    causes = sorted(
        (Cause(name, ns, tuple(behind.get(name, ())), limits.get(name, 0)) for name, ns in times.items() if ns),
        key=lambda cause: -cause.ns,
    )
    own = _own_words(track, by, [cause.name for cause in _told(causes, total)])
    causes = [replace(cause, own=own) for cause in causes]
    evidence = tuple(life_pieces(latency, breakdown, until, track))
    ending = ending_of(breakdown)
    subject, since = _subject(breakdown, by, ending, engine)
    return Verdict(*sentences(subject, total, causes, since), tuple(causes), culprits, evidence, ending)


def sentences(subject: str, total: int, causes: list[Cause], since: str = "") -> tuple[str, tuple[str, ...]]:
    """The headline and the other sentences.

    Args:
        subject: `r took`.
        total: nanoseconds.
        causes: the heaviest first.
        since: what follows the time.
    """
    if not causes or not total:
        return f"{subject} no time at all{since}.", ()
    top, *others = _told(causes, total)
    headline = f"{subject} {time_words(total)}{since}: {_portion(top, total, ' of it')}."
    more = [
        own_words(cause, total) if cause.name == "own" else f"Another {_portion(cause, total, '')}."
        for cause in others
    ]
    helps = advice(top)
    if helps:
        more.append(f"What would help: {helps}.")
    return headline, tuple(more)


def _told(causes: list[Cause], total: int) -> list[Cause]:
    """The causes that have a sentence, in the order of these: the headline's, and the others that took enough."""
    if not causes or not total:
        return []
    top = next((cause for cause in causes if cause.name not in OWN and cause.ns >= NOTABLE * total), causes[0])
    return [top, *(cause for cause in causes if cause is not top and cause.ns >= MENTIONED * total)]


def _portion(cause: Cause, total: int, of: str) -> str:
    return f"{share_words(cause.ns, total)}{of} ({time_words(cause.ns)}) {words(cause)}"


def _limits(latency: Latency) -> dict[str, int]:
    """Cause -> the setting that made it, as this run had it."""
    started = latency.tracks.state.started
    config = started.config if started is not None else {}
    return {name: value for name, key in _LIMITS.items() if isinstance(value := config.get(key), int)}


def _subject(breakdown: Breakdown, by: str, ending: Ending, engine: str) -> tuple[str, str]:
    """What stands before the time in the headline, and what behind it."""
    name = breakdown.request.request
    if by == "ttft":
        return f"The first token of {name} took", ""
    if breakdown.track.is_end_lost:
        return f"{name}, whose end the journal lost, took at most", ""
    if breakdown.ended:
        return f"{name} {ending.verb}", ""
    verb, since = _ALIVE.get(engine, ("had taken", " at the journal's last record"))
    return f"{name} {verb}", since


def _times(
    parts: Mapping[str, int], culprits: Mapping[str, list[Culprit]], behind: Mapping[str, int]
) -> dict[str, int]:
    """Cause -> nanoseconds; together they are what the parts are."""
    found: dict[str, int] = {}

    def add(name: str, ns: int) -> None:
        found[name] = found.get(name, 0) + ns

    for part, ns in parts.items():
        left = ns
        if part == "queue_head_of_line":
            known = sum(behind.get(reason, 0) for reason in HEAD_REASONS)
            for reason in HEAD_REASONS if known else ():
                own = ns * behind.get(reason, 0) // known
                add(reason, own)
                left -= own
            if known:
                add(max(HEAD_REASONS, key=lambda reason: behind.get(reason, 0)), left)
                left = 0
        elif part == "own_prefill":
            evicted = sum(c.weight_ns for c in culprits.get(part, ()) if "evicted" in c.words)
            add("evicted", evicted)
            left -= evicted
        add(_CAUSES[part], left)
    return found


def _culprits_of_causes(culprits: Mapping[str, list[Culprit]], own: Set[int], seq: int) -> dict[str, list[Culprit]]:
    """Cause -> its culprits over all parts, one of a request, the heaviest first.

    Args:
        culprits: part -> its culprits.
        own: the request's sequences.
        seq: the one of them whose time it is.
    """
    grouped: dict[str, dict[tuple[str, str], list[Culprit]]] = {}
    for part, found in culprits.items():
        for culprit in found:
            cause = _CAUSES[part]
            if culprit.seq in own and culprit.kind == "sibling":
                culprit = replace(culprit, request="", words=f"seq {culprit.seq}")
            if part == "queue_head_of_line":
                cause = _BEHIND.get(culprit.kind, "")
            elif part == "own_prefill":
                cause = "evicted" if "evicted" in culprit.words else ""
            if culprit.seq in own and culprit.seq != seq and culprit.kind in _BESIDE:
                culprit = replace(culprit, request=SIBLINGS)
            if cause:
                key = culprit.request, "" if culprit.request else culprit.kind + culprit.words
                grouped.setdefault(cause, {}).setdefault(key, []).append(culprit)
    return {cause: sorted(map(_one, groups.values()), key=lambda c: -c.weight_ns) for cause, groups in grouped.items()}


def _one(same: list[Culprit]) -> Culprit:
    """Several of one request as one, with the words of the heaviest."""
    top = max(same, key=lambda culprit: culprit.weight_ns)
    return Culprit(top.kind, top.request, top.seq, sum(c.weight_ns for c in same), top.words, top.step)


def _own_words(track: Track, by: str, told: list[str]) -> str:
    """What a sequence did itself.

    Tokens that were evicted are a cause of their own. Where that was told before (`told`: the causes with a sentence,
    in order) they don't count again, otherwise they count here, so that no token computed goes untold.
    """
    computed, lost = track.num_prompt_computed, track.missed.get("evicted", 0)
    prompt = f"{computed} of {track.num_prompt_tokens} prompt tokens computed"
    if lost and "evicted" in told[: told.index("own") if "own" in told else None]:
        prompt = f"{max(0, computed - lost)} of {track.num_prompt_tokens} prompt tokens computed besides those"
    elif lost and computed:
        prompt += f" ({min(lost, computed)} of them had been cached and were evicted)"
    return prompt if by == "ttft" else f"{prompt}, {track.num_output_tokens} tokens generated"
