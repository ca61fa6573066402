"""The engine's own state as a keyframe, taken from its objects: what projections of the journal are held against."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..telemetry.events import Keyframe

if TYPE_CHECKING:
    from .step_loop import StepLoop


def make_keyframe(core: StepLoop) -> Keyframe:
    """The whole state of a core between two events. Costs O(blocks in the pool + blocks held)."""
    contents = core.blocks.contents
    return Keyframe(
        t=core.clock(),
        step=core.scheduler.step,
        started=core.started,
        sequences=[seq.snapshot(core.blocks.slots.host_blocks) for seq in core.book.live_sequences],
        waiting=[seq.seq_id for seq in core.scheduler.waiting],
        running=sorted(seq.seq_id for seq in core.scheduler.running),
        cached_blocks=list(contents),
        cached_hashes=b"".join(content.hash[:8] for content in contents.values()),
        cached_by=[content.filled_by for content in contents.values()],
        free_blocks=list(core.blocks.free),
        totals={},
        engine_paused=core.scheduler.paused,
    )
