"""The audit's rules for steps: what they compute, in which order they come, and when none may be planned."""

from __future__ import annotations

from ..errors import AuditError
from .events import EngineContinued, StepFinished, StepPlanned
from .state import EngineState


class StepAudit:
    """Steps in their order, and how many of them a paused engine was granted."""

    def __init__(self) -> None:
        self._finished_step = -1
        self._granted: int | None = None  # steps with tokens until the engine pauses again; None: no end is known

    def check_planned(self, state: EngineState, e: StepPlanned) -> None:
        """A step computes what running sequences have next, and counts everybody right.

        Raises:
            AuditError: otherwise.
        """
        if e.step <= state.step:
            raise AuditError(f"step {e.step} is planned after step {state.step}")
        counts = (
            ("waiting", e.waiting, len(state.waiting)),
            ("running", e.running, len(state.running)),
            ("free", e.free, len(state.pool.free)),
        )
        for name, given, known in counts:
            if given != known:
                raise AuditError(f"{name}={given}, the events before it say {known}")
        if e.chunks or e.decodes:
            self._take_grant(state)
        for chunk in e.chunks:
            _check_chunk(state, *chunk)
        decoding = len(state.steps.decoding) - sum(1 for seq_id in e.idle if seq_id in state.steps.decoding)
        if e.decodes and e.decodes != decoding:
            raise AuditError(f"{e.decodes} decodes planned, {decoding} sequences decode and are not idle")

    def _take_grant(self, state: EngineState) -> None:
        if state.engine_paused:
            raise AuditError(f"a step is planned while the engine is paused ({state.engine_paused})")
        if self._granted is not None:
            if not self._granted:
                raise AuditError("a step is planned beyond those that the paused engine was granted")
            self._granted -= 1

    def check_continued(self, state: EngineState, e: EngineContinued) -> None:
        """A number of steps is granted, or all from here on.

        Raises:
            AuditError: the number is below 0.
        """
        if e.num_steps < 0:
            raise AuditError(f"the engine continues for {e.num_steps} steps")
        self._granted = e.num_steps or None

    def check_finished(self, state: EngineState, e: StepFinished) -> None:
        """A planned step ends once, with the tokens that were planned.

        Raises:
            AuditError: otherwise.
        """
        if e.step <= self._finished_step:
            raise AuditError(f"step {e.step} finished after step {self._finished_step}")
        if e.step > state.step:
            raise AuditError(f"step {e.step} finished but was never planned")
        self._finished_step = e.step
        given, planned = (e.num_tokens, e.num_sampled), state.steps.planned(e.step)
        if planned is not None and planned != given:
            raise AuditError(
                f"{given[0]} tokens computed and {given[1]} sampled, planned were {planned[0]} and {planned[1]}"
            )
        if len(e.wasted) > e.num_sampled:
            raise AuditError(f"{len(e.wasted)} tokens wasted of {e.num_sampled} sampled")


def _check_chunk(state: EngineState, seq_id: int, start: int, count: int) -> None:
    """Prefill work goes on where the sequence stands, over tokens that it has, in blocks on the device."""
    size = state.started.block_size if state.started else 1
    seq = state.sequences.get(seq_id)
    if seq is None or seq.status != "RUNNING":
        raise AuditError(f"sequence {seq_id} is computed but is {seq.status if seq else 'not live'}")
    if start != seq.num_computed_tokens or seq.phase != "prefill":
        raise AuditError(
            f"sequence {seq_id}: a chunk from position {start}, in {seq.phase} with "
            f"{state.num_computed_tokens(seq)} tokens computed"
        )
    if count < 1 or start + count > len(seq.block_table) * size:
        raise AuditError(
            f"sequence {seq_id}: tokens {start} to {start + count} in {len(seq.block_table)} blocks of {size}"
        )
    if start + count > seq.prefill_target:
        raise AuditError(f"sequence {seq_id}: tokens {start} to {start + count}, it has {seq.prefill_target}")
    if min(seq.block_table) < 0:
        raise AuditError(f"sequence {seq_id} is computed with slots of the swap space in its table")
