"""nanolens: an LLM inference engine that keeps a journal of everything it does.

The public names load on first use, so that importing a part (the journal, the scheduler) never pulls in torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine.async_engine import AsyncEngine
    from .engine.config import EngineConfig
    from .engine.llm import LLM
    from .engine.sampling_params import SamplingParams
    from .engine.sequence import SequenceStatus

__version__ = "0.1.0"
__all__ = ["LLM", "AsyncEngine", "SamplingParams", "EngineConfig", "SequenceStatus", "__version__"]

_HOME = {
    "LLM": ".engine.llm",
    "AsyncEngine": ".engine.async_engine",
    "SamplingParams": ".engine.sampling_params",
    "EngineConfig": ".engine.config",
    "SequenceStatus": ".engine.sequence",
}


def __getattr__(name: str) -> Any:
    """Load a public name from its module (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; public names are {', '.join(__all__)}")
    from importlib import import_module

    value = getattr(import_module(_HOME[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
