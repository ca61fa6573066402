"""Models of a known shape with random weights, and a byte tokenizer for them: for tests and benchmarks.

Nothing is read from disk. The same name, dtype and device give the same weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import InvalidRequest, UnknownModel
from .tokenizer import Message, check_text

if TYPE_CHECKING:
    from .transformer import Transformer

PREFIX = "dummy:"
_DRAWN_ON_CPU = 1 << 24  # parameters
_SEED = 20240229

# The special tokens follow the 256 bytes.
SPECIALS = ("<|bos|>", "<|eos|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|unused|>")
EOS, END = 256 + SPECIALS.index("<|eos|>"), 256 + SPECIALS.index("<|end|>")

_TINY: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256 + len(SPECIALS),
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,  # a tied random head would repeat the last token for ever
    "eos_token_id": [EOS, END],
    "dtype": "float32",
}

_QWEN3_06B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    "eos_token_id": [EOS, END],
    "dtype": "bfloat16",
}

SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": _QWEN3_06B,
    "qwen3-8b": _QWEN3_06B
    | {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "tie_word_embeddings": False,
    },
    "smollm2-135m": {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
        "eos_token_id": [EOS, END],
        "dtype": "float32",
    },
    "qwen3-tiny": _TINY
    | {
        "architectures": ["Qwen3ForCausalLM"],
        "head_dim": 32,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    },
    "llama-tiny": _TINY
    | {
        "architectures": ["LlamaForCausalLM"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
}


def dummy_shape(name: str) -> dict[str, Any]:
    """The config.json that `dummy:NAME` would have.

    Raises:
        UnknownModel: listing the names that exist.
    """
    shape = SHAPES.get(name.removeprefix(PREFIX))
    if shape is None:
        raise UnknownModel(f"{name!r} is no dummy model; there are {', '.join(PREFIX + each for each in SHAPES)}")
    return shape


def fill_random(model: Transformer) -> None:
    """Give every parameter a value: norms 1, biases 0, weights normal with variance 1 / inputs.

    A small model has the same weights on every device; a large one is drawn where it lies, which is quicker. A rank
    draws whole weights and keeps its part, so that all ranks together hold the model that one alone would.
    """
    import torch

    shapes = {target.name: target.shape for target in model.targets()}
    small = sum(math.prod(shape) for shape in shapes.values()) <= _DRAWN_ON_CPU
    generator = torch.Generator("cpu" if small else model.device).manual_seed(_SEED)
    last, drawn = "", torch.empty(0)
    for target in model.targets():
        if target.name.endswith("norm.weight"):
            target.view.fill_(1.0)
        elif target.view.dim() == 1:
            target.view.zero_()
        else:
            if target.name != last:
                drawn = torch.empty(0)  # before there are two
                drawn = torch.empty(target.shape, dtype=torch.float32, device=generator.device)
                drawn.normal_(0.0, target.shape[1] ** -0.5, generator=generator)
            last = target.name
            target.view.copy_(drawn[target.part])


class ByteTokenizer:
    """One token a byte of UTF-8, then eight special tokens, then nameless ids up to the vocabulary's size.

    Args:
        vocab_size: of the model; an id that is neither byte nor special is written `<id>`.
    """

    eos_token_ids = (EOS, END)
    special_ids = frozenset(range(256, 256 + len(SPECIALS)))
    max_token_chars = 1
    is_fast = False
    has_chat_template = True

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The bytes of the text; nothing is put around it.

        Raises:
            InvalidRequest: the text is no valid Unicode.
        """
        check_text(text, "prompt")
        return list(text.encode())

    def decode(self, token_ids: Sequence[int], /, *, skip_special_tokens: bool = True) -> str:
        """Text of these ids, with U+FFFD for bytes that are no UTF-8."""
        parts = bytearray()
        for each in token_ids:
            if each < 256:
                parts.append(each)
            elif each not in self.special_ids:
                parts += f"<{each}>".encode()
            elif not skip_special_tokens:
                parts += SPECIALS[each - 256].encode()
        return parts.decode("utf-8", errors="replace")

    def apply_chat_template(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> list[int]:
        """<|role|>content<|end|> for each message, then <|assistant|>.

        Raises:
            InvalidRequest: no messages, or a role other than system, user and assistant.
        """
        if not messages:
            raise InvalidRequest("messages", "messages=[]: must hold at least one message")
        ids: list[int] = []
        for message in messages:
            opening = f"<|{message.get('role')}|>"
            if opening not in ("<|system|>", "<|user|>", "<|assistant|>"):
                raise InvalidRequest("messages", f"role={message.get('role')!r}: must be system, user or assistant")
            ids += [256 + SPECIALS.index(opening), *self.encode(message["content"]), END]
        return [*ids, 256 + SPECIALS.index("<|assistant|>")] if add_generation_prompt else ids
