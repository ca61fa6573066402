"""The block manager: the free list, sharing, what a miss is, and the audit."""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from fake_engine import Clock
from nanolens.engine.block_manager import BlockManager
from nanolens.engine.prefix_cache import CachedContent, PrefixMatch
from nanolens.engine.sampling_params import SamplingParams
from nanolens.engine.sequence import Sequence
from nanolens.errors import AuditError, OutOfBlocks
from nanolens.telemetry.events import AnyEvent, BlocksAllocated, BlocksCached, BlocksFreed, PrefixMatched

SIZE = 4


class Pool(BlockManager):
    """A pool that keeps its events, and the sequences made for it."""

    def __init__(self, num_blocks: int, block_size: int = SIZE, **options: Any) -> None:
        self.events: list[AnyEvent] = []
        super().__init__(num_blocks, block_size, self.events.append, Clock(), **options)
        self._ids = count()

    def sequence(self, tokens: list[int], **params: Any) -> Sequence:
        """A sequence that is not in the pool yet."""
        own = SamplingParams(**params)
        return Sequence(next(self._ids), "r", tokens, own, 0, 0, lambda event: None, Clock(), 10**6)

    def hold(self, tokens: list[int]) -> tuple[Sequence, PrefixMatch]:
        """A sequence with its blocks, none of them computed."""
        seq = self.sequence(tokens)
        match = self.match(seq)
        self.admit(seq, match, 1)
        return seq, match

    def computed(self, tokens: list[int]) -> Sequence:
        """A sequence with its blocks, all of its tokens computed."""
        seq, _ = self.hold(tokens)
        self.register(seq, len(tokens), 1)
        return seq

    def forget(self, tokens: list[int]) -> list[int]:
        """Compute and release a prompt; the blocks that it had."""
        seq = self.computed(tokens)
        table = list(seq.block_table)
        self.release(seq, 1)
        return table

    def hit(self, tokens: list[int]) -> int:
        """Tokens of a prompt that would be found."""
        return self.match(self.sequence(tokens)).hit

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def tokens_of(first: int, number: int) -> list[int]:
    return list(range(first, first + number))


# The free list


def test_the_block_released_first_is_reused_first() -> None:
    pool = Pool(4)
    a, b = pool.hold(tokens_of(0, 4))[0], pool.hold(tokens_of(10, 4))[0]
    first, second = b.block_table[0], a.block_table[0]
    pool.release(b, 1)
    pool.release(a, 1)
    assert list(pool.free) == [2, 3, first, second]
    assert pool.hold(tokens_of(20, 15))[0].block_table == [2, 3, first, second]


def test_a_table_is_released_tail_first() -> None:
    pool = Pool(4)
    seq = pool.computed(tokens_of(0, 12))
    assert seq.block_table == [0, 1, 2]
    pool.release(seq, 5)
    assert list(pool.free) == [3, 2, 1, 0]
    assert seq.block_table == [] and pool.of(BlocksFreed)[-1].blocks == [2, 1, 0]
    assert pool.of(BlocksFreed)[-1].free == 4


def test_a_hit_revives_a_free_block_from_the_middle_of_the_list() -> None:
    pool = Pool(6)
    [block, *_] = pool.forget(tokens_of(0, 5))
    pool.forget(tokens_of(50, 4))
    assert block in pool.free and list(pool.free)[-1] != block
    revived, match = pool.hold(tokens_of(0, 5))
    assert match.blocks == [block] == revived.block_table[:1]
    assert block not in pool.free and pool.refs[block] == 1
    pool.audit([revived])


def test_reviving_a_block_touches_nothing_else_of_the_free_list() -> None:
    class Counted(type(Pool(1).free)):  # type: ignore[misc]
        operations = 0

        def __delitem__(self, key: int) -> None:
            Counted.operations += 1
            super().__delitem__(key)

        def __iter__(self) -> Any:
            raise AssertionError("the free list was walked")

        def popitem(self, last: bool = True) -> Any:
            Counted.operations += 1
            return super().popitem(last)

    for num_blocks in (10, 10_000):
        pool = Pool(num_blocks)
        pool.forget(tokens_of(0, 9))
        pool.free = Counted(pool.free)
        Counted.operations = 0
        pool.hold(tokens_of(0, 9))
        assert Counted.operations == 3  # two revived, one new


