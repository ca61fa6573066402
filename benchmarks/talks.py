"""Conversations of several turns over a small KV pool, and the ways to keep them between turns. Prints nothing."""

from __future__ import annotations

import gc
import random
import time
from dataclasses import dataclass
from typing import Any

from ..engine.engine import Engine
from ..engine.outputs import RequestOutput
from ..engine.sampling_params import SamplingParams
from ..errors import InvalidConfig, RequestFailed
from ..telemetry.events import AnyEvent, BlocksSwapped, SequencePreempted, StepFinished, StepPlanned
from .runs import WARM_UP, run_jobs
from .workload import MAX_DRAWN_ID

Ids = list[list[int]]


@dataclass(frozen=True)
class TalkSpec:
    """Which conversations. Lengths in tokens.

    Attributes:
        conversations: how many; all of them take a turn before any takes the next.
        turns: of each conversation.
        first_len: what its first turn says.
        next_len: what each later turn adds.
        output_len: what the model answers in each turn, exactly.
        resident: whole conversations that the KV pool holds.
        seed: of the drawn ids, and of the order in which they take each turn.
    """

    conversations: int = 64
    turns: int = 3
    first_len: int = 96
    next_len: int = 32
    output_len: int = 32
    resident: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what can't be drawn.

        Raises:
            InvalidConfig: naming the flag.
        """
        for name in ("conversations", "turns", "first_len", "next_len", "output_len", "resident"):
            if getattr(self, name) < 1:
                raise InvalidConfig(f"{name}={getattr(self, name)}: must be at least 1")

    @property
    def prompt_tokens(self) -> int:
        """What the users say, over all conversations."""
        return self.conversations * (self.first_len + (self.turns - 1) * self.next_len)

    @property
    def output_tokens(self) -> int:
        """What the model answers, over all conversations."""
        return self.conversations * self.turns * self.output_len

    @property
    def tokens_each(self) -> int:
        """A whole conversation."""
        return (self.prompt_tokens + self.output_tokens) // self.conversations

    @property
    def least_computed(self) -> int:
        """Tokens that any engine has to compute: each token of each conversation once, but for the very last one,
        which is sampled and never fed back. (The conversations have no beginning in common.)
        """
        return self.conversations * (self.tokens_each - 1)

    def blocks_each(self, block_size: int) -> int:
        """KV blocks of a whole conversation."""
        return -(-self.tokens_each // block_size)

    def describe(self) -> str:
        """One line."""
        return (
            f"{self.conversations} conversations of {self.turns} turns ({self.first_len} tokens said first, then "
            f"{self.next_len} a turn; {self.output_len} answered), a pool that holds {self.resident}, seed {self.seed}"
        )


@dataclass(frozen=True)
class Talks:
    """Drawn conversations.

    Attributes:
        said: conversation -> turn -> token ids.
        orders: turn -> the conversations in the order in which they take it; people don't answer in a fixed order,
            and in a fixed one a cache in LRU order would lose each conversation just before it goes on.
    """

    said: list[Ids]
    orders: Ids


def draw(spec: TalkSpec, vocab_size: int) -> Talks:
    """The same spec and vocabulary give the same conversations."""
    rng = random.Random(spec.seed)
    top = min(MAX_DRAWN_ID, vocab_size - 1)
    lengths = [spec.first_len] + [spec.next_len] * (spec.turns - 1)
    said = [[[rng.randint(0, top) for _ in range(length)] for length in lengths] for _ in range(spec.conversations)]
    return Talks(said, [rng.sample(range(spec.conversations), spec.conversations) for _ in range(spec.turns)])


@dataclass(frozen=True)
class Mode:
    """One way to keep a conversation between its turns.

    Attributes:
        about: in words.
        pauses: a conversation is one request, paused after each answer and resumed with what is said next; else each
            turn is a request of its own whose prompt is all that was said and answered so far.
        settings: of the engine, beside those that all modes share.
        swaps: whether the engine gets a swap space that holds all conversations.
    """

    about: str
    pauses: bool
    settings: dict[str, Any]
    swaps: bool = False


MODES: dict[str, Mode] = {
    "pause_swap": Mode("paused, KV moved to host memory", True, {}, swaps=True),
    "pause_recompute": Mode("paused, KV dropped under pressure", True, {}),
    "prefix_cache": Mode("finished, a request a turn, prefix cache", False, {"prefix_cache": True}),
    "no_cache": Mode("finished, a request a turn, no cache", False, {"prefix_cache": False}),
}


@dataclass(frozen=True)
class TalkResult:
    """What a run did and how long it took, from its events.

    Attributes:
        seconds: from the first turn's first request to the last answer's last token.
        num_computed_tokens: tokens that went through the model.
        num_recomputed_tokens: those beyond `TalkSpec.least_computed`: computed before and lost, or computed in vain.
        num_preemptions: running sequences that lost their place.
        num_blocks_out, num_blocks_in: blocks moved to the swap space and back; one that was still cached on the device
            when it was wanted is no block in.
        num_steps: planned.
    """

    seconds: float
    num_computed_tokens: int
    num_recomputed_tokens: int
    num_preemptions: int
    num_blocks_out: int
    num_blocks_in: int
    num_steps: int


def run_talks(engine: Engine, spec: TalkSpec, talks: Talks, mode: Mode) -> tuple[TalkResult, list[Ids]]:
    """Warm up with one short request, then hold all conversations.

    Args:
        engine: idle, and recording.
        spec: what `talks` was drawn from.
        talks: the conversations.
        mode: how they are kept between turns; the engine has its settings.

    Returns:
        The figures, and the answers: conversation -> turn -> token ids.

    Raises:
        InvalidConfig: a conversation is longer than the engine allows.
        RequestFailed: one ended before its length.
    """
    if spec.tokens_each > engine.max_model_len:
        raise InvalidConfig(
            f"a conversation takes {spec.tokens_each} tokens, and the engine holds {engine.max_model_len} "
            "(max_model_len): shorten it (--turns, --first-len, --next-len, --output-len) or raise --max-model-len"
        )
    run_jobs(engine, [WARM_UP], 0.0)
    events: list[AnyEvent] = []
    take = events.extend
    engine.core.recorder.subscribe(take)
    gc.collect()  # what loading left is no part of the run
    began = time.perf_counter()
    answers = (_pausing if mode.pauses else _finishing)(engine, spec, talks)
    seconds = time.perf_counter() - began
    engine.core.recorder.unsubscribe(take)
    return _result(spec, seconds, events), answers


def _finishing(engine: Engine, spec: TalkSpec, talks: Talks) -> list[Ids]:
    """Each turn a request of its own, with the whole conversation as its prompt."""
    params = SamplingParams(temperature=0.0, max_tokens=spec.output_len, ignore_eos=True)
    answers: list[Ids] = [[] for _ in talks.said]
    histories: Ids = [[] for _ in talks.said]
    outputs: dict[str, RequestOutput] = {}

    def finished(output: RequestOutput) -> None:
        outputs[output.request_id] = output

    for turn, order in enumerate(talks.orders):
        names: dict[int, str] = {}
        for index in order:
            histories[index] += talks.said[index][turn]
            names[index] = engine.add_request(histories[index].copy(), params, on_finish=finished)
        while engine.step():
            pass
        for index, name in names.items():
            answer = _answer(outputs[name], spec.output_len, spec.output_len)
            answers[index].append(answer)
            histories[index] += answer
    return answers


def _pausing(engine: Engine, spec: TalkSpec, talks: Talks) -> list[Ids]:
    """Each conversation one request, paused between turns and finished after the last."""
    params = SamplingParams(temperature=0.0, max_tokens=spec.output_len, ignore_eos=True, on_stop="pause")
    answers: list[Ids] = [[] for _ in talks.said]
    names: dict[int, str] = {}
    outputs: dict[str, RequestOutput] = {}  # at the latest pause, or at an end that came too early
    paused: list[str] = []

    def ended(output: RequestOutput) -> None:
        outputs.setdefault(output.request_id, output)

    def pauses(output: RequestOutput) -> None:
        outputs[output.request_id] = output
        paused.append(output.request_id)

    for turn, order in enumerate(talks.orders):
        is_last = turn == spec.turns - 1
        outputs.clear()
        for index in order:
            said = talks.said[index][turn]
            if turn:
                engine.resume(names[index], append=said, max_tokens=spec.output_len)
            else:
                names[index] = engine.add_request(said, params, on_pause=pauses, on_finish=ended)
        going = True
        while going:
            going = engine.step()
            while paused:
                name = paused.pop()
                if is_last:
                    engine.finish(name)
        for index, name in names.items():
            answers[index].append(_answer(outputs[name], (turn + 1) * spec.output_len, spec.output_len))
    return answers


def _answer(output: RequestOutput, expected: int, length: int) -> list[int]:
    """The last turn's tokens of an output that has to be of a length.

    Raises:
        RequestFailed: it is not.
    """
    completion = output.outputs[0]
    if len(completion.token_ids) != expected:
        raise RequestFailed(
            f"{output.request_id} ended after {len(completion.token_ids)} of {expected} tokens: "
            f"{output.error or completion.finish_reason}"
        )
    return completion.token_ids[expected - length :]


def _result(spec: TalkSpec, seconds: float, events: list[AnyEvent]) -> TalkResult:
    computed = sum(event.num_tokens for event in events if isinstance(event, StepFinished))
    swaps = [event for event in events if isinstance(event, BlocksSwapped)]
    return TalkResult(
        seconds=seconds,
        num_computed_tokens=computed,
        num_recomputed_tokens=computed - spec.least_computed,
        num_preemptions=sum(isinstance(event, SequencePreempted) for event in events),
        num_blocks_out=sum(len(swap.sources) for swap in swaps if swap.kind == "out"),
        num_blocks_in=sum(len(swap.sources) - len(swap.cached) for swap in swaps if swap.kind == "in"),
        num_steps=sum(isinstance(event, StepPlanned) for event in events),
    )
