"""Every exception that nanolens raises on purpose. Knows nothing of the engine; `assert` is left to tests."""

from __future__ import annotations


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
    """The engine plans no steps until it is continued, so this would wait forever."""


class JournalError(NanolensError):
    """A journal that is missing, foreign, of a newer version, or damaged beyond its torn tail."""


class AuditError(NanolensError):
    """A fact in the engine or a journal contradicts another one: the first violation, in words."""


class RequestFailed(NanolensError):
    """A request that ended in ERROR; the message names the cause."""


class EngineDead(NanolensError):
    """The engine stopped; every open request has been told."""