def test_releasing_a_shared_block_only_drops_a_reference() -> None:
    pool = Pool(8)
    a = pool.computed(tokens_of(0, 9))
    b, match = pool.hold(tokens_of(0, 9))
    assert match.hit == 8 and a.block_table[:2] == b.block_table[:2] and a.block_table[2] != b.block_table[2]
    pool.release(a, 2)
    assert [pool.refs[block] for block in b.block_table] == [1, 1, 1]
    assert pool.num_free == 5
    pool.release(b, 2)
    assert pool.num_free == 8 and pool.refs == [0] * 8


def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    pool = Pool(2)
    seq = pool.sequence(tokens_of(0, 12))
    with pytest.raises(OutOfBlocks, match="needs 4 free blocks, room for its next token included: there are 2"):
        pool.admit(seq, pool.match(seq), 1)
    holder = pool.hold(tokens_of(0, 7))[0]
    with pytest.raises(OutOfBlocks, match="needs 1 free blocks, there are 0"):
        pool.grow(holder, 1)
    assert holder.block_table == [0, 1] and seq.block_table == []
    assert len(pool.of(BlocksAllocated)) == 1


def test_admission_asks_for_room_for_the_next_token_too() -> None:
    pool = Pool(2)
    full, roomy = pool.sequence(tokens_of(0, 8)), pool.sequence(tokens_of(0, 7))
    assert pool.free_needed(full, pool.match(full)) > pool.num_free
    assert pool.free_needed(roomy, pool.match(roomy)) == pool.num_free


def test_matched_blocks_that_are_free_count_against_the_room() -> None:
    pool = Pool(3)
    pool.forget(tokens_of(0, 8))
    again = pool.sequence(tokens_of(0, 11))
    match = pool.match(again)
    assert match.hit == 8 and pool.free_needed(again, match) <= pool.num_free
    longer = pool.sequence(tokens_of(0, 12))
    assert pool.free_needed(longer, pool.match(longer)) > pool.num_free  # 3 blocks, and one for the next token


def test_growing_appends_one_block() -> None:
    pool = Pool(3)
    seq = pool.hold(tokens_of(0, 4))[0]
    pool.grow(seq, 9)
    assert seq.block_table == [0, 1]
    assert pool.of(BlocksAllocated)[-1] == BlocksAllocated(pool.of(BlocksAllocated)[-1].t, 9, 0, [], [1], [], 1)


# Sharing


@pytest.mark.parametrize(("length", "hit"), [(1, 0), (4, 0), (5, 4), (8, 4), (9, 8), (12, 8), (13, 12)])
def test_a_match_leaves_the_last_token_to_compute(length: int, hit: int) -> None:
    pool = Pool(16)
    pool.forget(tokens_of(0, 16))
    assert pool.hit(tokens_of(0, length)) == hit


def test_only_equal_prefixes_are_shared() -> None:
    pool = Pool(16)
    pool.forget(tokens_of(0, 12))
    assert pool.hit([0, 1, 2, 3, 99, 5, 6, 7, 8, 9, 10, 11, 12]) == 4
    assert pool.hit([99, 1, 2, 3, 4, 5, 6, 7, 8]) == 0
    assert pool.hit(tokens_of(4, 9)) == 0  # equal blocks after another beginning


def test_only_full_computed_blocks_enter_the_cache() -> None:
    pool = Pool(16)
    seq, _ = pool.hold(tokens_of(0, 15))
    assert pool.hit(tokens_of(0, 15)) == 0
    for num_computed, cached in [(3, 0), (4, 1), (7, 1), (9, 2), (15, 3)]:
        pool.register(seq, num_computed, 1)
        assert len(pool.prefixes.cached) == cached
    assert [event.blocks for event in pool.of(BlocksCached)] == [[0], [1], [2]]
    assert all(len(event.hashes) == 8 for event in pool.of(BlocksCached))


