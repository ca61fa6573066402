"""The key of the block hashes: the engine's own secret, or one that its parent gave it to share with its siblings."""

from __future__ import annotations

import os
import secrets

from ..errors import InvalidConfig

BLOCK_KEY = "NANOLENS_BLOCK_KEY"  # the environment of the engine's process: unlike flags, other users can't see it
KEY_BYTES = 32


def new_block_key() -> bytes:
    """A key that nobody else has."""
    return secrets.token_bytes(KEY_BYTES)


def take_block_key() -> bytes:
    """The key that the environment holds, in hex, which is removed there; a new one where it holds none.

    Engines with the same key give equal blocks equal hashes, so that who knows it can tell who holds a prompt.

    Raises:
        InvalidConfig: it is no key; the value is not repeated.
    """
    text = os.environ.pop(BLOCK_KEY, "")
    if not text:
        return new_block_key()
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise InvalidConfig(f"{BLOCK_KEY}=(not shown): must be {KEY_BYTES} bytes in hex, or be unset for a new key")
    return key
