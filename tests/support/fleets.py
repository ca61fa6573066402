"""`nano-serve --replicas N` as a process of its own, for tests: asked over HTTP, under load from threads."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from serve import NAME, Server
from sse_wire import DONE, WireStream

START_S = 90.0  # of Ray and its processes, on a machine that others use


class FleetServer(Server):
    """A fleet that is ready."""

    deadline_s = START_S

    def __init__(self, directory: Path, replicas: int = 2, **flags: Any) -> None:
        super().__init__(directory, replicas=replicas, **flags)

    def fleet(self) -> dict[str, Any]:
        """GET /debug/fleet."""
        answer = self.get("/debug/fleet")
        assert answer.status == 200, answer.body
        found: dict[str, Any] = answer.json
        return found

    def replicas(self) -> dict[str, dict[str, Any]]:
        """What is known of each replica, by its id."""
        return {each["id"]: each for each in self.fleet()["replicas"]}

    def wait_for(self, count: int, without: Sequence[str] = ()) -> None:
        """Wait until so many replicas run, and none of these."""

        def there() -> bool:
            names = {name for name, each in self.replicas().items() if each["run"] and not each["trouble"]}
            return len(names) == count and not names & set(without)

        self.wait_until(there, f"{count} replicas without {list(without)}")

    def kill_one(self, what: str) -> str:
        """SIGKILL the process (`pid`, `engine_pid`) of the replica that has had most to do: its id."""
        victim = max(self.fleet()["replicas"], key=lambda each: int(each["in_flight"]))
        os.kill(victim[what], signal.SIGKILL)
        return str(victim["id"])


def tally(port: int, path: str, body: Mapping[str, Any]) -> str:
    """What became of a stream: "ok", the code of the error that it ended in, or how it was broken off."""
    try:
        with WireStream(port, path, {**body, "stream": True}) as wire:
            if wire.status != 200:
                return f"status {wire.status}"
            events = list(wire.events())
    except (OSError, AssertionError, ValueError) as error:
        return f"broken: {error!r}"[:200]
    if not events or events[-1] != DONE:
        return "without [DONE]"
    last = json.loads(events[-2])
    if "error" in last:
        return str(last["error"]["code"])
    return "ok" if any(choice["finish_reason"] for choice in last["choices"]) else "without finish_reason"


class Load:
    """Streams of prompts that share prefixes, from several threads.

    Args:
        server: who is asked.
        groups: prefixes.
        prefix_chars: of each.
        max_tokens: of an answer.
        seed: of the order of the groups, and of the prefixes.
        threads: that ask at once.
    """

    def __init__(
        self, server: Server, groups: int, prefix_chars: int, max_tokens: int, seed: int = 0, threads: int = 4
    ) -> None:
        self._server, self._threads, self._max_tokens = server, threads, max_tokens
        self._random = random.Random(seed)
        self._prefixes = ["".join(self._random.choices("abcdefgh ", k=prefix_chars)) for _ in range(groups)]

    def run(
        self,
        count: int,
        path: Callable[[random.Random], str] = lambda rng: "/v1/completions",
        at: Mapping[int, Callable[[], object]] | None = None,
    ) -> Counter[str]:
        """Ask so many times: what became of each, counted.

        Args:
            count: of requests.
            path: of each.
            at: called as the request of this number begins.
        """
        jobs = [(number, self._random.choice(self._prefixes), path(self._random)) for number in range(count)]
        results: Counter[str] = Counter()
        lock, todo = threading.Lock(), iter(jobs)

        def work() -> None:
            while True:
                with lock:
                    job = next(todo, None)
                if job is None:
                    return
                number, prefix, where = job
                if at is not None and number in at:
                    at[number]()
                body = {"prompt": f"{prefix}{number}", "max_tokens": self._max_tokens, "ignore_eos": True}
                found = tally(self._server.port, where, {"model": NAME, **body})
                with lock:
                    results[found] += 1

        threads = [threading.Thread(target=work) for _ in range(self._threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results
