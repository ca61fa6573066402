"""Small real tokenizers, built in place: byte-level BPE as in Qwen and SmolLM2, and byte fallback as in Llama 2."""

from __future__ import annotations

from functools import cache

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

WAVING_HAND = "\N{WAVING HAND SIGN}\N{EMOJI MODIFIER FITZPATRICK TYPE-4}"


def _byte_chars() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary (GPT-2); printable ones are their own."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = (byte for byte in range(256) if byte not in printable)
    chars = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(rest)}
    return [chars[byte] for byte in range(256)]


@cache
def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    """Token b is byte b for b < 256; then merges that split WAVING_HAND inside a character; `<|end|>` is special."""
    chars = _byte_chars()
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), (" ", "w"), ("\u00c3", "\u00a9")]
    pairs = [tuple("".join(chars[byte] for byte in half.encode("latin-1")) for half in pair) for pair in merges]
    hand, tone = (char.encode() for char in WAVING_HAND)
    for whole in (hand[:3], tone):  # F0 9F 91 | 8B | F0 9F 8F BD
        for end in range(2, len(whole) + 1):
            pair = ("".join(chars[b] for b in whole[: end - 1]), chars[whole[end - 1]])
            if pair not in pairs:
                pairs.append(pair)
    vocab = {char: byte for byte, char in enumerate(chars)}
    for left, right in pairs:
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")


@cache
def byte_fallback_tokenizer() -> PreTrainedTokenizerFast:
    """A few words with the sentencepiece space mark, then `<0x00>` to `<0xFF>`; the text's first space is stripped."""
    space = "\N{LOWER ONE EIGHTH BLOCK}"
    words = ["<unk>", "</s>", space, space * 2, "a", space + "a", "DE", space + "word", "\u00e9", "\ufffd"]
    vocab = {word: i for i, word in enumerate([*words, *(f"<0x{byte:02X}>" for byte in range(256))])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(space, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>")