def test_a_token_that_the_host_has_not_read_is_not_cached() -> None:
    pool = Pool(16)
    seq, _ = pool.hold(tokens_of(0, 7))
    seq.num_pending = 1
    pool.register(seq, 8, 1)
    assert len(pool.prefixes.cached) == 1
    seq.num_pending = 0
    seq.token_ids.append(7)
    pool.register(seq, 8, 1)
    assert len(pool.prefixes.cached) == 2


def test_generated_tokens_are_found_by_a_prompt_that_repeats_them() -> None:
    pool = Pool(16)
    seq, _ = pool.hold(tokens_of(0, 6))
    seq.token_ids += tokens_of(6, 4)
    pool.grow(seq, 2)
    pool.register(seq, 9, 2)
    assert pool.hit(tokens_of(0, 10)) == 8


def test_an_equal_block_is_not_entered_twice() -> None:
    pool = Pool(16)
    a, b = pool.hold(tokens_of(0, 8))[0], pool.hold(tokens_of(0, 8))[0]
    for seq in (a, b):
        pool.register(seq, 8, 1)
    assert len(pool.of(BlocksCached)) == 1
    assert set(pool.prefixes.cached.values()) == set(a.block_table)
    pool.audit([a, b])


def test_blocks_after_an_equal_prefix_stay_reachable_when_the_prefix_is_evicted_and_computed_again() -> None:
    pool = Pool(8)
    a, b = pool.hold(tokens_of(0, 5))[0], pool.hold(tokens_of(0, 13))[0]
    pool.register(a, 5, 1)
    pool.register(b, 13, 1)  # its first block is a twin of a's; the second and third follow the cached one
    pool.release(a, 1)
    flood = pool.hold(tokens_of(100, 15))[0]
    assert a.block_hashes[0] not in pool.prefixes.cached and b.block_hashes[1] in pool.prefixes.cached
    assert pool.hit(tokens_of(0, 13)) == 0
    pool.release(flood, 2)
    pool.forget(tokens_of(0, 5))
    assert pool.hit(tokens_of(0, 13)) == 12
    assert pool.prefixes.num_collisions == 0


def test_without_a_prefix_cache_nothing_is_shared_or_looked_up() -> None:
    pool = Pool(16, prefix_cache=False)
    pool.forget(tokens_of(0, 12))
    assert pool.match(pool.sequence(tokens_of(0, 12))) == PrefixMatch([], 0, 0, 0, 0, 0, 0)
    assert not pool.prefixes.cached and not pool.of(BlocksCached) and not pool.of(PrefixMatched)


def test_a_prompt_whose_logprobs_are_wanted_is_computed_whole() -> None:
    pool = Pool(16)
    pool.forget(tokens_of(0, 12))
    assert pool.match(pool.sequence(tokens_of(0, 12), prompt_logprobs=1)).hit == 0


def test_the_secret_keys_the_hashes() -> None:
    hashes = {Pool(4, secret=secret).computed(tokens_of(0, 4)).block_hashes[0] for secret in (b"", b"one", b"two")}
    assert len(hashes) == 3


# Misses and collisions


def test_the_reasons_of_a_miss_add_up() -> None:
    pool = Pool(6)
    pool.forget(tokens_of(0, 12))
    pool.computed(tokens_of(100, 15))  # takes the three clean blocks, and evicts the last one of the first prompt
    prompt = [*tokens_of(0, 12), *tokens_of(200, 6)]
    match = pool.match(pool.sequence(prompt))
    assert (match.queried, match.hit, match.evicted, match.never_seen, match.sub_block) == (18, 8, 4, 4, 2)


@pytest.mark.parametrize("seed", range(5))
def test_the_reasons_of_a_miss_add_up_at_random(seed: int) -> None:
    rng, pool = random.Random(seed), Pool(12)
    for _ in range(200):
        seq = pool.sequence([rng.randrange(2) for _ in range(rng.randrange(1, 30))])
        match = pool.match(seq)
        assert match.hit + match.never_seen + match.evicted + match.sub_block == match.queried == seq.num_tokens
        assert match.hit == len(match.blocks) * SIZE < seq.num_tokens and 1 <= match.sub_block <= SIZE
        if pool.free_needed(seq, match) <= pool.num_free:
            pool.admit(seq, match, 1)
            pool.register(seq, seq.num_tokens, 1)
            pool.audit([seq])
            pool.release(seq, 1)


