"""One run of a server's engine, as it comes over HTTP: its spool, who follows that, and its past."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator

from ...errors import InspectError
from ...telemetry.frames import FRAME_HEAD, decode_payload
from ...telemetry.reader import Position
from ..view import Moment, Tick
from .follow import Follower
from .http_stream import ServerLink
from .past import Past
from .spool import NUMBERS, Spool, holds_state


class Session:
    """A run.

    Args:
        run: its id.
        position: in the server's journal, of the first frame that will come.
        number: which run of its source it is, from 0.

    Attributes:
        run: its id.
        position: of the next frame, as far as it can be known: segments of the server that end in between are not seen.
        follower: shows the newest state; there once it is started.
        past: earlier moments.
        first: where the server's journal begins; None: not known.
        began: wall-clock seconds since 1970 when it came.
        is_over: whether the server runs another one; what is here of it can still be looked at.
    """

    follower: Follower

    def __init__(self, run: str, position: Position, number: int = 0) -> None:
        self.run, self.position, self.number = run, position, number
        self.is_over, self.began = False, time.time()
        self.first: Tick | None = None
        self._spool = Spool(run, number)
        self.past = Past(self._spool.directory, run)
        self._skip_to = b""  # head of a frame that is here; those up to it are passed over
        self._checks_first = False
        self._may_miss = False  # the next frame may come from a later place than was asked for
        self._is_streamed = False  # a stream was opened that goes on
        self._has_earlier = False
        self._earlier = threading.Lock()

    def take(self, frames: Iterable[bytes]) -> None:
        """Keep the frames that come next.

        Raises:
            InspectError: they can't be written, or don't begin with the whole state.
        """
        frames = list(frames)
        size = sum(map(len, frames))
        self.position = Position(self.position.segment, self.position.offset + size)
        self._spool.add(list(self._new(frames)))  # a gap is told to it before anything is added

    def go_on(self) -> None:
        """What comes next follows, unless the server has deleted that: then it begins with the whole state."""
        self._may_miss, self._is_streamed = self._is_streamed, True

    def rejoin(self, position: Position) -> None:
        """What comes next begins at a frame with the whole state, which may be here already."""
        self.position, self._checks_first, self._may_miss = position, True, False

    def start(self, link: ServerLink) -> None:
        """Show what has come.

        Raises:
            InspectError: nothing has.
        """
        if not self._spool.first:
            raise InspectError(f"{link.url}: its journal holds nothing yet; try again in a moment")
        with contextlib.suppress(InspectError), link.journal("start", follow=False) as feed:
            self.first = _first_tick(next(feed.batches, []))
        self.follower = Follower(self._spool.directory, self.run, watch_process=False)
        self.follower.start(lambda reader: reader.start())

    def fetch_earlier(self, link: ServerLink) -> bool:
        """Get what the server's journal holds from before, once: whether there is more now.

        Raises:
            InspectError: the server does not give it.
        """
        with self._earlier:
            if self._has_earlier or self.is_over:
                return False
            with link.journal("start", follow=False) as feed:
                if feed.run != self.run:
                    raise InspectError(f"{link.url}: run {self.run} is over, and its earlier history is not here")
                self._spool.add_earlier(frame for batch in feed.batches for frame in batch)
            self._has_earlier = True
            self.past.reopen()
            return True

    def holds(self, moment: Moment) -> bool:
        """Whether a moment is one of this run."""
        return moment.segment // NUMBERS == self.number

    def close(self) -> None:
        """Let go of it, and of its files. May be called again."""
        with contextlib.suppress(AttributeError):  # it was never started
            self.follower.close()
        self.past.close()
        self._spool.close()

    def _new(self, frames: list[bytes]) -> Iterator[bytes]:
        """Those that are not here yet."""
        for frame in frames:
            head = frame[: FRAME_HEAD.size]
            if self._may_miss:
                self._may_miss = False
                if holds_state(frame):
                    self._spool.skip()
            if self._checks_first:
                self._checks_first = False
                if head == self._spool.last_state:
                    self._skip_to = self._spool.last
                else:
                    self._spool.skip()
            if self._skip_to:
                if head == self._skip_to:
                    self._skip_to = b""
                continue
            yield frame


def _first_tick(frames: list[bytes]) -> Tick | None:
    """Step and time of the first event that has a time."""
    for frame in frames:
        for event in decode_payload(frame[FRAME_HEAD.size :], "the journal's first frame"):
            if t := getattr(event, "t", 0):
                return Tick(getattr(event, "step", 0), t)
    return None


