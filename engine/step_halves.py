"""A step that did not fit into memory: cut in two, computed in parts, and its results put together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .plan import Runner, StepPlan, StepResult


def halves(plan: StepPlan) -> list[StepPlan]:
    """The plan in two: its sequences divided, or the chunk of the only one. Empty where it can't be divided.

    The parts have no moves, copies or releases: those are done when a step turns out not to fit.
    """
    size = len(plan.sequences)
    if size > 1:
        return [_part(plan, 0, size // 2), _part(plan, size // 2, size)]
    if not size or plan.counts[0] < 2:
        return []
    start, count = plan.starts[0], plan.counts[0]
    first, second = _part(plan, 0, 1), _part(plan, 0, 1)
    first.counts, first.samples = [count // 2], [False]
    second.starts, second.counts = [start + count // 2], [count - count // 2]
    return [first, second]


def without_void(plan: StepPlan) -> StepPlan:
    """The plan without the sequences that have ended since it was made."""
    valid = [i for i, (seq, epoch) in enumerate(zip(plan.sequences, plan.epochs, strict=True)) if seq.epoch == epoch]
    return replace(
        plan, sequences=[plan.sequences[i] for i in valid], starts=[plan.starts[i] for i in valid],
        counts=[plan.counts[i] for i in valid], samples=[plan.samples[i] for i in valid],
        epochs=[plan.epochs[i] for i in valid],
    )  # fmt: skip


def run_parts(
    runner: Runner, plan: StepPlan, parts: list[StepPlan], fail: Callable[[StepPlan, BaseException], None]
) -> StepResult:
    """Launch and read the parts of a plan one by one, without what has ended meanwhile; their results as the plan's.

    `fail` is told of a part that can't be computed.
    """
    results = []
    for part in map(without_void, parts):  # lazily: a part that fails may end sequences of the next one, or the engine
        if not part.sequences:
            continue
        try:
            results.append((part, runner.collect(runner.launch(part))))
        except Exception as error:
            fail(part, error)
    return join_results(plan, results)


def join_results(plan: StepPlan, parts: list[tuple[StepPlan, StepResult]]) -> StepResult:
    """The results of a plan's parts as the plan's. A part that is missing failed: its sequences get token 0, unread."""
    result = StepResult([])
    tokens: dict[int, int] = {}
    for part, own in parts:
        sampling = [seq.seq_id for seq, samples in zip(part.sequences, part.samples, strict=True) if samples]
        tokens |= dict(zip(sampling, own.tokens, strict=True))
        result.logprobs |= own.logprobs
        for seq_id, entries in own.prompt_logprobs.items():
            result.prompt_logprobs[seq_id] = result.prompt_logprobs.get(seq_id, []) + entries
        result.failed |= own.failed
        result.moved += own.moved
        result.device_ns += own.device_ns
        result.wait_ns += own.wait_ns
        result.padding += own.padding
    result.tokens = [
        tokens.get(seq.seq_id, 0) for seq, samples in zip(plan.sequences, plan.samples, strict=True) if samples
    ]
    return result


def _part(plan: StepPlan, first: int, end: int) -> StepPlan:
    """Some of a plan's sequences."""
    cut = slice(first, end)
    return replace(
        plan, sequences=plan.sequences[cut], starts=plan.starts[cut], counts=plan.counts[cut],
        samples=plan.samples[cut], epochs=plan.epochs[cut], released=[], moves=[], copies=[],
    )  # fmt: skip
