"""Who, or what, a part of a request's time was spent on: the requests that held blocks, whose prefill stretched a step.

Knows the latency model's parts and the tracks of its pass; says nothing about which part matters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from .culprit import HOST_WORDS, MISSES, Culprit, count_words, divided, merged, time_words
from .culprit_lives import Interval, LifeIndex, clip, joined
from .culprit_steps import Share, Stall, StepShares
from .latency import Breakdown, Latency
from .latency_tracks import Rest, Track

HEAD_REASONS = ("no_blocks", "sequence_cap", "token_budget")


class CulpritFinder:
    """Finds culprits for any number of requests of one journal."""

    def __init__(self, latency: Latency) -> None:
        self._latency, self._tracks = latency, latency.tracks
        self._lives = LifeIndex(latency.tracks)
        self._steps = StepShares(latency.tracks, latency.windows)

    def find(self, breakdown: Breakdown, part: str, by: str = "e2e") -> list[Culprit]:
        """The culprits of one part, those that weigh most first.

        Args:
            breakdown: the request's.
            part: of PARTS.
            by: e2e, or ttft: only what was before the first token.
        """
        parts = breakdown.ttft_parts if by == "ttft" else breakdown.parts
        total = parts.get(part, 0)
        look = _LOOKS.get(part)
        if not total or look is None:
            return []
        track = breakdown.first if by == "ttft" else breakdown.track
        until = track.first_token_t if by == "ttft" else breakdown.end_t
        found = look(self, track, part, total, min(until, track.failed_t) if track.failed else until)
        return sorted(found, key=lambda c: (c.kind == "head", -c.weight_ns))

    def behind_heads(self, track: Track, until: int) -> dict[str, int]:
        """What those waited for that a sequence stood behind: reason -> nanoseconds."""
        found: dict[str, int] = {}
        for begin, end, _, reason in self._lives.heads(self._rested(track, "queue_head_of_line", until), track.seq):
            found[reason] = found.get(reason, 0) + end - begin
        return found

    def largest_chunk(self, track: Track, until: int) -> int:
        """Tokens of the largest chunk of another sequence in the steps that it ran in; 0: there was none."""
        return self._steps.largest_chunk(self._steps.cover(self._ran(track, until)), track.seq)

    # Waits

    def for_reason(self, reason: str, track: Track, intervals: list[Interval], total: int) -> list[Culprit]:
        """Who is behind a wait for this reason within some times."""
        if reason == "no_blocks":
            held = self._lives.holders(intervals, track.seq)
            return self._shared("holder", held, total, lambda share: f"held {share:.0%} of the blocks in use")
        if reason == "sequence_cap":
            ran = self._lives.runners(intervals, track.seq)
            length = max(1, sum(end - begin for begin, end in intervals))
            slots = {seq: ns / length for seq, ns in ran.items()}
            return self._shared("runner", slots, total, lambda share: f"had {share:.0%} of the places in the batch")
        if reason == "token_budget":
            return self._budget(track, intervals, total)
        return self._pauses(track, reason, total, max((end for _, end in intervals), default=0))

    def _waited(self, track: Track, part: str, total: int, until: int) -> list[Culprit]:
        return self.for_reason(part.removeprefix("queue_"), track, self._rested(track, part, until), total)

    def _head_of_line(self, track: Track, part: str, total: int, until: int) -> list[Culprit]:
        rested = self._rested(track, part, until)
        heads = [head for head in self._lives.heads(rested, track.seq) if head[3] in HEAD_REASONS]
        found: list[Culprit] = []
        times = [joined((begin, end) for begin, end, _, why in heads if why == reason) for reason in HEAD_REASONS]
        weights = divided(total, [sum(end - begin for begin, end in of_reason) for of_reason in times])
        for reason, of_reason, weight in zip(HEAD_REASONS, times, weights, strict=True):
            if of_reason:
                found += self.for_reason(reason, track, of_reason, weight)
        stood: dict[int, float] = {}
        whys: dict[int, str] = {}
        for begin, end, seq, why in heads:
            stood[seq] = stood.get(seq, 0.0) + end - begin
            whys[seq] = why
        return found + [
            Culprit("head", self._request(seq), seq, weight, f"stood at the head ({whys[seq]})")
            for seq, weight in zip(stood, divided(total, [*stood.values()]), strict=True)
        ]

    def _budget(self, track: Track, intervals: list[Interval], total: int) -> list[Culprit]:
        shares, decodes = self._steps.budget(self._steps.cover(intervals))
        shares.pop(track.seq, None)
        tokens = sum(share.tokens for share in shares.values()) + decodes
        if not tokens:
            return []
        of_chunks, of_decodes = divided(total, [tokens - decodes, decodes])
        found = self._by_shares("chunks", shares, of_chunks, "chunks of")
        if decodes:
            found.append(Culprit("decodes", "", -1, of_decodes, count_words(decodes, "decode")))
        return found

    def _next_step(self, track: Track, part: str, total: int, until: int) -> list[Culprit]:
        cover = self._steps.cover(self._rested(track, part, until))
        if 2 * sum(stall.amount for stall in self._steps.stalls(cover)) > cover.device.sum():
            return _stood_still("step", self._steps.stalls(cover), total)
        found = self._by_shares("step", self._steps.prefills(cover, track.seq), total, "a step under way with")
        if not found and cover.device.sum():
            words = "a step of decodes was under way"
            found = [Culprit("step", "", -1, total, words, int(self._latency.windows.number[cover.rows[0]]))]
        return found

    def _sibling(self, track: Track, part: str, total: int, until: int) -> list[Culprit]:
        first = min(self._tracks.owners[track.seq].seqs)
        return [Culprit("sibling", track.request, first, total, "its sibling computed the prompt that they share")]

    def _pauses(self, track: Track, part: str, total: int, until: int) -> list[Culprit]:
        causes: dict[str, int] = {}
        for begin, end, cause in self._tracks.pauses:
            number = cause.removeprefix("breakpoint ")
            if number != cause and number.isdigit() and (predicate := self._tracks.predicates.get(int(number))):
                cause = f"{cause} ({predicate})"
            for since, to in clip([(begin, end or until)], track.known_t, until):
                causes[cause] = causes.get(cause, 0) + to - since
        weights = divided(total, [*causes.values()])
        return [Culprit("pause", "", -1, weight, cause) for cause, weight in zip(causes, weights, strict=True)]

    # Steps

    def _prefill(self, track: Track, part: str, total: int, until: int) -> list[Culprit]:
        shares = self._steps.prefills(self._steps.cover(self._ran(track, until)), track.seq)
        return self._by_shares("prefill", shares, total, "prefill of")

    def _batch(self, track: Track, part: str, total: int, until: int) -> list[Culprit]:
        ran = self._ran(track, until)
        others = [o for o in self._lives.alive(ran[0][0], ran[-1][1]) if o.seq != track.seq] if ran else []
        shares = self._steps.decodes(self._steps.cover(ran), others)
        return self._by_shares("batch", shares, total, "decoded")

    def _host(self, track: Track, part: str, total: int, until: int) -> list[Culprit]:
        shares = self._steps.host(self._steps.cover(self._ran(track, until)))
        weights = divided(total, [share.amount for share in shares.values()])
        found = []
        for (kind, share), weight in zip(shares.items(), weights, strict=True):
            longest = f"the longest before step {share.worst}: {time_words(round(share.worst_amount))}"
            found.append(Culprit(kind, "", -1, weight, f"{HOST_WORDS[kind]}; {longest}", share.worst))
        return found

    def _slow_ranks(self, track: Track, part: str, total: int, until: int) -> list[Culprit]:
        shares = self._steps.ranks(self._steps.cover(self._ran(track, until)))
        weights = divided(total, [share.amount for share in shares.values()])
        found = []
        for (rank, share), weight in zip(shares.items(), weights, strict=True):
            words = f"rank {rank}; the most in step {share.worst}: {time_words(round(share.worst_amount))}"
            found.append(Culprit(f"rank {rank}", "", -1, weight, words, share.worst))
        return found

    def _stalled(self, track: Track, part: str, total: int, until: int) -> list[Culprit]:
        ran = self._ran(track, until)
        found = self._steps.stalls(self._steps.cover(ran))
        rest = total - sum(stall.amount for stall in found)
        if track.failed is not None and until == track.failed_t and rest > 0:
            words = f"step {track.failed.step}, which failed: {track.failed.reason}"
            found.append(Stall(track.failed.step, rest, words, has_failed=True))
        return _stood_still("stall", found, total)

    # Preemptions, moves, pauses

    def _preempted(self, track: Track, part: str, total: int, until: int) -> list[Culprit]:
        """Each wait after a preemption is the preemptor's; where it was the last one, that of those who held blocks."""
        waits = [(r.begin_t, r.end_t) for r in self._rests(track, part)]
        waits = clip(waits, track.arrived_t, until)
        found: list[Culprit] = []
        followed = [*(e.t for e in track.preemptions[1:]), until]
        after = [clip(waits, e.t, following) for e, following in zip(track.preemptions, followed, strict=False)]
        lengths = [sum(end - begin for begin, end in own) for own in after]
        told = total * sum(lengths) // max(1, sum(end - begin for begin, end in waits))  # a gap may hide preemptions
        for e, own, weight in zip(track.preemptions, after, divided(told, lengths), strict=True):
            if not weight:
                continue
            if e.by == track.seq:
                found += self.for_reason("no_blocks", track, joined(own), weight)
            else:
                tokens = count_words(e.num_tokens, "computed token")
                lost = f"{count_words(e.num_blocks, 'block')} and {tokens} lost in step {e.step}"
                found.append(Culprit("preemptor", self._request(e.by), e.by, weight, f"{e.cause}, {lost}", e.step))
        return merged(found)

    def _recomputed(self, track: Track, part: str, total: int, until: int) -> list[Culprit]:
        lost = [e for e in track.preemptions if e.num_tokens and e.t <= until]
        if not lost:
            return [Culprit("lost", "", -1, total, "its KV was given up while it did not run")]
        return merged([
            Culprit(
                "lost", self._request(e.by) if e.by != track.seq else "", e.by, weight,
                f"{count_words(e.num_tokens, 'computed token')} lost in step {e.step} ({e.cause})", e.step,
            )
            for e, weight in zip(lost, divided(total, [e.num_tokens for e in lost]), strict=True)
        ])  # fmt: skip

    def _moved(self, track: Track, part: str, total: int, until: int) -> list[Culprit]:
        waits = clip(((r.begin_t, r.end_t) for r in self._rests(track, part)), track.arrived_t, until)
        moves = [e for e in track.swaps if any(begin <= e.t <= end for begin, end in waits)]
        return [
            Culprit("move", "", -1, weight,
                    f"move {e.move} of {e.num_bytes / (1 << 20):.2f} MiB took {e.duration_ns / 1e6:.2f} ms"
                    + (f" and failed: {e.error}" if e.error else ""), e.step)
            for e, weight in zip(moves, divided(total, [e.duration_ns for e in moves]), strict=True)
        ]  # fmt: skip

    def _own_rest(self, track: Track, part: str, total: int, until: int) -> list[Culprit]:
        reasons: dict[str, int] = {}
        for rest in self._rests(track, part):
            for begin, end in clip([(rest.begin_t, rest.end_t)], track.arrived_t, until):
                reasons[rest.reason] = reasons.get(rest.reason, 0) + end - begin
        weights = divided(total, [*reasons.values()])
        return [Culprit("rest", "", -1, weight, reason) for reason, weight in zip(reasons, weights, strict=True)]

    def _reader(self, track: Track, part: str, total: int, until: int) -> list[Culprit]:
        stalls = self._tracks.owners[track.seq].stalls
        held = sum(ns for _, ns in stalls)
        times = "once" if len(stalls) == 1 else f"{len(stalls)} times"
        words = f"held its stream up {times}, for {held / 1e9:.2f} s in all"
        return [Culprit("reader", track.request, -1, total, words)]

    def _misses(self, track: Track, part: str, total: int, until: int) -> list[Culprit]:
        e, missed = track.matched, track.missed
        if e is None:
            return []
        weights = divided(total, [missed[name] for name, _ in MISSES])
        return [
            Culprit("miss", "", -1, weight, f"{count_words(missed[name], 'token')} {words}", e.step)
            for (name, words), weight in zip(MISSES, weights, strict=True)
            if missed[name]
        ]

    def _gap(self, track: Track, part: str, total: int, until: int) -> list[Culprit]:
        words = "the journal begins later" if track.known_t > track.arrived_t else "the journal lost what happened"
        return [Culprit("gap", "", -1, total, words)]

    # Common

    def _request(self, seq: int) -> str:
        track = self._tracks.tracks.get(seq)
        return track.request if track is not None else ""

    def _rests(self, track: Track, part: str) -> Iterable[Rest]:
        return (rest for rest in track.rests if rest.part == part)

    def _rested(self, track: Track, part: str, until: int) -> list[Interval]:
        return joined(clip(((r.begin_t, r.end_t or until) for r in self._rests(track, part)), track.arrived_t, until))

    def _ran(self, track: Track, until: int) -> list[Interval]:
        return clip(((run.begin_t, run.end_t or until) for run in track.runs), track.arrived_t, until)

    def _by_request(self, amounts: Mapping[int, float]) -> dict[str, list[int]]:
        """Request -> its sequences, the one that weighs most first."""
        found: dict[str, list[int]] = {}
        for seq in sorted(amounts, key=lambda seq: -amounts[seq]):
            found.setdefault(self._request(seq), []).append(seq)
        return found

    def _shared(
        self, kind: str, amounts: Mapping[int, float], total: int, words: Callable[[float], str]
    ) -> list[Culprit]:
        """Culprits of a part that is divided in proportion to amounts."""
        whole, groups = sum(amounts.values()), self._by_request(amounts)
        sums = [sum(amounts[seq] for seq in seqs) for seqs in groups.values()]
        return [
            Culprit(kind, request, seqs[0], weight, words(amount / whole))
            for (request, seqs), amount, weight in zip(groups.items(), sums, divided(total, sums), strict=True)
            if amount
        ]

    def _by_shares(self, kind: str, shares: Mapping[int, Share], total: int, what: str) -> list[Culprit]:
        found = []
        groups = self._by_request({seq: share.amount for seq, share in shares.items()})
        sums = [sum(shares[seq].amount for seq in seqs) for seqs in groups.values()]
        for (request, seqs), amount, weight in zip(groups.items(), sums, divided(total, sums), strict=True):
            own = [shares[seq] for seq in seqs]
            if amount:
                tokens = sum(share.tokens for share in own)
                first, last = min(share.first for share in own), max(share.last for share in own)
                steps = f"step {first}" if first == last else f"steps {first} to {last}"
                words = f"{what} {count_words(tokens, 'token')}, {steps}"
                found.append(Culprit(kind, request, seqs[0], weight, words, own[0].worst))
        return found


