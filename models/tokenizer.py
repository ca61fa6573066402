"""Text to token ids and back, and the chat template, through transformers. Knows no model and no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from ..errors import InvalidRequest, ModelLoadError

Message = dict[str, str]


class AnyTokenizer(Protocol):
    """What a tokenizer offers; `Tokenizer` and dummy.ByteTokenizer do."""

    @property
    def vocab_size(self) -> int:
        """One more than the highest id that it knows; a model's vocabulary may be padded beyond it."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Ids that end a text, by the tokenizer's own word."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids that `decode` leaves out with skip_special_tokens."""

    @property
    def max_token_chars(self) -> int:
        """Characters of the longest token: a text of more than so many times n takes more than n tokens."""

    @property
    def is_fast(self) -> bool:
        """Whether it runs outside Python."""

    @property
    def has_chat_template(self) -> bool:
        """Whether `apply_chat_template` can work."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""

    def decode(self, token_ids: Sequence[int], /, *, skip_special_tokens: bool = True) -> str:
        """Text of these ids, with U+FFFD for bytes that are no UTF-8."""

    def apply_chat_template(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> list[int]:
        """Token ids of a conversation, by default ready for the assistant's answer."""


def check_text(text: str, field: str) -> None:
    """Refuse lone surrogates, which JSON can carry and UTF-8 can't.

    Raises:
        InvalidRequest: naming `field` and the place.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            field, f"{field} holds a lone surrogate at character {error.start}: send Unicode"
        ) from None


class Tokenizer:
    """A directory's tokenizer.

    Args:
        directory: holds tokenizer.json or what else AutoTokenizer reads.

    Raises:
        ModelLoadError: no tokenizer there, or one that transformers can't read.
    """

    def __init__(self, directory: Path) -> None:
        from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(directory, local_files_only=True)
        except Exception as error:  # transformers raises nearly anything here
            raise ModelLoadError(f"{directory}: no tokenizer that transformers can read ({error})") from error
        vocabulary = self._tokenizer.get_vocab()
        self.vocab_size: int = max(vocabulary.values(), default=-1) + 1
        self.max_token_chars: int = max(map(len, vocabulary), default=1)
        added = self._tokenizer.added_tokens_decoder.items()  # decoding skips those too that have no role
        self.special_ids: frozenset[int] = frozenset(self._tokenizer.all_special_ids) | {
            i for i, t in added if t.special
        }
        eos = self._tokenizer.eos_token_id
        self.eos_token_ids: tuple[int, ...] = () if eos is None else (eos,)
        self.is_fast: bool = bool(self._tokenizer.is_fast)

    @property
    def has_chat_template(self) -> bool:
        """Whether `apply_chat_template` can work."""
        return self._tokenizer.chat_template is not None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; special tokens written out in it are recognised.

        Args:
            text: any text.
            add_special_tokens: put what the tokenizer puts around a text (a first token, for most).

        Raises:
            InvalidRequest: the text is no valid Unicode.
        """
        check_text(text, "prompt")
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return ids

    def decode(self, token_ids: Sequence[int], /, *, skip_special_tokens: bool = True) -> str:
        """Text of these ids, exactly: no spaces are tidied. Ids that the tokenizer doesn't know give nothing."""
        text: str = self._tokenizer.decode(
            list(token_ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return text

    def apply_chat_template(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> list[int]:
        """Token ids of a conversation.

        Args:
            messages: each with "role" and "content".
            add_generation_prompt: end with the opening of the assistant's answer.

        Raises:
            InvalidRequest: no messages, no chat template, or messages that the template refuses.
        """
        if not messages:
            raise InvalidRequest("messages", "messages=[]: must hold at least one message")
        if not self.has_chat_template:
            raise InvalidRequest("messages", "this model has no chat template: send a prompt instead of messages")
        try:
            ids: list[int] = self._tokenizer.apply_chat_template(
                list(messages), add_generation_prompt=add_generation_prompt, tokenize=True, return_dict=False
            )
        except Exception as error:  # a template is a program: it may raise what it likes
            raise InvalidRequest("messages", f"the model's chat template refuses these messages: {error}") from error
        return ids

    def convert_tokens_to_ids(self, token: str) -> int | None:
        """A vocabulary entry's id; an unknown one gives None or the id of the unknown token."""
        found: int | None = self._tokenizer.convert_tokens_to_ids(token)
        return found

    def convert_ids_to_tokens(self, token_id: int) -> str | None:
        """An id's vocabulary entry."""
        found: str | None = self._tokenizer.convert_ids_to_tokens(token_id)
        return found
