"""A running server as a source: its journal comes over HTTP, is kept here for a while, and is read from there.

A connection that is lost is looked for again; what was shown stays, with its age.
"""

from __future__ import annotations

import threading
import time

from ...errors import InspectError
from ...telemetry.predicate import Predicate
from ..view import EventRow, Judgement, Kept, Moment, SourceStatus, Story, View
from .control import HttpControl
from .http_stream import JournalFeed, Refused, ServerInfo, ServerLink, Unreachable
from .session import Session
from .source import Control

FIRST_RETRY_S, LAST_RETRY_S = 0.25, 5.0
QUIET_S = 1.0  # without a byte, until the server is asked whether it is there
HEALTH_S = 2.0  # for that answer
LOST_S = 8.0  # of no answer, after which the stream is begun anew
JOIN_S = 3.0
_NO_OTHER_PLACE = (401, 403, 429)  # refusals that asking for another place in the journal does not change


class ServerSource:
    """A server, seen through /debug/journal.

    Args:
        url: where it is.
        api_key: one of its keys, where it asks for one.

    Attributes:
        title: URL, model and run.
        url: the base URL.
        control: steers its engine.

    Raises:
        InspectError: the URL is none.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self._link = ServerLink(url, api_key)
        self.url = self._link.url
        self.title = self.url
        self.control: Control | None = HttpControl(self._link)
        self._session: Session | None = None
        self._old: list[Session] = []  # runs that are over, but may be looked at
        self._looked: Session | None = None  # that the last view was of
        self._runs = 0
        self._feed: JournalFeed | None = None
        self._status = SourceStatus("connecting", time.time())
        self._heard = time.monotonic()  # when the server last gave a sign
        self._heard_wall = time.time()
        self._is_stopping = False  # it ended the stream itself, with its engine alive
        self._lock = threading.Lock()  # around the status, and which runs there are
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=target, name=f"{target.__name__} {self.url}", daemon=True)
            for target in (self._receive, self._watch)
        ]

    @property
    def status(self) -> SourceStatus:
        """Of the connection, and of the engine behind it."""
        session = self._session
        if session is not None and session.follower.status.state == "ended":
            return session.follower.status
        return self._status

    def start(self) -> None:
        """Attach to the server, and stay attached until `close`.

        Raises:
            InspectError: nobody listens there, the key is wrong, it is no nano-serve, or it keeps no journal.
        """
        try:
            info = self._link.info()
            with self._link.journal("keyframe", follow=False) as feed:
                self._begin(info, feed)
        except InspectError:
            self.close()
            raise
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Let go of the server. May be called again."""
        self._stop.set()
        if (feed := self._feed) is not None:
            feed.cut()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(JOIN_S)
        self._link.close()
        with self._lock:
            sessions = [*self._old, *([self._session] if self._session is not None else [])]
        for session in sessions:
            session.close()

    def view(self, moment: Moment | None = None) -> View:
        """As of `Source`."""
        session = self._attached(moment)
        self._looked = session
        if moment is None:
            return session.follower.view(session.first, self.status)
        status = self._replaced(session) if session.is_over else self.status
        return session.past.view(moment, status, session.first, session.follower.last_tick)

    def kept(self, moment: Moment) -> Kept:
        """As of `Source`: of what is here."""
        return self._attached(moment).past.kept()

    def story(self, seq: int, moment: Moment, now_t: int = 0) -> Story | None:
        """As of `Source`."""
        session = self._attached(moment)
        story = session.past.story(seq, moment, now_t)
        if story is not None and not story.whole and session.fetch_earlier(self._link):
            return session.past.story(seq, moment, now_t)
        return story

    def verdict(self, seq: int, moment: Moment, now_t: int = 0) -> Judgement | None:
        """As of `Source`."""
        session = self._attached(moment)
        found = session.past.verdict(seq, moment, now_t)
        if found is not None and not found.whole and session.fetch_earlier(self._link):
            return session.past.verdict(seq, moment, now_t)
        return found

    def at_step(self, step: int, near: Moment | None = None) -> Moment:
        """As of `Source`."""
        session = self._attached(near)
        if step < session.past.first().step:
            session.fetch_earlier(self._link)
        return session.past.at_step(step)

    def at_time(self, t: int, near: Moment | None = None) -> Moment:
        """As of `Source`."""
        session = self._attached(near)
        if t < session.past.first().t:
            session.fetch_earlier(self._link)
        return session.past.at_time(t)

    def move(self, moment: Moment, steps: int) -> Moment:
        """As of `Source`."""
        session = self._attached(moment)
        if steps < 0 and session.past.history.tick(moment).step + steps < session.past.first().step:
            session.fetch_earlier(self._link)
        return session.past.move(moment, steps)

    def find(self, moment: Moment, predicate: Predicate | None, forward: bool) -> EventRow | None:
        """As of `Source`."""
        session = self._attached(moment)
        found = session.past.find(moment, predicate, forward)
        if found is None and not forward and session.fetch_earlier(self._link):
            return session.past.find(moment, predicate, forward)
        return found

    def _attached(self, moment: Moment | None = None) -> Session:
        """The newest run, or the one that a moment is of.

        Raises:
            InspectError: there is none, or it is not here any more.
        """
        with self._lock:
            now, old = self._session, list(self._old)
        if now is None:
            raise InspectError(self._status.message or f"{self.url}: not connected yet")
        found = now if moment is None else next((each for each in [now, *old] if each.holds(moment)), None)
        if found is None:
            raise InspectError(f"{self.url}: the run of this moment is over and is not kept any more; press g for now")
        return found

    def _replaced(self, session: Session) -> SourceStatus:
        now = self._attached()
        words = f"run {session.run} is over, the server runs {now.run} now: press g to see it"
        return SourceStatus("replaced", now.began, words)

    # The connection

    def _begin(self, info: ServerInfo, feed: JournalFeed) -> None:
        """Take what a first stream gives: the state now."""
        session = Session(feed.run, feed.position, self._runs)
        self._runs += 1
        try:
            for batch in feed.batches:
                session.take(batch)
            session.start(self._link)
        except BaseException:
            session.close()
            raise
        self._adopt(info, session)

    def _adopt(self, info: ServerInfo, session: Session) -> None:
        """Show a run from now on. The one before it is kept, and the one that is looked at; any others go."""
        with self._lock:
            before = self._session
            old = [*self._old, *([before] if before is not None else [])]
            self._old = [each for each in old if each in (before, self._looked)]
            self._session = session
            if before is not None:
                before.is_over = True
        self.title = f"{self.url} · {info.model} · run {session.run}"
        self._tell("live")
        if before is not None:
            before.follower.close()
        for each in old:
            if each not in self._old:
                each.close()

    def _receive(self) -> None:
        """Stream, and begin anew where that ends, until the source is closed."""
        pause = FIRST_RETRY_S
        while not self._stop.is_set():
            try:
                info = self._link.info()
                session = self._session
                if session is None or info.run != session.run:
                    with self._link.journal("keyframe", follow=False) as feed:
                        self._begin(info, feed)
                began = time.monotonic()
                self._stream()
                self._tell_end()
                if time.monotonic() - began > LAST_RETRY_S:
                    pause = FIRST_RETRY_S
            except Unreachable as error:
                if self._is_stopping:
                    self._tell("ended", f"{self.url}: the server stopped in order")
                self._tell("stale", str(error))
            except InspectError as error:
                self._tell("stale", str(error))
            self._stop.wait(pause)
            pause = min(2 * pause, LAST_RETRY_S)

    def _stream(self) -> None:
        """Take frames until the stream ends."""
        session = self._attached()
        position = session.position
        try:
            with self._link.journal(f"{position.segment}:{position.offset}", follow=True) as feed:
                session.go_on()
                self._take(session, feed)
            return
        except Refused as error:
            if error.status in _NO_OTHER_PLACE:
                raise
        with self._link.journal("keyframe", follow=True) as feed:  # the journal has gone on in another segment
            session.rejoin(feed.position)
            self._take(session, feed)

    def _take(self, session: Session, feed: JournalFeed) -> None:
        if feed.run != session.run:
            return
        self._feed = feed
        try:
            if self._stop.is_set():  # `close` found no feed to cut
                return
            for batch in feed.batches:
                session.take(batch)
                self._hear()
        finally:
            self._feed = None

    def _watch(self) -> None:
        """Ask a server that is silent whether it is there."""
        while not self._stop.wait(QUIET_S / 2):
            silent = time.monotonic() - self._heard
            if silent < QUIET_S:
                continue
            try:
                self._link.ask("GET", "/version", timeout_s=HEALTH_S)
            except InspectError as error:
                self._tell("stale", str(error))
                if silent > LOST_S and (feed := self._feed) is not None:
                    feed.cut()
                continue
            if self._feed is not None:
                self._hear()

    def _hear(self) -> None:
        """The server has given a sign."""
        self._is_stopping = False
        self._heard, self._heard_wall = time.monotonic(), time.time()
        if self._status.state != "live":
            self._tell("live")

    def _tell_end(self) -> None:
        """Say why a stream ended that the server ended itself: its engine is gone, or it is about to stop."""
        try:
            self._link.ask("GET", "/health")
        except Refused as error:
            self._tell("dead", str(error))
            return
        except Unreachable:
            pass
        self._is_stopping = True
        self._tell("stale", f"{self.url}: the server is stopping")

    def _tell(self, state: str, message: str = "") -> None:
        """Set the status. The age of one that is lost counts from the last sign of the server."""
        with self._lock:
            if self._status.state in ("dead", "ended") and state == "stale":
                return  # that it can't be reached any more adds nothing
            if self._status.state != state:
                since = self._heard_wall if state == "stale" else time.time()
                self._status = SourceStatus(state, since, message)  # type: ignore[arg-type]
            elif self._status.message != message:
                self._status = SourceStatus(self._status.state, self._status.since, message)
