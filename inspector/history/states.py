"""The engine's state at any moment of a journal, from the nearest point at or before it that is known.

Such points are frames that hold the whole state, checkpoints made on the way, and the state that was asked for last.
"""

from __future__ import annotations

import pickle
from bisect import bisect_right, insort
from collections import OrderedDict

from ...errors import AuditError, InspectError
from ...telemetry.events import Keyframe
from ...telemetry.state import EngineState
from .frame_store import FrameStore, Place

_CHECKPOINT_EVENTS = 4000  # at least, between two checkpoints: 10 ms of folding
_CHECKPOINT_BYTES = 16  # of a checkpoint, for each event since the one before: making it costs a fraction of folding
_MAX_BYTES = 32 << 20  # of checkpoints
_NEAR_FRAMES = 64  # as far, folding on is no dearer than joining anew
_LOOK_BACK = (64, 1024)  # frames, to settle an order that a keyframe leaves open


class States:
    """States of one run; memory is bounded.

    Args:
        store: the frames.
    """

    def __init__(self, store: FrameStore) -> None:
        self._store = store
        self._state: EngineState | None = None
        self._at = (Place(0, 0), 0)  # where `_state` is: so many events of this frame have happened
        self._since = 0  # events folded since the last point that is kept
        self._checkpoints: OrderedDict[Place, bytes] = OrderedDict()  # the state before a frame; least used first
        self._places: list[Place] = []  # of the checkpoints, sorted
        self._bytes = 0
        self._spacing = _CHECKPOINT_EVENTS

    def at(self, place: Place, count: int) -> EngineState:
        """The state when `count` events of a frame have happened; the next call may change it.

        Where events were lost, the keyframe that closes the gap tells the state.

        Raises:
            JournalError: the journal is damaged there.
            InspectError: the state is not known, or the journal contradicts itself.
        """
        try:
            state = self._reach(place, count)
            for frames in _LOOK_BACK:
                if not state.joined or state.is_order_sure:
                    break
                earlier = self._replayed(place, count, frames)
                if earlier is None:
                    break
                state = earlier
        except AuditError as error:
            self._state = None
            moment = self._store.moment_of(place, count)
            raise InspectError(
                f"the journal contradicts itself before segment {moment.segment}, offset {moment.offset}: {error}"
            ) from error
        except BaseException:
            self._state = None
            raise
        return state if state.joined else self._behind_gap(place, count)

    def forget(self) -> None:
        """Let go of what is kept."""
        self._state = None
        self._checkpoints.clear()
        self._places.clear()
        self._bytes = 0

    def _reach(self, place: Place, count: int) -> EngineState:
        """Fold up to there from the best point."""
        state, known = self._state, self._at
        if state is None or known > (place, count) or not self._is_near(place):
            self._start_from_best(place, count)
        return self._fold(place, count)

    def _is_near(self, place: Place) -> bool:
        here = self._at[0]
        return here.segment == place.segment and place.frame - here.frame <= _NEAR_FRAMES

    def _start_from_best(self, place: Place, count: int) -> None:
        join = self._store.last_join(place, count)
        best = (join.place, 0) if join is not None else (Place(0, 0), -1)
        at = bisect_right(self._places, place)
        checkpoint = self._places[at - 1] if at else None
        if self._state is not None and best <= self._at <= (place, count):
            best = self._at
        if checkpoint is not None and (checkpoint, 0) > best:
            self._checkpoints.move_to_end(checkpoint)
            self._state, self._at = pickle.loads(self._checkpoints[checkpoint]), (checkpoint, 0)
        elif self._state is None or best != self._at:
            if join is None:
                raise InspectError("the state is not known before the first keyframe of the journal")
            self._state, self._at = EngineState(), (join.place, 0)
        else:
            return
        self._since = 0

    def _fold(self, place: Place, count: int) -> EngineState:
        """Go on from where the state is."""
        state, (here, done) = self._state, self._at
        if state is None:
            raise InspectError("there is no state")
        earlier: Place | None = None
        for each in self._store.walk(here, place):
            if earlier is not None:
                done = 0
                if not self._store.follows(each, earlier):
                    state.lose()
                if self._since >= self._spacing:
                    self._keep(each, state)
            events = self._store.events(each)
            end = min(count, len(events)) if each == place else len(events)
            state.apply_all(events[done:end] if done or end < len(events) else events)
            self._since += end - done
            self._at = (each, end)
            earlier = each
        return state

    def _keep(self, place: Place, state: EngineState) -> None:
        self._since = 0
        if place in self._checkpoints:
            return
        data = pickle.dumps(state, pickle.HIGHEST_PROTOCOL)
        self._checkpoints[place] = data
        insort(self._places, place)
        self._bytes += len(data)
        self._spacing = max(_CHECKPOINT_EVENTS, len(data) // _CHECKPOINT_BYTES)
        while self._bytes > _MAX_BYTES:
            oldest, gone = self._checkpoints.popitem(last=False)
            self._bytes -= len(gone)
            self._places.remove(oldest)

    def _replayed(self, place: Place, count: int, frames: int) -> EngineState | None:
        """The state folded from a whole state so many frames earlier; None where there is none.

        A keyframe tells the order of the queue, but not each place in it; the events before it do.
        """
        start = self._store.earlier(place, frames)
        if start == place:
            return None
        join = self._store.last_join(start, len(self._store.events(start)))
        if join is None:
            return None
        self._state, self._at, self._since = EngineState(), (join.place, 0), 0
        return self._fold(place, count)

    def _behind_gap(self, place: Place, count: int) -> EngineState:
        """The state that the keyframe behind a gap tells, where that follows at once."""
        events = self._store.events(place)[count:]
        following = self._store.after(place)
        if following is not None:
            events = [*events, *self._store.events(following)]
        for event in events:
            if isinstance(event, Keyframe):
                return EngineState.from_keyframe(event)
        raise InspectError("events were lost here, and no keyframe follows: the state is not known")