def test_an_admission_records_its_look_up_and_its_blocks() -> None:
    pool = Pool(8)
    pool.forget(tokens_of(0, 8))
    seq, _ = pool.hold(tokens_of(0, 10))
    matched, allocated = pool.of(PrefixMatched)[-1], pool.of(BlocksAllocated)[-1]
    assert (matched.queried, matched.hit, matched.sub_block, matched.recompute) == (10, 8, 2, False)
    assert (allocated.cached, allocated.new, allocated.evicted, allocated.free) == ([0, 1], [2], [], 5)
    seq.num_cached_tokens = 8  # of its first admission
    pool.release(seq, 2)
    pool.admit(seq, pool.match(seq), 3)
    assert pool.of(PrefixMatched)[-1].recompute


def test_taking_a_cached_block_evicts_its_content() -> None:
    pool = Pool(4)
    table = pool.forget(tokens_of(0, 12))
    pool.hold(tokens_of(100, 7))
    assert pool.of(BlocksAllocated)[-1].evicted == [table[2]]
    assert pool.hit(tokens_of(0, 13)) == 8
    assert len(pool.prefixes.cached) == len(pool.contents) == 2


def test_an_equal_hash_of_other_tokens_is_a_miss_that_is_counted() -> None:
    pool = Pool(8)
    pool.prefixes.hash_block = lambda parent, tokens: b"same"  # type: ignore[method-assign]
    a = pool.computed(tokens_of(0, 4))
    b, match = pool.hold(tokens_of(50, 5))
    assert match.hit == 0
    pool.register(b, 5, 1)
    assert pool.prefixes.num_collisions == 1
    assert pool.hit(tokens_of(0, 5)) == 4 and pool.hit(tokens_of(50, 5)) == 0
    pool.audit([a, b])


def test_an_equal_hash_of_equal_tokens_after_another_prefix_is_a_miss() -> None:
    pool = Pool(8)
    pool.prefixes.hash_block = lambda parent, tokens: tokens  # type: ignore[method-assign]  # forgets the parent
    pool.computed([*tokens_of(0, 4), *tokens_of(50, 4)])
    other = pool.sequence([*tokens_of(10, 4), *tokens_of(50, 5)])
    assert pool.match(other).hit == 0
    pool.admit(other, pool.match(other), 1)
    pool.register(other, 9, 1)
    assert pool.prefixes.num_collisions == 1
    assert pool.hit([*tokens_of(10, 4), *tokens_of(50, 5)]) == 4


def test_nothing_after_a_collision_is_cached() -> None:
    pool = Pool(16)
    real = pool.prefixes.hash_block
    pool.prefixes.hash_block = lambda parent, tokens: real(b"", tokens[:1])  # type: ignore[method-assign]
    pool.computed(tokens_of(0, 4))
    collided = pool.computed([0, 9, 9, 9, *tokens_of(60, 8)])
    assert len(pool.prefixes.cached) == 1 and pool.prefixes.num_collisions == 1
    collided.token_ids += tokens_of(80, 4)
    pool.grow(collided, 2)
    pool.register(collided, 16, 2)
    assert len(pool.prefixes.cached) == 1 and pool.prefixes.num_collisions == 1


# The audit

Break = Callable[[Pool, Sequence], None]


def lose_a_reference(pool: Pool, seq: Sequence) -> None:
    pool.refs[seq.block_table[0]] = 0


def count_too_many(pool: Pool, seq: Sequence) -> None:
    pool.refs[seq.block_table[0]] += 1


def go_negative(pool: Pool, seq: Sequence) -> None:
    pool.refs[next(reversed(pool.free))] = -1


def free_a_held_block(pool: Pool, seq: Sequence) -> None:
    pool.free[seq.block_table[0]] = None


def lose_a_free_block(pool: Pool, seq: Sequence) -> None:
    pool.free.popitem()


def free_an_alien_block(pool: Pool, seq: Sequence) -> None:
    pool.free[pool.num_blocks] = None


