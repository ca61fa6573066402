"""uvicorn as the lifecycle uses it: signals are left alone, and connections can be cut. Knows no engine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

KEEP_ALIVE_S = 75  # longer than clients keep idle connections, so that none is closed as a request comes
BACKLOG = 2048
GRACE_S = 10  # for answers that are being sent as HTTP ends; uvicorn cancels them then, so cut them before


class Http(uvicorn.Server):
    """HTTP in front of an application.

    Args:
        app: what answers.
        access_log: whether each answer is logged.
    """

    def __init__(self, app: object, access_log: bool) -> None:
        super().__init__(
            uvicorn.Config(
                app,  # type: ignore[arg-type]
                log_level="warning", log_config=None, access_log=access_log, server_header=False,
                proxy_headers=False, lifespan="off", backlog=BACKLOG, timeout_graceful_shutdown=GRACE_S,
                timeout_keep_alive=KEEP_ALIVE_S, ws="none",
                http="h11",  # whatever else is installed: another one is not tested with what cuts connections
            )
        )  # fmt: skip

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield

    def cut_stuck(self) -> int:
        """Close the connections whose clients take nothing of what is sent to them: how many."""
        return self._cut(lambda each: each.flow is not None and each.flow.write_paused)

    def cut_all(self) -> int:
        """Close every connection, whatever is being sent: how many."""
        return self._cut(lambda each: True)

    def _cut(self, is_meant: Callable[[Any], bool]) -> int:
        meant: list[Any] = [each for each in self.server_state.connections if is_meant(each)]
        for each in meant:
            each.transport.abort()
        return len(meant)
