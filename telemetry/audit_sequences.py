"""The audit's rules for sequences: transitions and what must stand before and after them.

It has its own table of transitions, so that it shares no mistake with the engine.
"""

from __future__ import annotations

from ..errors import AuditError
from .events import (
    PrefixMatched,
    PriorityChanged,
    SequencePreempted,
    SequenceResumed,
    StatusChanged,
    WaitReasonChanged,
)
from .sequence_state import SequenceState
from .state import FINAL, EngineState

LEGAL: dict[tuple[str, str], frozenset[str]] = {
    ("", "WAITING"): frozenset({"arrived"}),
    ("WAITING", "RUNNING"): frozenset({"admitted", "readmitted", "resumed"}),
    ("WAITING", "PAUSED"): frozenset({"operator"}),
    ("WAITING", "FINISHED"): frozenset({"aborted"}),
    ("WAITING", "ERROR"): frozenset({"error"}),
    ("RUNNING", "WAITING"): frozenset({"preempted"}),
    ("RUNNING", "PAUSED"): frozenset({"prefill_complete", "stop", "length", "await_input", "operator", "breakpoint"}),
    ("RUNNING", "FINISHED"): frozenset({"stop", "length", "aborted"}),
    ("RUNNING", "ERROR"): frozenset({"error"}),
    ("PAUSED", "RUNNING"): frozenset({"resumed"}),
    ("PAUSED", "WAITING"): frozenset({"resumed"}),
    ("PAUSED", "FINISHED"): frozenset({"delivered", "aborted", "expired"}),
    ("PAUSED", "ERROR"): frozenset({"error"}),
}
PREEMPTION_MODES = ("recompute", "swap")


