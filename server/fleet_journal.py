"""A replica's own journal, followed: what its engine caches, who waits, how much was found in the cache.

Runs in a thread of its own. Knows events, and neither the engine nor HTTP.
"""

from __future__ import annotations

import logging
import threading
from collections import deque

from ..errors import JournalError
from ..telemetry.clock import Clock, monotonic_ns
from ..telemetry.events import (
    AnyEvent,
    BlocksAllocated,
    BlocksCached,
    BlocksSwapped,
    EngineStarted,
    JournalDropped,
    Keyframe,
    PrefixMatched,
    StatusChanged,
)
from ..telemetry.reader import JournalReader
from .fleet_cache import HASH_BYTES
from .fleet_messages import Report

MAX_CHANGES = 1 << 14  # of the cache that are remembered; who has seen less gets the whole cache
POLL_S = 0.02
RETRY_S = 0.5
_NS = 1_000_000_000

logger = logging.getLogger("nanolens.server")


class CacheFold:
    """The state that routing needs, from events. One thread applies, any may ask.

    Args:
        clock: of the journal.
    """

    def __init__(self, clock: Clock = monotonic_ns) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._contents: dict[int, bytes] = {}  # block -> hash
        self._changes: deque[tuple[bool, bytes]] = deque(maxlen=MAX_CHANGES)
        self._version = 0
        self._joined_at = 0  # version of the last keyframe that everything was taken from
        self._waiting: dict[int, int] = {}  # sequence -> since when
        self._must_join = True
        self._queried = self._hit = 0

    def apply(self, event: AnyEvent) -> None:
        """Take one event."""
        with self._lock:
            if isinstance(event, StatusChanged):
                if event.new == "WAITING":
                    self._waiting[event.seq] = event.t
                elif event.old == "WAITING":
                    self._waiting.pop(event.seq, None)
            elif isinstance(event, BlocksCached):
                for index, block in enumerate(event.blocks):
                    self._put(block, event.hashes[index * HASH_BYTES : (index + 1) * HASH_BYTES])
            elif isinstance(event, BlocksAllocated | BlocksSwapped):
                for block in event.evicted:
                    self._remove(block)
            elif isinstance(event, PrefixMatched):
                if not event.recompute:
                    self._queried += event.queried
                    self._hit += event.hit
            elif isinstance(event, Keyframe):
                if self._must_join:
                    self._join(event)
            elif isinstance(event, EngineStarted):
                self._must_join = False  # nothing is cached yet
            elif isinstance(event, JournalDropped):
                self._must_join = True

    def gap(self) -> None:
        """Some events are not going to come: go on from the next keyframe."""
        with self._lock:
            self._must_join = True

    def report(self, replica: str, since: int) -> Report:
        """The cache as it changed since a version, and the queue now."""
        with self._lock:
            first = self._version - len(self._changes)
            oldest = min(self._waiting.values(), default=None)
            age_s = 0.0 if oldest is None else max(0, self._clock() - oldest) / _NS
            if since < max(first, self._joined_at, 1):
                added, removed, is_whole = list(self._contents.values()), [], True
            else:
                news = dict((each, there) for there, each in list(self._changes)[since - first :])
                added = [each for each, there in news.items() if there]
                removed, is_whole = [each for each, there in news.items() if not there], False
            return Report(
                replica, version=self._version, is_whole=is_whole, added=b"".join(added), removed=b"".join(removed),
                waiting=len(self._waiting), queue_age_s=age_s, queried_tokens=self._queried, hit_tokens=self._hit,
            )  # fmt: skip

    def _put(self, block: int, content: bytes) -> None:
        self._contents[block] = content
        self._change(True, content)

    def _remove(self, block: int) -> None:
        content = self._contents.pop(block, None)
        if content is not None:
            self._change(False, content)

    def _change(self, there: bool, content: bytes) -> None:
        self._changes.append((there, content))
        self._version += 1

    def _join(self, e: Keyframe) -> None:
        """Take the whole state."""
        self._must_join = False
        hashes = e.cached_hashes
        self._contents = {
            block: hashes[index * HASH_BYTES : (index + 1) * HASH_BYTES] for index, block in enumerate(e.cached_blocks)
        }
        self._waiting = {seq.seq: seq.status_t for seq in e.sequences if seq.status == "WAITING"}
        self._version += 1
        self._changes.clear()
        self._joined_at = self._version


class JournalFollower:
    """The thread that reads a journal into a fold until `stop`.

    Args:
        fold: gets its events.
        directory: of the journal.
        run: of the engine.
    """

    def __init__(self, fold: CacheFold, directory: str, run: str) -> None:
        self._fold, self._directory, self._run = fold, directory, run
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="nanolens-fold", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join(5.0)

    def _follow(self) -> None:
        while not self._stop.is_set():
            try:
                reader = JournalReader(self._directory, self._run)
                for frame in reader.frames(reader.last_keyframe(), follow=True, stop=self._stop.is_set, poll_s=POLL_S):
                    if frame.gap:
                        self._fold.gap()
                    for event in frame.events:
                        self._fold.apply(event)
                    if self._stop.is_set():
                        return
                return  # the engine has stopped
            except JournalError as error:  # not there yet, or damaged: from a keyframe on, again
                logger.debug("the journal of %s: %s", self._run, error)
                self._fold.gap()
                self._stop.wait(RETRY_S)