def hold_an_alien_block(pool: Pool, seq: Sequence) -> None:
    seq.block_table.append(pool.num_blocks)


def hold_a_block_twice(pool: Pool, seq: Sequence) -> None:
    seq.block_table.append(seq.block_table[0])


def move_a_hash(pool: Pool, seq: Sequence) -> None:
    first, second, *_ = pool.prefixes.cached
    pool.prefixes.cached[first] = pool.prefixes.cached[second]


def lose_a_content(pool: Pool, seq: Sequence) -> None:
    pool.contents.popitem()


def lose_a_hash(pool: Pool, seq: Sequence) -> None:
    pool.prefixes.cached.popitem()


def cache_nothing(pool: Pool, seq: Sequence) -> None:
    pool.contents[next(reversed(pool.free))] = CachedContent(b"?", b"", 0, 99, 0)


@pytest.mark.parametrize(
    "break_it",
    [
        lose_a_reference, count_too_many, go_negative, free_a_held_block, lose_a_free_block, free_an_alien_block,
        hold_an_alien_block, hold_a_block_twice, move_a_hash, lose_a_content, lose_a_hash, cache_nothing,
    ],
)  # fmt: skip
def test_the_audit_finds(break_it: Break) -> None:
    pool = Pool(8)
    seq = pool.computed(tokens_of(0, 10))
    pool.forget(tokens_of(0, 5))
    pool.audit([seq])
    break_it(pool, seq)
    with pytest.raises(AuditError):
        pool.audit([seq])


# Outside oracles


def full_block_hits(pool: Pool, prompts: list[list[int]]) -> tuple[int, int]:
    """(hits, full blocks) over prompts that come one after the other.

    Each prompt gets one token more than it has: the last token is never looked up, and so the last full block is.
    """
    hits = total = 0
    for prompt in prompts:
        seq = pool.sequence([*prompt, 0])
        match = pool.match(seq)
        pool.admit(seq, match, 1)
        pool.register(seq, len(prompt), 1)
        pool.release(seq, 1)
        hits += len(match.blocks)
        total += len(prompt) // pool.block_size
    return hits, total


def brute_force_hits(prompts: list[list[int]], size: int) -> int:
    """Full blocks whose whole prefix has been seen before, in an unlimited cache."""
    seen: set[bytes] = set()
    hits = 0
    for prompt in prompts:
        prefixes = [array("i", prompt[: end + size]).tobytes() for end in range(0, len(prompt) - size + 1, size)]
        found = [prefix in seen for prefix in prefixes]
        hits += found.index(False) if False in found else len(found)
        seen.update(prefixes)
    return hits


@pytest.mark.parametrize("seed", range(10))
def test_hits_are_those_of_a_brute_force_search(seed: int) -> None:
    rng = random.Random(seed)
    prompts: list[list[int]] = []
    for _ in range(150):
        prompt = rng.choice(prompts)[: rng.randrange(40)] if prompts and rng.random() < 0.7 else []
        prompts.append(prompt + [rng.randrange(3) for _ in range(rng.randrange(1, 20))])
    pool = Pool(5000)
    hits, total = full_block_hits(pool, prompts)
    assert hits == brute_force_hits(prompts, SIZE)
    assert 0 < hits < total
    assert pool.num_free == 5000 and pool.prefixes.num_collisions == 0


def mooncake_prompts(data: Path, number: int, size: int) -> list[list[int]]:
    """Prompts of the trace at 1/32 of their lengths: a block of 512 tokens becomes one of 16 made from its hash id."""
    prompts = []
    with (data / "mooncake_synthetic_first1000.jsonl").open() as lines:
        for line, _ in zip(lines, range(number), strict=False):
            row = json.loads(line)
            tokens = [token for hash_id in row["hash_ids"] for token in [hash_id] * size]
            prompts.append(tokens[: row["input_length"] * size // 512])
    return prompts


def test_the_mooncake_trace_hits_as_often_as_counted_outside(shared_data: Path) -> None:
    prompts = mooncake_prompts(shared_data, 500, 16)
    assert full_block_hits(Pool(20_000, 16), prompts) == (1079, 12333)
