"""Text out of tokens, one token at a time. Knows the tokenizer by its `decode` alone, and no engine.

What it gives out is final: the pieces joined are `tokenizer.decode(all ids)`, and never hold half a character.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Protocol

from .stop import StopChecker

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# A decoder shows an unfinished character as one U+FFFD, or as one for each of its at most three bytes (byte fallback).
_MAX_UNFINISHED = 3
# A window that only holds undecidable text is cut to its tail. UTF-8 finds its step again within three bytes, so that
# a tail of sixteen tokens decodes to the same last characters as the whole does.
_WINDOW_LIMIT, _WINDOW_TAIL = 32, 16


class TokenDecoder(Protocol):
    """The part of a tokenizer that is needed here; every tokenizer of transformers has it."""

    def decode(self, token_ids: list[int], /, *, skip_special_tokens: bool) -> str:
        """Text of these tokens; bytes that are no UTF-8 become U+FFFD."""


class _Vocabulary:
    """What is worth remembering of a tokenizer between sequences: at most one short text for each of its ids.

    Attributes:
        byte_ids: ids of `<0x00>` to `<0xFF>` in a vocabulary with byte fallback (Llama 2). Its decoder judges a run of
            these as a whole: one wrong byte at the end turns each byte of the run into U+FFFD.
        alone: by skip_special_tokens, id -> the text of this token alone.
    """

    __slots__ = ("alone", "byte_ids")

    def __init__(self, tokenizer: TokenDecoder) -> None:
        self.alone: tuple[dict[int, str], dict[int, str]] = ({}, {})
        self.byte_ids: frozenset[int] = frozenset()
        to_id = getattr(tokenizer, "convert_tokens_to_ids", None)
        to_token = getattr(tokenizer, "convert_ids_to_tokens", None)
        if to_id is not None and to_token is not None:
            names = [f"<0x{byte:02X}>" for byte in range(256)]
            pairs = ((name, to_id(name)) for name in names)  # an unknown name gives None, or the unknown token's id
            self.byte_ids = frozenset(i for name, i in pairs if i is not None and to_token(i) == name)


_vocabularies: weakref.WeakKeyDictionary[TokenDecoder, _Vocabulary] = weakref.WeakKeyDictionary()


def _vocabulary_of(tokenizer: TokenDecoder) -> _Vocabulary:
    known = _vocabularies.get(tokenizer)
    if known is None:
        known = _vocabularies[tokenizer] = _Vocabulary(tokenizer)
    return known


class IncrementalDetokenizer:
    """Decodes a growing list of ids in constant time a token, by a sliding window.

    Decoding a token alone is wrong (a decoder may strip the first space, and a character may span tokens), decoding
    everything each time is quadratic. So a short window is decoded: the last token already shown, as context, and the
    tokens after it; what the window gives beyond what was shown is new. This is the method of prefix and read offsets
    of Hugging Face's text-generation-inference (`Model.decode_token`), with three additions: a window that can't
    be decided is bounded, tokens without text leave it, and runs of byte-fallback tokens wait for their end.

    Args:
        tokenizer: anything with `decode(ids, skip_special_tokens=...)`.
        skip_special_tokens: leave special tokens out of the text.
    """

    __slots__ = ("_alone", "_byte_ids", "_in_byte_run", "_shown", "_skip", "_text", "_tokenizer", "_window")

    def __init__(self, tokenizer: TokenDecoder, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        vocabulary = _vocabulary_of(tokenizer)
        self._byte_ids = vocabulary.byte_ids
        self._alone = vocabulary.alone[skip_special_tokens]
        self._window: list[int] = []
        self._text = ""  # of the window when it was last decoded
        self._shown = 0  # characters of the window's text that were given out
        self._in_byte_run = False  # the window ends in fallback bytes that are not decoded yet

    def push(self, token_id: int) -> str:
        """Take one more token and return the text that became final; often "" while a character is incomplete."""
        if token_id in self._byte_ids:
            self._window.append(token_id)
            self._in_byte_run = True
            return ""
        if self._in_byte_run and self._is_invisible(token_id):
            return ""
        self._window.append(token_id)
        text = self._decode(self._window)
        if text == self._text and not self._in_byte_run and self._is_invisible(token_id):
            self._window.pop()
            return ""
        self._in_byte_run = False
        undecided = min(len(text) - len(text.rstrip(_REPLACEMENT)), _MAX_UNFINISHED)
        new = text[self._shown : len(text) - undecided]
        self._text, self._shown = text, self._shown + len(new)
        if undecided == 0:
            self._window = [token_id]
            alone = self._alone.get(token_id)
            if alone is None:
                alone = self._alone[token_id] = self._decode(self._window)
            self._text, self._shown = alone, len(alone)
        elif len(self._window) > _WINDOW_LIMIT:
            self._window = self._window[-_WINDOW_TAIL:]
            self._text = self._decode(self._window)
            self._shown = len(self._text) - undecided
        return new

    def finish(self) -> str:
        """Return what was still held back, as `decode` shows it; a second call returns ""."""
        text = self._decode(self._window)
        new = text[self._shown :]
        self._window, self._text, self._shown, self._in_byte_run = [], "", 0, False
        return new

    def begin_after(self, token_id: int) -> None:
        """Go on behind a token that is not to be shown: it is the context in which the next one is decoded."""
        self._window = [token_id]
        self._text = self._decode(self._window)
        self._shown, self._in_byte_run = len(self._text), False

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._skip)

    def _is_invisible(self, token_id: int) -> bool:
        """Whether a token never adds text: a skipped special one, or an id that pads the vocabulary.

        It is asked twice in a row, because a decoder may strip one leading space of visible text.
        """
        return self._decode([token_id, token_id]) == ""


class TextStream:
    """The text of one generated sequence: tokens in, text out that no stop string can take back.

    A stop string counts when a token after the first `min_tokens` completes it, as in vLLM. A token that itself ended
    the generation (end of sequence, `stop_token_ids`) is pushed only if its text is wanted.

    Args:
        tokenizer: anything with `decode(ids, skip_special_tokens=...)`.
        skip_special_tokens: leave special tokens out of the text.
        stop: stop strings.
        include_stop: keep a matched stop string in the text.
        min_tokens: tokens of which none can complete a stop string.

    Attributes:
        num_tokens: tokens taken so far; after a match, the one that completed the stop string is the last counted.
        matched: the stop string that ended the text, or None.
    """

    __slots__ = ("_detokenizer", "_ended", "_include_stop", "_min_tokens", "_parts", "_stop", "_strings", "matched",
                 "num_tokens")  # fmt: skip

    def __init__(
        self,
        tokenizer: TokenDecoder,
        skip_special_tokens: bool = True,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        min_tokens: int = 0,
    ) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens)
        self._strings, self._include_stop = stop, include_stop
        self._stop = StopChecker(stop, include_stop)
        self._min_tokens = min_tokens
        self._ended = False
        self._parts: list[str] = []
        self.num_tokens = 0
        self.matched: str | None = None

    @property
    def text(self) -> str:
        """All text given out so far."""
        return "".join(self._parts)

    def push(self, token_ids: Sequence[int]) -> tuple[str, str | None]:
        """Take tokens; return the text that became final, and the stop string that ended it (None: it goes on).

        After a match nothing more is taken: later tokens are ignored and give no text.
        """
        before = len(self._parts)
        for token_id in token_ids:
            if self.matched is not None:
                break
            self.num_tokens += 1
            self._take(self._detokenizer.push(token_id))
        return "".join(self._parts[before:]), self.matched

    def finish(self) -> tuple[str, str | None]:
        """The generation ended: return the text still held back, once, and a stop string completed by it."""
        before = len(self._parts)
        if self.matched is None and not self._ended:
            self._take(self._detokenizer.finish())
        if self.matched is None and not self._ended:
            self._emit(self._stop.finish())
        self._ended = True
        return "".join(self._parts[before:]), self.matched

    @property
    def ended(self) -> bool:
        """Whether the text was ended by a stop string or by `finish`."""
        return self._ended or self.matched is not None

    def begin_again(self, after: int) -> str:
        """Begin another piece of text behind token `after`, which is not shown; returns what was still held back."""
        rest, _ = self.finish()
        self._detokenizer.begin_after(after)
        self._stop = StopChecker(self._strings, self._include_stop)
        self._ended, self.matched = False, None
        return rest

    def _take(self, text: str) -> None:
        if text:
            emitted, self.matched = self._stop.push(text, counts=self.num_tokens > self._min_tokens)
            self._emit(emitted)

    def _emit(self, text: str) -> None:
        if text:
            self._parts.append(text)
