"""Every exception that nanolens raises on purpose. Knows nothing of the engine; `assert` is left to tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def shown(value: object, limit: int = 120) -> str:
    """A value for a message, cut to a line's length; an int of thousands of digits has no text in Python."""
    try:
        text = repr(value)
    except Exception:
        return f"<{type(value).__name__}>"
    return text if len(text) <= limit else text[: limit - 3] + "..."


class NanolensError(Exception):
    """Base of all errors that nanolens raises."""


class InvalidRequest(NanolensError, ValueError):
    """A request that is refused before any state changes.

    Args:
        field: the parameter at fault, by its public name (`max_tokens`, `prompt`).
        message: what was given, what is allowed, and what to do.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class PromptTooLong(InvalidRequest):
    """The prompt exceeds max_model_len or the whole KV pool."""


class InvalidConfig(NanolensError, ValueError):
    """An engine setting, or a combination of them, that can't work."""


class UnknownModel(NanolensError, ValueError):
    """MODEL names no directory, no known alias and no loadable hub name."""


class ModelLoadError(NanolensError):
    """A checkpoint that can't be loaded: a missing file, shard or tensor, or a wrong shape."""


class IllegalTransition(NanolensError):
    """A status change that the transition table does not hold; nothing has changed."""


class OutOfBlocks(NanolensError):
    """The block pool can't give what was asked; nothing has changed."""


class OutOfDeviceMemory(NanolensError):
    """A step did not fit into the device's memory."""


class UnknownRequest(NanolensError, LookupError):
    """No live request has this id."""


class NotPaused(NanolensError):
    """A sequence that has to be PAUSED for this is not; nothing has changed."""


class EngineIsPaused(NanolensError):
    """The engine plans no steps until it is continued, so this would wait forever.

    Args:
        message: in words.
        request_ids: those that were waited for and go on when the engine does.
        outputs: what others of them have given, by request id.
    """

    def __init__(self, message: str, request_ids: Sequence[str] = (), outputs: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.request_ids = list(request_ids)
        self.outputs = dict(outputs or {})


class CalledBack(NanolensError):
    """A step, or the engine's end, was asked for from within one of its callbacks; nothing has changed."""


class JournalError(NanolensError):
    """A journal that is missing, foreign, of a newer version, or damaged beyond its torn tail."""


class AuditError(NanolensError):
    """A fact in the engine or a journal contradicts another one: the first violation, in words."""


class InspectError(NanolensError):
    """A tool that looks at an engine can't show or do something: no connection, refused, nothing there yet."""


class RequestFailed(NanolensError):
    """A request that ended in ERROR; the message names the cause."""


class EngineDead(NanolensError):
    """The engine stopped; every open request has been told."""
