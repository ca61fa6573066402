"""A fleet's deployment, which can't be broken off, and the wait until it runs, which can. Knows no Ray."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ..errors import NanolensError

LOOK_S = 0.25  # between two looks


class Deployment(threading.Thread):
    """A call that deploys, which can't be ended before it is done, in a thread of its own.

    Args:
        deploy: the call.

    Attributes:
        handle: what came of it; None before, and where it failed.
        error: why it failed.
    """

    def __init__(self, deploy: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.handle: Any = None
        self.error: Exception | None = None
        self._deploy = deploy
        self.start()

    def run(self) -> None:
        """Make the call."""
        try:
            self.handle = self._deploy()
        except Exception as error:  # Ray's own, of many kinds
            self.error = error

    def wait(self, stop: threading.Event) -> None:
        """Wait until it is done, or for as long as nobody says stop."""
        while self.is_alive() and not stop.wait(LOOK_S):
            pass


def until_running(status: Callable[[], Any], stop: threading.Event) -> None:
    """Wait until the application runs, or for as long as nobody says stop: Ray's own wait outlasts even its deletion.

    Args:
        status: of the application; None: not known yet.
        stop: ends the wait.

    Raises:
        NanolensError: it can't run.
    """
    while not stop.is_set():
        found = status()
        if found is not None and found.status == "RUNNING":
            return
        if found is not None and found.status == "DEPLOY_FAILED":
            raise NanolensError(str(found.message))
        stop.wait(LOOK_S)
