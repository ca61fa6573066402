"""Perfetto tracks of the engine: its pauses and mishaps, steps, the device's time in them, moves of blocks, counters.

Knows nothing of sequences. Steps that overlap, and moves, lie on as many tracks of one name as they need.
"""

from __future__ import annotations

from ..telemetry.events import BlocksSwapped, StepFinished, StepPlanned, SwapFinished
from .perfetto_wire import Arg, Args, TraceWriter

MOST_SHOWN = 64  # items of a list in an argument
STEP_RANK, DEVICE_RANK, MOVE_RANK, COUNTER_RANK = 1, 2, 3, 4  # the order of tracks


class Lanes:
    """Slices that may overlap, on the first of its tracks that is free. All have one name, and show as one."""

    def __init__(self, writer: TraceWriter, name: str, parent: int, rank: int) -> None:
        self._writer, self._name, self._parent, self._rank = writer, name, parent, rank
        self._free: list[int] = []
        self._open: dict[int, int] = {}  # what goes on -> its track
        self._add()

    def __contains__(self, key: int) -> bool:
        return key in self._open

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, key: int, t: int, name: str, args: Args) -> None:
        """Begin a slice, known by `key`."""
        if not self._free:
            self._add()
        self._free.sort(reverse=True)
        track = self._open[key] = self._free.pop()
        self._writer.begin(track, t, name, args)

    def end(self, key: int, t: int, args: Args) -> None:
        """End it; nothing where there is none."""
        track = self._open.pop(key, None)
        if track is not None:
            self._writer.end(track, t, args)
            self._free.append(track)

    def end_all(self, t: int, args: Args, below: int | None = None) -> None:
        """End those that go on, or those of them with a lower key."""
        for key in [key for key in self._open if below is None or key < below]:
            self.end(key, t, args)

    def _add(self) -> None:
        self._free.append(self._writer.track(self._name, self._parent, self._rank))


class Counters:
    """Values that hold until the next one; one that did not change is not written again."""

    def __init__(self, writer: TraceWriter, parent: int) -> None:
        self._writer = writer
        self._tracks = {
            name: writer.counter(name, parent, unit, COUNTER_RANK + i)
            for i, (name, unit) in enumerate((
                ("free blocks", "blocks"), ("waiting", "sequences"), ("running", "sequences"), ("paused", "sequences"),
                ("tokens/s", "tokens/s"), ("output tokens/s", "tokens/s"),
            ))
        }  # fmt: skip
        self._values: dict[str, float] = {}

    def set(self, name: str, t: int, value: float) -> None:
        """The value from `t` on."""
        if self._values.get(name) != value:
            self._values[name] = value
            self._writer.value(self._tracks[name], t, value)


class StepTracks:
    """Steps, the device's part of them, moves, and tokens a second.

    A step's slice reaches from the end of its planning to the reading of its tokens; the device is given the last
    `device_ns` of the time between two readings. Tokens a second are those of a step over the time since the one
    before was read, or since it was planned where the engine had been idle.
    """

    def __init__(self, writer: TraceWriter, engine: int, counters: Counters) -> None:
        self._writer = writer
        self._counters = counters
        self._steps = Lanes(writer, "Steps", engine, STEP_RANK)
        self._device = writer.track("Device", engine, DEVICE_RANK)
        self._moves = Lanes(writer, "Moves", engine, MOVE_RANK)
        self._read_t = 0  # when the last step was read
        self._since: int | None = None  # from when on the next step's tokens count; None: the engine is idle
        self._computed = self._sampled = 0  # tokens not yet in a rate

    def planned(self, e: StepPlanned) -> None:
        """A step was planned."""
        args: dict[str, Arg] = {
            "step": e.step, "decodes": e.decodes, "prefill tokens": sum(count for _, _, count in e.chunks),
            "waiting": e.waiting, "running": e.running, "free blocks": e.free,
        }  # fmt: skip
        if e.chunks:
            args["chunks"] = words([f"seq {seq} {start}+{count}" for seq, start, count in e.chunks], ", ")
        if e.idle:
            args["idle"] = words(e.idle)
        if self._since is None:
            self._since = e.t
        self._steps.begin(e.step, e.t, e.kind, args)

    def finished(self, e: StepFinished) -> None:
        """A step's tokens were read; those before it that were not, failed."""
        self._steps.end_all(e.t, {"failed": True}, below=e.step)
        args: dict[str, Arg] = {
            "plan_ns": e.plan_ns, "launch_ns": e.launch_ns, "device_ns": e.device_ns, "collect_ns": e.collect_ns,
            "wait_ns": e.wait_ns, "tokens": e.num_tokens, "sampled": e.num_sampled, "graph": e.graph,
            "padding": e.padding,
        }  # fmt: skip
        if e.wasted:
            args["wasted"] = words(e.wasted)
        self._steps.end(e.step, e.t, args)
        begin = max(e.t - e.device_ns, self._read_t)
        if begin < e.t:
            self._writer.begin(self._device, begin, "step", {"step": e.step})
            self._writer.end(self._device, e.t)
        self._read_t = e.t
        self._rate(e)

    def _rate(self, e: StepFinished) -> None:
        if self._since is None:
            return  # its plan was not seen
        self._computed += e.num_tokens
        self._sampled += e.num_sampled - len(e.wasted)
        length = e.t - self._since
        if length > 0:
            self._counters.set("tokens/s", self._since, self._computed * 1e9 / length)
            self._counters.set("output tokens/s", self._since, self._sampled * 1e9 / length)
            self._since, self._computed, self._sampled = e.t, 0, 0

    def failed(self, step: int, t: int) -> None:
        """A step came to nothing."""
        self._steps.end(step, t, {"failed": True})

    def rest(self, t: int) -> None:
        """Nothing runs from here on, unless a step is in flight."""
        if self._since is None or self._steps:
            return
        begin = self._read_t if self._read_t >= self._since else t
        self._counters.set("tokens/s", begin, 0)
        self._counters.set("output tokens/s", begin, 0)
        self._since = None

    def move(self, e: BlocksSwapped, request: str) -> None:
        """A move of blocks began."""
        if e.move and e.move not in self._moves:
            args: Args = {"move": e.move, "seq": e.seq, "request": request, "blocks": len(e.sources)}
            self._moves.begin(e.move, e.t, f"swap {e.kind}", args)

    def moved(self, e: SwapFinished) -> None:
        """It ended."""
        args: dict[str, Arg] = {"bytes": e.num_bytes, "duration_ns": e.duration_ns}
        if e.error:
            args["error"] = e.error
        self._moves.end(e.move, e.t, args)

    def close(self, t: int, why: str) -> None:
        """End what goes on."""
        self._steps.end_all(t, {why: True})
        self._moves.end_all(t, {why: True})
        self.rest(t)



def words(items: list[int] | list[str], separator: str = " ") -> str:
    """Items in a line, the first of them where there are many."""
    more = f"{separator}and {len(items) - MOST_SHOWN} more" if len(items) > MOST_SHOWN else ""
    return separator.join(map(str, items[:MOST_SHOWN])) + more