class SequenceAudit:
    """Rules of transitions, and what a sequence's events leave open until the next step is planned.

    Each check raises AuditError where its first line does not hold.
    """

    def __init__(self) -> None:
        self._lost: set[int] = set()  # preempted to be recomputed, and not yet freed
        self._resumed: set[int] = set()  # their transition out of PAUSED is still to follow
        self._matched: set[int] = set()  # they had a look-up of the prefix cache

    def check_status(self, state: EngineState, e: StatusChanged) -> None:
        """A transition is legal, leaves the status that the sequence is in, and what it says beside that holds."""
        seq = state.sequences.get(e.seq)
        status = seq.status if seq else ""
        if e.old != status:
            raise AuditError(f"sequence {e.seq} leaves {e.old or '(new)'} but is {status or 'not live'}")
        if e.reason not in LEGAL.get((e.old, e.new), frozenset()):
            raise AuditError(f"sequence {e.seq}: {e.old or '(new)'} -> {e.new} ({e.reason}) is not legal")
        if not e.old:
            request = state.requests.get(e.request)
            if request is None or e.seq not in request.seqs:
                raise AuditError(f"sequence {e.seq} arrived without its request ({e.request!r})")
        if seq is not None:
            self._check_leaving(state, seq, e)
            if e.new == "RUNNING" and seq.num_computed_tokens >= seq.num_tokens:
                known = f"{seq.num_computed_tokens} of {seq.num_tokens} tokens"
                raise AuditError(f"sequence {e.seq} runs and has computed {known}: none is left")

    def _check_leaving(self, state: EngineState, seq: SequenceState, e: StatusChanged) -> None:
        """What a transition says beside the two states: KV that is kept, a sibling's error, a resumption before it."""
        if e.old == "RUNNING" and e.new == "PAUSED":
            computed = state.num_computed_tokens(seq)
            if not 0 <= e.kept <= computed or e.kept >= seq.num_tokens:
                raise AuditError(f"sequence {e.seq} keeps {e.kept} of {computed} computed tokens, of {seq.num_tokens}")
        elif e.kept:
            raise AuditError(f"sequence {e.seq} keeps {e.kept} tokens where it does not leave RUNNING for PAUSED")
        if e.old == "PAUSED" and e.new in ("RUNNING", "WAITING") and e.seq not in self._resumed:
            raise AuditError(f"sequence {e.seq} leaves PAUSED for {e.new} without sequence.resumed")
        self._resumed.discard(e.seq)
        if e.new in FINAL:
            self._matched.discard(e.seq)
        if e.cause >= 0:
            request = state.requests.get(seq.request)
            siblings = request.seqs if request is not None and request.whole else [e.cause]
            if e.new not in FINAL or e.cause == e.seq or e.cause not in siblings:
                raise AuditError(f"sequence {e.seq} is {e.new} on account of sequence {e.cause}, which is no sibling")

    def check_resumed(self, state: EngineState, e: SequenceResumed) -> None:
        """A paused sequence goes on, with room for output."""
        seq = state.sequences.get(e.seq)
        if seq is None or seq.status != "PAUSED":
            raise AuditError(f"sequence {e.seq} is resumed but is {seq.status if seq else 'not live'}")
        if e.seq in self._resumed:
            raise AuditError(f"sequence {e.seq} is resumed twice")
        if e.num_appended < 0 or e.max_tokens < seq.num_output_tokens:
            raise AuditError(
                f"sequence {e.seq} is resumed with {e.num_appended} tokens appended and max_tokens={e.max_tokens}, "
                f"it has {seq.num_output_tokens} output tokens"
            )
        self._resumed.add(e.seq)

    def check_priority(self, state: EngineState, e: PriorityChanged) -> None:
        """A live sequence changes its priority."""
        if e.seq not in state.sequences:
            raise AuditError(f"sequence {e.seq} gets priority {e.priority}, which is not live")

    def check_waits(self, state: EngineState, e: WaitReasonChanged) -> None:
        """A waiting sequence waits."""
        seq = state.sequences.get(e.seq)
        if seq is None or seq.status != "WAITING":
            raise AuditError(f"sequence {e.seq} waits ({e.reason}) but is {seq.status if seq else 'not live'}")

    def check_matched(self, state: EngineState, e: PrefixMatched) -> None:
        """The counts of a look-up add up, and only the first is a first admission."""
        parts = (e.hit, e.never_seen, e.evicted, e.sub_block)
        if min(parts) < 0 or e.hit > e.queried or (not e.recompute and sum(parts) != e.queried):
            raise AuditError(
                f"sequence {e.seq}: hit {e.hit} + never seen {e.never_seen} + evicted {e.evicted} + "
                f"sub-block {e.sub_block} is not the {e.queried} tokens queried"
            )
        if e.seq in self._matched and not e.recompute:
            raise AuditError(f"sequence {e.seq} is admitted for the first time twice")
        self._matched.add(e.seq)

    def check_preempted(self, state: EngineState, e: SequencePreempted) -> None:
        """A running sequence loses its place: what it loses and keeps is what it has."""
        seq = state.sequences.get(e.seq)
        if seq is None or seq.status != "RUNNING":
            raise AuditError(f"sequence {e.seq} is preempted but is {seq.status if seq else 'not live'}")
        if e.num_blocks != len(seq.block_table):
            raise AuditError(f"sequence {e.seq} loses {e.num_blocks} blocks, its table has {len(seq.block_table)}")
        computed = state.num_computed_tokens(seq)
        if e.num_tokens + e.kept != computed or min(e.num_tokens, e.kept) < 0:
            raise AuditError(f"sequence {e.seq} loses {e.num_tokens} and keeps {e.kept} computed tokens of {computed}")
        if e.mode not in PREEMPTION_MODES or (e.kept and (e.mode == "recompute" or e.kept >= seq.num_tokens)):
            raise AuditError(f"sequence {e.seq} keeps {e.kept} of {seq.num_tokens} tokens, mode={e.mode!r}")
        if e.mode == "recompute" and seq.block_table:
            self._lost.add(e.seq)

    def freed(self, seq_id: int) -> None:
        """A sequence gave up its table."""
        self._lost.discard(seq_id)

    def check_settled(self, state: EngineState) -> None:
        """Whoever ended, or lost its place to be recomputed, has given back its blocks; who was resumed goes on.

        Raises:
            AuditError: otherwise.
        """
        if state.ended:
            seq = next(iter(state.ended.values()))
            raise AuditError(f"sequence {seq.seq} ended ({seq.status}) and kept its {len(seq.block_table)} blocks")
        for seq_id in self._lost:
            left = state.sequences.get(seq_id)
            if left is not None and left.block_table:
                raise AuditError(f"sequence {seq_id} is back in the queue and kept its {len(left.block_table)} blocks")
        self._lost.clear()
        for seq_id in self._resumed:
            raise AuditError(f"sequence {seq_id} was resumed and is still PAUSED")
