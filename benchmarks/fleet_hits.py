"""How much of the prompts a running fleet finds in its caches, where it routes them and where chance does.

`python -m nanolens.benchmarks.fleet_hits URL --clients 16`, against `nano-serve MODEL --replicas N`.
"""

from __future__ import annotations

import argparse
import json
import random
import threading
import time
import urllib.request
from collections.abc import Sequence
from typing import Any

LETTERS = "abcdefghijklmnopqrstuvwxyz "
SETTLE_S = 1.0  # in which the last reports of the replicas are in
TIMEOUT_S = 120.0


def main(argv: Sequence[str] | None = None) -> int:
    """Ask, and print both rates."""
    parser = argparse.ArgumentParser(prog="fleet_hits", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("url", help="of a fleet, as http://127.0.0.1:8000")
    parser.add_argument("--clients", type=int, default=16, help="that ask at once")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--prefixes", type=int, default=20, help="that the prompts share")
    parser.add_argument("--chars", type=int, default=576, help="of a prefix")
    parser.add_argument("--seed", type=int, default=0)
    found = parser.parse_args(argv)
    rng = random.Random(found.seed)
    for by_chance in (False, True):
        began = time.monotonic()
        asked = prompts(rng, found.requests, found.prefixes, found.chars)
        rate = measure(found.url, asked, found.clients, by_chance, rng)
        name = "by chance" if by_chance else "routed"
        print(f"{found.clients} clients, {name}: {rate:.3f} in {time.monotonic() - began - SETTLE_S:.1f} s", flush=True)
    return 0


def prompts(rng: random.Random, count: int, prefixes: int, chars: int) -> list[str]:
    """Prompts that each begin with one of some prefixes, which no others have."""
    shared = ["".join(rng.choices(LETTERS, k=chars)) for _ in range(prefixes)]
    return [f"{rng.choice(shared)} {number} {''.join(rng.choices(LETTERS, k=20))}" for number in range(count)]


def measure(url: str, asked: list[str], clients: int, by_chance: bool, rng: random.Random) -> float:
    """The share of the prompts' tokens that was found in a cache."""
    fleet = _fleet(url)
    model, names = _get(f"{url}/version")["model"], [each["id"] for each in fleet["replicas"]]
    work = iter([(f"{url}/replicas/{rng.choice(names)}" if by_chance else url, prompt) for prompt in asked])
    lock = threading.Lock()

    def ask() -> None:
        while True:
            with lock:
                where, prompt = next(work, ("", ""))
            if not where:
                return
            body = {"model": model, "prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True}
            _get(f"{where}/v1/completions", body)

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    time.sleep(SETTLE_S)
    before, after = _tokens(fleet), _tokens(_fleet(url))
    return (after[0] - before[0]) / (after[1] - before[1])


def _tokens(fleet: dict[str, Any]) -> tuple[int, int]:
    """Tokens of prompts that were found, and all of them, so far."""
    replicas = fleet["replicas"]
    return sum(each["hit_tokens"] for each in replicas), sum(each["queried_tokens"] for each in replicas)


def _fleet(url: str) -> dict[str, Any]:
    return _get(f"{url}/debug/fleet")


def _get(url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """The answer of a GET, or of a POST where there is a body.

    Raises:
        OSError: no answer, or an error.
    """
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


if __name__ == "__main__":
    raise SystemExit(main())
