"""Steers the engine of a server over HTTP. Each action is noted in its journal first, with who asked for it."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Mapping
from typing import Any

from ...errors import InspectError
from .http_stream import ServerLink

STEPS_S = 40.0  # for steps to be done: the server waits for half a minute


def origin() -> str:
    """Who steers, as the journal names it: `nano-inspect USER@HOST`."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):
        user = str(os.getuid())
    return f"nano-inspect {user}@{socket.gethostname()}"[:256]


class HttpControl:
    """Control of the engine behind a server. Errors are InspectErrors, in words.

    Args:
        link: to the server.
        run: the only one that is steered; "": whichever the server runs.
    """

    def __init__(self, link: ServerLink, run: str = "") -> None:
        self._link, self._run = link, run
        self._origin = origin()

    def of_run(self, run: str) -> HttpControl:
        """The same for one run alone: a server that runs another one by now refuses."""
        return HttpControl(self._link, run)

    def pause_engine(self) -> None:
        """Plan no more steps."""
        self._do("pause the engine", "POST", "/debug/engine/pause")

    def continue_engine(self) -> None:
        """Plan steps again."""
        self._do("continue the engine", "POST", "/debug/engine/resume")

    def step_engine(self, steps: int) -> None:
        """Do so many steps, and pause again; answered when they are done.

        Raises:
            InspectError: also where the work ended before, or half a minute was not enough.
        """
        what = "1 step" if steps == 1 else f"{steps} steps"
        answer = self._do(f"do {what}", "POST", "/debug/engine/step", {"steps": steps}, STEPS_S)
        if not answer.get("done", True):
            why = "" if answer.get("engine_paused") else "; what is left is done when there is work for it"
            raise InspectError(f"{what}: not all done, the engine is at step {answer.get('step')}{why}")

    def breakpoints(self) -> dict[int, str]:
        """Breakpoints by number."""
        answer = self._link.ask("GET", "/debug/breakpoints", run=self._run)
        return {int(each["number"]): str(each["text"]) for each in answer["breakpoints"]}

    def add_breakpoint(self, predicate: str, action: str = "engine") -> int:
        """Stop the engine, or the sequence, where an event meets a predicate: the breakpoint's number."""
        body = {"predicate": predicate, "action": action}
        return int(self._do(f"break on {predicate} ({action})", "POST", "/debug/breakpoints", body)["number"])

    def remove_breakpoint(self, number: int) -> None:
        """Forget a breakpoint."""
        self._do(f"remove breakpoint {number}", "DELETE", f"/debug/breakpoints/{number}")

    def pause_sequence(self, seq: int) -> None:
        """Pause a sequence."""
        self._do(f"pause sequence {seq}", "POST", f"/debug/sequences/{seq}/pause")

    def resume_sequence(self, seq: int) -> None:
        """Let a paused sequence go on."""
        self._do(f"resume sequence {seq}", "POST", f"/debug/sequences/{seq}/resume")

    def abort_sequence(self, seq: int) -> None:
        """End the request that a sequence belongs to."""
        self._do(f"abort sequence {seq}", "POST", f"/debug/sequences/{seq}/abort")

    def set_priority(self, seq: int, priority: int) -> None:
        """Set the priority of the request that a sequence belongs to; lower is more urgent."""
        body = {"priority": priority}
        self._do(f"set the priority of sequence {seq} to {priority}", "POST", f"/debug/sequences/{seq}/priority", body)

    def _do(
        self, what: str, method: str, path: str, body: Mapping[str, Any] | None = None, timeout_s: float = 10.0
    ) -> dict[str, Any]:
        """Note what is about to be done, and do it."""
        self._link.ask("POST", "/debug/journal/mark", {"text": what[:1000], "origin": self._origin}, run=self._run)
        answer = self._link.ask(method, path, body, timeout_s, self._run)
        return dict(answer)
