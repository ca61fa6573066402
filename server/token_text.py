"""What a single token stands for, as text and as bytes. Knows the tokenizer alone."""

from __future__ import annotations

import re

from ..models.tokenizer import AnyTokenizer

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """The character that stands for each byte in a byte-level vocabulary (GPT-2): a printable one is its own."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(rest)}


_ALPHABET = _byte_alphabet()


class TokenTexts:
    """Texts and bytes of a vocabulary's tokens, each worked out once.

    A token is decoded behind another one: alone, some decoders strip its first space. Of one that holds no whole
    characters the bytes come from its name in the vocabulary, where that tells them.
    """

    def __init__(self, tokenizer: AnyTokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, bytes] = {}
        self._before = tokenizer.encode("a", add_special_tokens=False)[-1:]
        self._shown = len(self._decode(self._before))

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes that a token adds."""
        found = self._known.get(token_id)
        if found is None:
            found = self._known[token_id] = self._find(token_id)
        return found

    def text_of(self, token_id: int) -> str:
        r"""A token's text; bytes that are no whole characters are written `\xf0\x9f`."""
        data = self.bytes_of(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "".join(f"\\x{byte:02x}" for byte in data)

    def _find(self, token_id: int) -> bytes:
        text = self._decode([*self._before, token_id])[self._shown :]
        if _REPLACEMENT not in text:
            return text.encode()
        name = getattr(self._tokenizer, "convert_ids_to_tokens", lambda token_id: None)(token_id)
        if name is None:
            return bytes([token_id]) if token_id < 256 else text.encode()
        fallback = _FALLBACK.fullmatch(name)
        if fallback is not None:
            return bytes([int(fallback[1], 16)])
        if all(char in _ALPHABET for char in name):
            return bytes(_ALPHABET[char] for char in name)
        return text.encode()

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)
