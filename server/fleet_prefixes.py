"""What a fleet has to know of a request's body: how many requests it brings, and the hashes of its prompt's blocks as
engines with the same key have them. Sends nothing.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ..engine.prefix_cache import PrefixCache
from ..errors import InvalidRequest
from ..models.tokenizer import AnyTokenizer
from .chat import PATH as CHAT
from .completions import PATH as COMPLETIONS
from .fleet_cache import HASH_BYTES
from .prompts import check_messages, check_prompt

MAX_BLOCKS = 1024  # of a prompt: more add nothing to the choice of a replica
MAX_CHARS = 1 << 15  # of a text: what is behind is not tokenized here
CUT_TOKENS = 8  # at the end of a text that was cut, which may read otherwise in the whole one

GENERATING = (COMPLETIONS, CHAT)
_RESUME = re.compile(r"/v1/requests/([^/]+)/resume")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a body asks for; of one that can't be read the defaults: a replica says why.

    Attributes:
        hashes: of the (first) prompt.
        count: requests of an engine that it brings, as one server counts them.
        may_pause: whether they may pause for their client.
    """

    hashes: tuple[bytes, ...] = ()
    count: int = 1
    may_pause: bool = False


def resumed(path: str) -> str:
    """The id of the paused request that a path lets go on; "": it is another one."""
    found = _RESUME.fullmatch(path)
    return found[1] if found is not None else ""


class PromptHashes:
    """Reads bodies, and hashes prompts.

    Args:
        tokenizer: the model's.
        block_size: tokens in a block.
        key: of the engines' block hashes.
    """

    def __init__(self, tokenizer: AnyTokenizer, block_size: int, key: bytes) -> None:
        self._tokenizer, self._block_size = tokenizer, block_size
        self._hash = PrefixCache(1, block_size, key, enabled=True).hash_block

    def read(self, path: str, body: bytes) -> Asked:
        """A request's body."""
        try:
            value = msgspec.json.decode(body)
            prompts = _prompts(path, value)
        except (InvalidRequest, msgspec.DecodeError, UnicodeError, RecursionError):
            return Asked()
        try:
            hashes = self.of_tokens(self._token_ids(path, prompts))
        except UnicodeError:
            hashes = ()
        count = 1 if path == CHAT else len(prompts)
        return Asked(hashes, count, value.get("on_stop") == "pause")

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

    def _token_ids(self, path: str, prompts: list[Any]) -> list[int]:
        """Of the first prompt."""
        if path == CHAT:
            return self._tokenizer.apply_chat_template(prompts)
        prompt = prompts[0]
        if not isinstance(prompt, str):
            return list(prompt)
        if len(prompt) <= MAX_CHARS:
            return self._tokenizer.encode(prompt)
        return self._tokenizer.encode(prompt[:MAX_CHARS])[:-CUT_TOKENS]


def _prompts(path: str, value: Any) -> list[Any]:
    """The messages of a chat, or the prompts of a completion.

    Raises:
        InvalidRequest: there are none.
    """
    if not isinstance(value, dict):
        raise InvalidRequest("body", "the body is no object")
    return list(check_messages(value.get("messages")) if path == CHAT else check_prompt(value.get("prompt")))
