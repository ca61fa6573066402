"""The users of a simulated run: their commands, once what led to them has happened. Knows no times of steps."""

from __future__ import annotations

from collections.abc import Callable

from ...engine.core import EngineCore
from ...engine.plan import StepPlan
from ...engine.sequence import Sequence, SequenceStatus
from ...telemetry.events import StatusChanged
from .requests import ReplayRequest
from .simulate_story import Story
from .tokens import Tokens


class Users:
    """Pauses, resumes and ends sequences as a story tells, so that none gets more output tokens than it had.

    A sequence that would, because its request is to be aborted with siblings that have not come as far as they had,
    is held: paused until they have.

    Args:
        story: of the recorded run.
        tokens: what is appended.
        at: `at(t, command)` gives a command at a time.

    Attributes:
        core: the engine; to be set before a request arrives.
    """

    core: EngineCore

    def __init__(self, story: Story, tokens: Tokens, at: Callable[[int, Callable[[], None]], None]) -> None:
        self._story, self._tokens, self._at = story, tokens, at
        self._requests: dict[str, tuple[int, ReplayRequest]] = {}  # live, by id; with the index of its arrival
        self._pausing: dict[int, Sequence] = {}  # live ones with a pause from outside before them
        self._aborting: dict[int, ReplayRequest] = {}  # live ones with an abort before them, by index
        self._given: dict[int, int] = {}  # sequence -> pauses from outside so far
        self._paused: dict[int, int] = {}  # sequence -> pauses so far
        self._woken: dict[int, int] = {}  # sequence -> wakes so far
        self._since: dict[int, int] = {}  # sequence -> when it last arrived, paused or was resumed
        self._held: dict[int, ReplayRequest] = {}  # sequence -> its request

    def arrived(self, index: int, request: ReplayRequest) -> None:
        """Take note of a request that was added."""
        self._requests[request.request_id] = index, request
        if index in self._story.aborts:
            self._aborting[index] = request
        for seq in request.sequences:
            self._since[seq.seq_id] = seq.arrived_t
            if self._story.lives[seq.seq_id].pauses:
                self._pausing[seq.seq_id] = seq

    def unended(self) -> list[ReplayRequest]:
        """The requests that have not ended, without those that had not when they were recorded."""
        left = [(index, request) for index, request in self._requests.values() if not request.finished]
        return [request for index, request in left if index not in self._story.cut]

    # What comes at its time

    def act(self, now: int) -> int | None:
        """Give the commands that are due; when the next one is, as far as that is known."""
        times = [t for t in (*self._pauses(now), *self._aborts(now)) if t is not None]
        for request in list(self._held.values()):
            if self._requests[request.request_id][0] not in self._aborting:
                self._end_if_as_far(request)
        return min(times, default=None)

    def _pauses(self, now: int) -> list[int | None]:
        later: list[int | None] = []
        for seq in list(self._pausing.values()):
            t = self._pause_t(seq, now)
            if t is None or t > now:
                later.append(t)
                continue
            self.core.pause([], "operator")  # reads what is in flight, which may end or pause it
            if self._is_next(seq):
                self.core.pause([seq], self._next_pause(seq))
        return later

    def _pause_t(self, seq: Sequence, now: int) -> int | None:
        """When it is paused next; None: after tokens that it does not have yet."""
        pauses, given = self._story.lives[seq.seq_id].pauses, self._given.get(seq.seq_id, 0)
        if not seq.is_live or given == len(pauses):
            self._pausing.pop(seq.seq_id, None)
            return None
        pause = pauses[given]
        if not self._is_next(seq):
            return None
        if not pause.after_ns:  # what is in flight is read when it is paused
            return now if seq.num_output_tokens >= pause.after_tokens else None
        if seq.num_read_output_tokens < pause.after_tokens:
            return None
        return max(self._since[seq.seq_id], seq.last_token_t) + pause.after_ns

    def _is_next(self, seq: Sequence) -> bool:
        """Whether a pause from outside is the next that it has, and can come now."""
        pauses, given = self._story.lives[seq.seq_id].pauses, self._given.get(seq.seq_id, 0)
        if given >= len(pauses) or pauses[given].place != self._paused.get(seq.seq_id, 0):
            return False
        return seq.status in (SequenceStatus.RUNNING, SequenceStatus.WAITING)

    def _next_pause(self, seq: Sequence) -> str:
        """Count a pause from outside as given; the reason that it can have now."""
        given = self._given.get(seq.seq_id, 0)
        self._given[seq.seq_id] = given + 1
        pause = self._story.lives[seq.seq_id].pauses[given]
        return pause.reason if seq.status is SequenceStatus.RUNNING else "operator"

    def _aborts(self, now: int) -> list[int | None]:
        later: list[int | None] = []
        for index, request in list(self._aborting.items()):
            if request.finished:
                del self._aborting[index]
            elif all(map(self._is_as_far, request.sequences)):
                last = max(max(self._since[s.seq_id], s.last_token_t, s.finished_t) for s in request.sequences)
                t = last + self._story.aborts[index]
                if t > now:
                    later.append(t)
                else:
                    self.core.abort(request.request_id)
        return later

    def _is_as_far(self, seq: Sequence) -> bool:
        """Whether all has happened to a sequence that had when its request was ended."""
        if not seq.is_live or seq.seq_id in self._held:
            return True
        life = self._story.lives[seq.seq_id]
        return (
            bool(life.ends)
            and seq.num_read_output_tokens >= life.num_output_tokens
            and self._paused.get(seq.seq_id, 0) >= life.num_pauses
            and self._woken.get(seq.seq_id, 0) >= len(life.wakes)
        )

    # What comes before a token

    def before(self, plan: StepPlan) -> None:
        """Give what has to come before a step is read: its tokens then come too late."""
        for seq, samples, epoch in zip(plan.sequences, plan.samples, plan.epochs, strict=True):
            if not samples or seq.epoch != epoch:
                continue
            life, had = self._story.lives[seq.seq_id], seq.num_read_output_tokens
            if self._is_next(seq) and had >= life.pauses[self._given.get(seq.seq_id, 0)].after_tokens:
                self.core.book.pause(seq, self._next_pause(seq))
            elif life.ends and had >= life.num_output_tokens:
                self._held[seq.seq_id] = request = self._requests[seq.request_id][1]
                if not self._end_if_as_far(request):
                    self.core.book.pause(seq, "operator")

    def _end_if_as_far(self, request: ReplayRequest) -> bool:
        """End a request where that is all that is left to happen to it."""
        if not request.finished and not all(map(self._is_as_far, request.sequences)):
            return False
        if any(seq.is_live and self._story.lives[seq.seq_id].ends == "error" for seq in request.sequences):
            self.core.book.fail(request, "as recorded")
        else:
            self.core.book.abort(request.request_id)
        for seq in request.sequences:
            self._held.pop(seq.seq_id, None)
        return True

    # What follows on a pause

    def paused(self, event: StatusChanged) -> None:
        """Have what followed on a pause follow again."""
        if event.seq in self._held:
            return
        place = self._paused.get(event.seq, 0)
        self._paused[event.seq], self._since[event.seq] = place + 1, event.t
        wakes, seq = self._story.lives[event.seq].wakes, self.core.book.live_sequence(event.seq)
        if place >= len(wakes) or seq is None:
            return
        wake = wakes[place]

        def go_on() -> None:
            self._woken[seq.seq_id], self._since[seq.seq_id] = place + 1, self.core.clock()
            if not wake.max_tokens:
                self.core.finish([seq])
                return
            start = len(seq.token_ids)
            self.core.resume([seq], self._tokens.span(seq.seq_id, start, start + wake.num_appended), [wake.max_tokens])

        self._at(event.t + wake.after_ns, go_on)
