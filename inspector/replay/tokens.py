"""Token ids that stand for those of a recorded run: equal blocks where the hashes are equal, others everywhere else."""

from __future__ import annotations


class Tokens:
    """Tokens by sequence and position. Every token of a block is the number of the block's hash.

    A block whose hash is not known was never shared: its tokens are the sequence's own.

    Args:
        hashes: sequence -> place -> hash of the full block there.
        block_size: tokens in a block.
    """

    def __init__(self, hashes: dict[int, dict[int, bytes]], block_size: int) -> None:
        self._hashes = hashes
        self._size = block_size
        self._numbers: dict[bytes, int] = {}

    def at(self, seq: int, position: int) -> int:
        """One token of a sequence."""
        return self._of_block(seq, position // self._size)

    def span(self, seq: int, first: int, end: int) -> list[int]:
        """The tokens at the positions from `first` to before `end`."""
        size, found, at = self._size, [], first
        while at < end:
            place = at // size
            stop = min(end, (place + 1) * size)
            found += [self._of_block(seq, place)] * (stop - at)
            at = stop
        return found

    def _of_block(self, seq: int, place: int) -> int:
        told = self._hashes.get(seq, {}).get(place)
        if told is None:
            return -1 - seq
        return self._numbers.setdefault(told, len(self._numbers))
