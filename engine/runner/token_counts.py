"""Which tokens a sequence was given and how often it generated each: what penalties are computed from.

Only sequences with a penalty have an entry. The counts live on the device and grow there as tokens are sampled,
so that a token which the host has not read yet is already counted.
"""

from __future__ import annotations

import torch

from ..sequence import Sequence


class TokenCounts:
    """Prompt masks and output counts for the rows that need them, in slots that are reused.

    Tokens that were appended when a sequence was resumed count as its prompt.

    Args:
        vocab_size: width of the logits that will be sampled from.
        device: where the logits are.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self.prompt_mask = torch.zeros((0, vocab_size), dtype=torch.bool, device=device)
        self.output_counts = torch.zeros((0, vocab_size), dtype=torch.int32, device=device)
        self._slots: dict[int, int] = {}
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._slots)

    def slot(self, row: int) -> int | None:
        """The slot of a row, or None when its sequence has no penalty."""
        return self._slots.get(row)

    def admit(self, row: int, seq: Sequence) -> None:
        """Give a row a slot and count its sequence's tokens afresh: all of them are on the host at (re)admission."""
        slot = self._slots.get(row)
        if slot is None:
            if not self._free:
                self._grow()
            slot = self._slots[row] = self._free.pop()
        vocab_size, device = self.output_counts.shape[1], self.output_counts.device
        prompt = torch.tensor(seq.given_token_ids, dtype=torch.int64, device=device)
        output = torch.tensor(seq.output_token_ids, dtype=torch.int64, device=device)
        self.prompt_mask[slot].zero_()
        self.prompt_mask[slot, prompt[prompt < vocab_size]] = True
        counts = torch.bincount(output[output < vocab_size], minlength=vocab_size)
        self.output_counts[slot].copy_(counts)

    def release(self, row: int) -> None:
        """Forget a row, if it is known."""
        slot = self._slots.pop(row, None)
        if slot is not None:
            self._free.append(slot)

    def add(self, slots: torch.Tensor, token_ids: torch.Tensor) -> None:
        """Count one more token for each slot ([N] int64 each; no slot twice)."""
        self.output_counts[slots, token_ids] += 1

    def _grow(self) -> None:
        """Double the slots, or do nothing where memory is short."""
        old = self.output_counts.shape[0]
        more = max(4, old)
        self.prompt_mask, self.output_counts = (
            torch.cat([held, held.new_zeros((more, held.shape[1]))]) for held in (self.prompt_mask, self.output_counts)
        )
        self._free.extend(range(old + more - 1, old - 1, -1))
