"""The hashes of a prompt's blocks as engines with the same key have them, from the body of a request. Sends nothing."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import msgspec

from ..engine.prefix_cache import PrefixCache
from ..errors import InvalidRequest
from ..models.tokenizer import AnyTokenizer
from .chat import PATH as CHAT
from .completions import PATH as COMPLETIONS
from .fleet_view import HASH_BYTES
from .prompts import check_messages, check_prompt

MAX_BLOCKS = 1024  # of a prompt: more add nothing to the choice of a replica
MAX_CHARS = 1 << 15  # of a text: what is behind is not tokenized here
CUT_TOKENS = 8  # at the end of a text that was cut, which may read otherwise in the whole one

GENERATING = (COMPLETIONS, CHAT)


class PromptHashes:
    """Hashes of prompts.

    Args:
        tokenizer: the model's.
        block_size: tokens in a block.
        key: of the engines' block hashes.
    """

    def __init__(self, tokenizer: AnyTokenizer, block_size: int, key: bytes) -> None:
        self._tokenizer, self._block_size = tokenizer, block_size
        self._hash = PrefixCache(1, block_size, key, enabled=True).hash_block

    def of_body(self, path: str, body: bytes) -> tuple[bytes, ...]:
        """Those of the (first) prompt of a request's body; of one that can't be read, none: a replica says why."""
        try:
            token_ids = self._token_ids(path, msgspec.json.decode(body))
        except (InvalidRequest, msgspec.DecodeError, UnicodeError, RecursionError):
            return ()
        return self.of_tokens(token_ids)

    def of_tokens(self, token_ids: Sequence[int]) -> tuple[bytes, ...]:
        """Those of the full blocks of a prompt."""
        size, hashes, parent = self._block_size, [], b""
        for at in range(0, min(len(token_ids) // size, MAX_BLOCKS) * size, size):
            try:
                parent = self._hash(parent, array("i", token_ids[at : at + size]).tobytes())
            except OverflowError:
                break  # no token id: the request is going to be refused
            hashes.append(parent[:HASH_BYTES])
        return tuple(hashes)

    def _token_ids(self, path: str, value: Any) -> list[int]:
        if not isinstance(value, dict):
            return []
        if path == CHAT:
            return self._tokenizer.apply_chat_template(check_messages(value.get("messages")))
        prompt = check_prompt(value.get("prompt"))[0]
        if not isinstance(prompt, str):
            return prompt
        if len(prompt) <= MAX_CHARS:
            return self._tokenizer.encode(prompt)
        return self._tokenizer.encode(prompt[:MAX_CHARS])[:-CUT_TOKENS]
