"""The engine's own check of its queues, sequences and blocks after a step. telemetry/audit.py checks the journal's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import AuditError
from .sequence import SequenceStatus

if TYPE_CHECKING:
    from .step_loop import StepLoop


def audit_engine(core: StepLoop) -> None:
    """Check every invariant of sequences, queues and blocks.

    Raises:
        AuditError: the first violation.
    """
    live = core.book.live_sequences
    core.blocks.audit(live)
    paused = list(core.scheduler.residency.paused.values())
    for queue, status in ((core.scheduler.waiting, SequenceStatus.WAITING), (paused, SequenceStatus.PAUSED),
                          (core.scheduler.running, SequenceStatus.RUNNING)):  # fmt: skip
        ids = sorted(seq.seq_id for seq in live if seq.status is status)
        if ids != sorted(seq.seq_id for seq in queue):
            raise AuditError(f"{status.value} queue holds {[s.seq_id for s in queue]}, live sequences are {ids}")
    for seq in live:
        if seq.status is SequenceStatus.RUNNING and not (
            seq.is_resident
            and seq.num_computed_tokens <= len(seq.block_table) * core.config.block_size
            and 0 <= seq.num_computed_tokens <= seq.num_tokens
        ):
            raise AuditError(
                f"sequence {seq.seq_id}: {seq.num_computed_tokens} computed of {seq.num_tokens} tokens "
                f"in {len(seq.block_table)} blocks"
            )
