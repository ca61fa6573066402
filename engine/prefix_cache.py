"""Which blocks hold a prefix that can be shared, and what became of those that did. Knows block and token ids only."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import blake2b

from ..errors import AuditError
from .sequence import Sequence

HASH_BYTES = 16  # of a chain hash; the journal shows the first 8
COLLIDED = -1  # parent_content of a sequence whose chain met a hash collision: nothing after it can be shared


@dataclass(slots=True)
class CachedContent:
    """What a cached block holds. `content` identifies it for good: block ids are reused, a content's id means the same
    tokens after the same prefix forever.
    """

    hash: bytes
    tokens: bytes
    parent: int  # content id of the block before it; 0 at the start of a prompt
    content: int
    filled_by: int


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The longest cached prefix of a sequence, valid until the next allocation. Counts are tokens."""

    blocks: list[int]
    parent_content: int
    queried: int
    hit: int
    never_seen: int
    evicted: int
    sub_block: int


class PrefixCache:
    """Cached contents by block and by keyed chain hash.

    A hit compares the tokens and the identity of the parent too, so that a collision of hashes costs a miss and never
    shares another prompt's KV.

    Args:
        num_blocks: size of the pool.
        block_size: tokens in a block.
        secret: key of the chain hash, at most 64 bytes; a new one for each run keeps prompts unguessable.
        enabled: False shares nothing.

    Attributes:
        contents: block -> what it holds.
        cached: chain hash -> block.
        num_collisions: hashes met that were another content's.
    """

    def __init__(self, num_blocks: int, block_size: int, secret: bytes, enabled: bool) -> None:
        self.contents: dict[int, CachedContent] = {}
        self.cached: dict[bytes, int] = {}
        self.num_collisions = 0
        self._enabled = enabled
        self._block_size = block_size
        self._num_blocks = num_blocks
        # Contents lost lately, by hash: to tell the reason of a miss, and to give the same content its id again, since
        # cached blocks that follow it may have stayed.
        self._evicted: OrderedDict[bytes, CachedContent] = OrderedDict()
        self._next_content = 1
        self._secret = secret

    def hash_block(self, parent: bytes, tokens: bytes) -> bytes:
        """Chain hash of a block: keyed by the run's secret, over the parent's hash and its own token ids."""
        return blake2b(parent + tokens, digest_size=HASH_BYTES, key=self._secret).digest()

    def hashes_of(self, seq: Sequence, first: int = 0) -> bytes:
        """The first 8 bytes of the hash of each full block from place `first` on, kept for the admission; without a
        cache, none.
        """
        if not self._enabled:
            return b""
        self._extend_hashes(seq)
        return b"".join(chain_hash[:8] for chain_hash in seq.block_hashes[first:])

    def match(self, seq: Sequence) -> PrefixMatch:
        """Find the cached prefix of all the sequence's tokens; changes nothing but its memo of hashes.

        At least the last token is left to compute, since its logits are needed.
        """
        total = seq.num_tokens
        if not self._enabled or seq.params.prompt_logprobs is not None:
            return PrefixMatch([], 0, 0, 0, 0, 0, 0)
        size = self._block_size
        self._extend_hashes(seq)
        blocks: list[int] = []
        parent = 0
        for index in range((total - 1) // size):
            block = self.cached.get(seq.block_hashes[index])
            if block is None:
                break
            content = self.contents[block]
            if content.parent != parent or content.tokens != self._tokens(seq, index):
                break
            blocks.append(block)
            parent = content.content
        missed = seq.block_hashes[len(blocks) : (total - 1) // size]
        evicted = sum(1 for chain_hash in missed if chain_hash in self._evicted)
        hit = len(blocks) * size
        return PrefixMatch(
            blocks=blocks,
            parent_content=parent,
            queried=total,
            hit=hit,
            never_seen=(len(missed) - evicted) * size,
            evicted=evicted * size,
            sub_block=total - hit - len(missed) * size,
        )

    def register(self, seq: Sequence, num_computed: int) -> list[int]:
        """Enter the sequence's full blocks among its first `num_computed` tokens, all computed; those that are new."""
        last = min(num_computed, len(seq.token_ids)) // self._block_size
        if not self._enabled or last <= seq.num_registered_blocks or seq.parent_content == COLLIDED:
            return []
        self._extend_hashes(seq)
        blocks: list[int] = []
        for index in range(seq.num_registered_blocks, last):
            chain_hash, tokens, block = seq.block_hashes[index], self._tokens(seq, index), seq.block_table[index]
            there = self.cached.get(chain_hash)
            if there is None:
                content = self._new_content(chain_hash, tokens, seq)
                self.cached[chain_hash] = block
                self.contents[block] = content
                blocks.append(block)
            else:
                content = self.contents[there]
                if content.parent != seq.parent_content or content.tokens != tokens:
                    self.num_collisions += 1
                    seq.parent_content = COLLIDED
                    break
            seq.parent_content = content.content
        seq.num_registered_blocks = last
        return blocks

    def audit(self) -> None:
        """Check that hashes and contents point at each other.

        Raises:
            AuditError: the first violation.
        """
        for chain_hash, block in self.cached.items():
            if block not in self.contents or self.contents[block].hash != chain_hash:
                raise AuditError(f"block {block}: cached under a hash that is not its own")
        if len(self.cached) != len(self.contents):
            raise AuditError(f"{len(self.cached)} hashes but {len(self.contents)} cached blocks")

    def _new_content(self, chain_hash: bytes, tokens: bytes, seq: Sequence) -> CachedContent:
        lost = self._evicted.pop(chain_hash, None)
        if lost is not None and lost.parent == seq.parent_content and lost.tokens == tokens:
            identity = lost.content
        else:
            identity, self._next_content = self._next_content, self._next_content + 1
        return CachedContent(chain_hash, tokens, seq.parent_content, identity, seq.seq_id)

    def evict(self, block: int) -> None:
        """Forget what a block held: it is going to be written."""
        lost = self.contents.pop(block)
        del self.cached[lost.hash]
        self._evicted[lost.hash] = lost
        if len(self._evicted) > 4 * self._num_blocks:
            self._evicted.popitem(last=False)

    def _tokens(self, seq: Sequence, index: int) -> bytes:
        size = self._block_size
        return array("i", seq.token_ids[index * size : (index + 1) * size]).tobytes()

    def _extend_hashes(self, seq: Sequence) -> None:
        hashes = seq.block_hashes
        for index in range(len(hashes), len(seq.token_ids) // self._block_size):
            hashes.append(self.hash_block(hashes[-1] if hashes else b"", self._tokens(seq, index)))
