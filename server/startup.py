"""What a server says while it starts, and the tokenizer that its process loads. Knows no HTTP."""

from __future__ import annotations

import os
import sys

from ..models import load_tokenizer
from ..models.tokenizer import AnyTokenizer
from .settings import ServeSettings

_NO_ADVICE = "TRANSFORMERS_NO_ADVISORY_WARNINGS"
_ANYWHERE = ("0.0.0.0", "::", "")


def say(text: str) -> None:
    """A line for whoever started the server."""
    print(f"nano-serve: {text}", file=sys.stderr, flush=True)


def load_tokenizer_alone(model: str) -> AnyTokenizer:
    """A model's tokenizer, without torch, which takes seconds and hundreds of megabytes and serves nothing here.

    transformers loads torch where it finds it, so it is told that there is none, for as long as this process lives.

    Raises:
        UnknownModel, ModelLoadError: as `load_tokenizer`.
    """
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # importlib's own sign for "not to be had"
    before = os.environ.get(_NO_ADVICE)
    os.environ[_NO_ADVICE] = "1"  # or it says that there is no torch
    try:
        return load_tokenizer(model)
    finally:
        if before is None:
            del os.environ[_NO_ADVICE]
        else:
            os.environ[_NO_ADVICE] = before


def base_url(settings: ServeSettings, port: int) -> str:
    """Where this machine reaches it."""
    host = "127.0.0.1" if settings.host in _ANYWHERE else settings.host
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def urls(settings: ServeSettings, port: int) -> list[str]:
    """Where to go, a line each."""
    base = base_url(settings, port)
    lines = [f"OpenAI API   {base}/v1", f"endpoints    {base}/docs", f"state        {base}/debug/snapshot"]
    if settings.engine.metrics_port is not None:
        lines.append(f"metrics      {base}/metrics")
    if settings.engine.journal is not None:
        lines.append(f"journal      nano-trace tail -f {settings.engine.journal}")
    return lines
