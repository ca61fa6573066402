"""Log-probabilities in the two forms of OpenAI's API. Knows tokens and their texts, no request."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from ..engine.plan import TokenLogprobs
from .token_text import TokenTexts

LEAST = -9999.0  # stands for minus infinity, which JSON has no number for


class LegacyLogprobs:
    """Those of one text of a completion: four lists of equal length, piece by piece.

    An offset counts the characters of the choice's text before the one that the token begins or goes on with. Tokens
    that the text leaves out have no width.

    Args:
        texts: of the vocabulary.
        invisible: ids that the text leaves out.
    """

    def __init__(self, texts: TokenTexts, invisible: frozenset[int]) -> None:
        self._texts = texts
        self._invisible = invisible
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0
        self._lists: tuple[list[Any], ...] = ([], [], [], [])

    def take_prompt(self, token_ids: Sequence[int], entries: Sequence[TokenLogprobs | None], text: str) -> None:
        """Put a prompt's tokens in front; a first one that the tokenizer put there is not in its text."""
        for place, (token_id, entry) in enumerate(zip(token_ids, entries, strict=False)):
            is_visible = place > 0 or text.startswith(self._texts.text_of(token_id))
            self._add(token_id, entry, is_visible)

    def take(self, token_ids: Sequence[int], entries: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """The four lists of the next tokens, behind those of a prompt that was taken."""
        for token_id, entry in zip(token_ids, entries, strict=False):
            self._add(token_id, entry, token_id not in self._invisible)
        lists, self._lists = self._lists, ([], [], [], [])
        return dict(zip(("tokens", "token_logprobs", "top_logprobs", "text_offset"), lists, strict=True))

    def _add(self, token_id: int, entry: TokenLogprobs | None, is_visible: bool) -> None:
        logprob = None if entry is None else max(entry.logprob, LEAST)
        top = None if entry is None else self._top(entry)
        for each, value in zip(self._lists, (self._name(token_id), logprob, top, self._offset), strict=True):
            each.append(value)
        if is_visible:
            self._offset += len(self._decoder.decode(self._texts.bytes_of(token_id)))

    def _top(self, entry: TokenLogprobs) -> dict[str, float]:
        """The likeliest tokens by their text, the sampled one among them; of two with one text the likelier."""
        found: dict[str, float] = {}
        for token_id, logprob in (*entry.top, (entry.token_id, entry.logprob)):
            found.setdefault(self._name(token_id), max(logprob, LEAST))
        return found

    def _name(self, token_id: int) -> str:
        text = self._texts.text_of(token_id)
        return text if text.encode() == self._texts.bytes_of(token_id) else f"bytes:{text}"


def chat_logprobs(texts: TokenTexts, entries: Sequence[TokenLogprobs]) -> dict[str, Any]:
    """Those of a piece of a chat answer."""
    return {
        "content": [
            _chat_entry(texts, entry.token_id, entry.logprob)
            | {"top_logprobs": [_chat_entry(texts, token_id, logprob) for token_id, logprob in entry.top]}
            for entry in entries
        ],
        "refusal": None,
    }


def _chat_entry(texts: TokenTexts, token_id: int, logprob: float) -> dict[str, Any]:
    return {
        "token": texts.text_of(token_id),
        "logprob": max(logprob, LEAST),
        "bytes": list(texts.bytes_of(token_id)),
    }