def culprits(latency: Latency, breakdown: Breakdown, part: str, by: str = "e2e") -> list[Culprit]:
    """As CulpritFinder.find, for one question; who has several makes one finder."""
    return CulpritFinder(latency).find(breakdown, part, by)


def _stood_still(kind: str, found: list[Stall], total: int) -> list[Culprit]:
    """Step by step, what stood still."""
    weights = divided(total, [stall.amount for stall in found])
    return [
        Culprit("failed" if stall.has_failed else kind, "", -1, weight, stall.words, stall.step)
        for stall, weight in zip(found, weights, strict=True)
    ]


_Look = Callable[[CulpritFinder, Track, str, int, int], list[Culprit]]
_LOOKS: dict[str, _Look] = {
    "queue_next_step": CulpritFinder._next_step,
    "queue_no_blocks": CulpritFinder._waited,
    "queue_sequence_cap": CulpritFinder._waited,
    "queue_token_budget": CulpritFinder._waited,
    "queue_head_of_line": CulpritFinder._head_of_line,
    "queue_sibling_prefill": CulpritFinder._sibling,
    "engine_paused": CulpritFinder._pauses,
    "own_prefill": CulpritFinder._misses,
    "prefill_interference": CulpritFinder._prefill,
    "batch_cost": CulpritFinder._batch,
    "rank_skew": CulpritFinder._slow_ranks,
    "stalled_step": CulpritFinder._stalled,
    "host_gap": CulpritFinder._host,
    "preempted": CulpritFinder._preempted,
    "recompute": CulpritFinder._recomputed,
    "swap": CulpritFinder._moved,
    "paused": CulpritFinder._own_rest,
    "back_pressure": CulpritFinder._reader,
    "unknown": CulpritFinder._gap,
}
