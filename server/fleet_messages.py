"""What goes between the front of a fleet and its replicas: plain values, pickled on their way. Knows no transport."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

ROUTE = "nanolens.route"  # in the state of a replica's ASGI scope: what the router decided on, for the journal
MAX_LEFT = 256  # characters


@dataclass(slots=True)
class Route:
    """Which replica a call went to, and why; the router fills it in.

    Attributes:
        replica: the one that took the call; "" before.
        reason: prefix (it caches the most of the prompt), load (nobody caches any, or the one that does is too busy),
            no_blocks (the one that does has no free blocks), pinned (the call names it), only (there is no other),
            full (the first choice took no more calls).
        order: replicas in the order in which they were to be asked.
        among: replicas that it is compared with: those that could have got it, or all of them where it is pinned.
        matched: replica -> leading blocks of the prompt that it is believed to cache.
        best_matched: the most that any of those in `among` is believed to cache.
        ages: replica -> seconds since it was asked for what is known of its cache.
        blocks: full blocks of the prompt.
        loads: replica -> requests that it held.
    """

    replica: str = ""
    reason: str = ""
    order: tuple[str, ...] = ()
    among: tuple[str, ...] = ()
    matched: dict[str, int] = field(default_factory=dict)
    best_matched: int = 0
    ages: dict[str, float] = field(default_factory=dict)
    blocks: int = 0
    loads: dict[str, int] = field(default_factory=dict)

    @property
    def known_ms(self) -> int:
        """How old at most what was known of its cache was, in milliseconds."""
        return round(1000 * self.ages.get(self.replica, 0.0))

    def taken_by(self, replica: str) -> None:
        """Note who took the call: the first choice, or another one, as that was full."""
        if self.order and replica != self.order[0] and self.reason != "pinned":
            self.reason = "full"
        self.replica = replica


@dataclass(slots=True)
class HttpCall:
    """An HTTP request on its way to a replica.

    Attributes:
        method: GET, POST, ...
        path: decoded, without a query.
        query: as it came.
        headers: names in lower case; the trace context in them is the router's span.
        body: whole.
        client: address and port of who sent it, or None.
        server: the address that it came to, or None.
        scheme: http or https.
        hashes: of the prompt's full blocks, from the first one on.
        pinned: the replica that has to answer; "": any.
        avoid: replicas that have failed it.
        attempt: 1, 2, ...: how often it was routed.
        generates: whether it is a request that the engine runs, which counts as load.
        number: by which it is counted (FleetView.open); 0: it is not.
        route: what the router made of it.
    """

    method: str
    path: str
    query: bytes = b""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    client: tuple[str, int] | None = None
    server: tuple[str, int | None] | None = None
    scheme: str = "http"
    hashes: tuple[bytes, ...] = ()
    pinned: str = ""
    avoid: frozenset[str] = frozenset()
    attempt: int = 1
    generates: bool = False
    number: int = 0
    route: Route = field(default_factory=Route)

    def again(self, avoid: frozenset[str], attempt: int = 1) -> HttpCall:
        """The same call, to be routed anew and not to these replicas if others can take it."""
        return replace(self, avoid=avoid, attempt=attempt, number=0, route=Route())

    def route_record(self) -> dict[str, str | int]:
        """The decision, as the journal of the replica that took the call has it."""
        route = self.route
        record: dict[str, str | int] = {
            "replica": route.replica, "reason": route.reason, "matched_blocks": route.matched.get(route.replica, 0),
            "best_matched_blocks": route.best_matched, "prompt_blocks": route.blocks,
            "load": route.loads.get(route.replica, 0),
            "least_load": min((route.loads.get(name, 0) for name in route.among), default=0),
            "replicas": len(route.among), "attempt": self.attempt, "known_ms": route.known_ms,
        }  # fmt: skip
        return record | ({"left": " ".join(sorted(self.avoid))[:MAX_LEFT]} if self.avoid else {})


@dataclass(slots=True)
class Ask:
    """A question to one replica, or with "" to any: what has changed in its cache since `version`, and how it is."""

    pinned: str
    version: int = 0
    route: Route = field(default_factory=Route)


@dataclass(frozen=True, slots=True)
class Report:
    """One replica, as its journal shows it.

    Attributes:
        replica: its id.
        run: of its engine.
        pid: its process.
        engine_pid: the engine's.
        journal: directory of the engine's journal.
        version: number of the last change of the cache that is in here.
        is_whole: whether `added` is everything that is cached, rather than what came since the version asked for.
        added: hashes of blocks, 8 bytes each.
        removed: hashes of blocks that are not cached any more.
        waiting: sequences.
        running: sequences.
        free_blocks: KV blocks without references.
        num_blocks: in the pool.
        queue_age_s: how long the sequence that waits longest has been waiting.
        trouble: why it gives no answers, in words; "": it does.
        is_engine_gone: whether that is because its engine has ended.
        queried_tokens: prompt tokens that were looked up in the cache, on first admissions.
        hit_tokens: those of them that were found.
    """

    replica: str
    run: str = ""
    pid: int = 0
    engine_pid: int = 0
    journal: str = ""
    version: int = 0
    is_whole: bool = False
    added: bytes = b""
    removed: bytes = b""
    waiting: int = 0
    running: int = 0
    free_blocks: int = 0
    num_blocks: int = 0
    queue_age_s: float = 0.0
    trouble: str = ""
    is_engine_gone: bool = False
    queried_tokens: int = 0
    hit_tokens: int = 0
