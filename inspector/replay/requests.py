"""The requests and settings of a recorded run, made again for the real engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ...engine.config import EngineConfig
from ...engine.request import Request
from ...engine.sampling_params import SamplingParams
from ...errors import InvalidConfig, InvalidRequest, JournalError
from ...telemetry.events import EngineStarted, RequestArrived

_ELSEWHERE = ("journal", "otlp", "metrics_port", "journal_content", "recording", "audit", "swap_path")
_SETTINGS = {f.name for f in dataclasses.fields(EngineConfig)} - set(_ELSEWHERE)
_PARAMS = {f.name for f in dataclasses.fields(SamplingParams)}


MOST_BLOCKS = 1 << 21


def check_pool(num_blocks: int, config: EngineConfig) -> str:
    """What is wrong with a pool's size for a replay, which keeps a record of each block; "" if nothing is."""
    pools = {"num_blocks": num_blocks, "host_blocks": config.host_blocks, "disk_blocks": config.disk_blocks}
    total = sum(pools.values())
    if total <= MOST_BLOCKS:
        return ""
    told = ", ".join(f"{name}={count}" for name, count in pools.items() if count)
    return f"{told}: a replay has room for {MOST_BLOCKS:,} blocks"


def config_of(started: EngineStarted) -> EngineConfig:
    """The settings of a run, without what goes to files and other processes.

    Raises:
        JournalError: they are none that this version knows.
    """
    options = {name: value for name, value in started.config.items() if name in _SETTINGS}
    options |= {"model": started.model, "num_blocks": started.num_blocks, "block_size": started.block_size}
    if options.get("disk_blocks"):
        options["swap_path"] = "not used"
    try:
        return EngineConfig(**options)  # type: ignore[arg-type]
    except (InvalidConfig, TypeError) as error:
        raise JournalError(f"the settings of the run can't be used: {error}") from None


def params_of(arrived: RequestArrived) -> SamplingParams:
    """The parameters of a request, without what names content.

    Raises:
        JournalError: they are none that this version knows.
    """
    try:
        return SamplingParams(**{k: v for k, v in arrived.params.items() if k in _PARAMS})  # type: ignore[arg-type]
    except (InvalidRequest, TypeError) as error:
        raise JournalError(f"the parameters of request {arrived.request} can't be used: {error}") from None


@dataclasses.dataclass(slots=True)
class ReplayRequest(Request):
    """A request without text, whose text fails where it did.

    Attributes:
        fails: given an index, raises the error that decoding this sequence's text ended with, if that comes next.
        delivered: told of each sequence whose token is passed on, by index.
    """

    fails: Callable[[ReplayRequest, int], None] = lambda request, index: None
    delivered: Callable[[ReplayRequest, int], None] = lambda request, index: None

    def open_streams(self) -> None:
        """Have each token come by here."""
        self.streams = [None] * len(self.sequences)  # type: ignore[list-item]
        self.logprobs = [[] for _ in self.sequences]

    def push(self, index: int, token: int) -> tuple[str, str | None]:
        """No text."""
        self.delivered(self, index)
        self.fails(self, index)
        return "", None

    def close_stream(self, index: int) -> tuple[str, str | None]:
        """No text."""
        self.delivered(self, index)
        self.fails(self, index)
        return "", None

    def held_back(self, index: int) -> str:
        """No text."""
        return ""

    def keep_text(self) -> None:
        """No text."""
        for index, seq in enumerate(self.sequences):
            if seq.is_live:
                self.fails(self, index)

    def go_on(self, index: int, appended: bool) -> str:
        """No text."""
        self.fails(self, index)
        return ""

    def text_of(self, index: int) -> str:
        """No text."""
        return ""
