"""What an engine is built from: a runner, and the tokenizer and defaults that belong to its model. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ..plan import Runner

if TYPE_CHECKING:
    from ...models.generation import GenerationDefaults
    from ...models.tokenizer import AnyTokenizer


class LoadedRunner(Runner, Protocol):
    """A runner that was made ready for one model.

    Attributes:
        max_model_len: longest sequence in tokens.
        startup: what preparing cost, by name: nanoseconds (`*_ns`), bytes (`*_bytes`) and counts.
    """

    max_model_len: int
    startup: dict[str, int]


@dataclass(frozen=True, slots=True)
class Loaded:
    """What an engine needs of its model.

    Attributes:
        runner: computes steps.
        tokenizer: text to ids and back.
        defaults: what the model suggests where a request says nothing.
        vocab_size: every id that a request may name or get is below it.
        is_asynchronous: whether a launched step runs beside the host.
    """

    runner: LoadedRunner
    tokenizer: AnyTokenizer
    defaults: GenerationDefaults
    vocab_size: int
    is_asynchronous: bool
