"""Plans as bytes: a rank's sequences are those of the driver, and a step costs what is new in it."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from nanolens.engine.plan import BlockMove, StepPlan
from nanolens.engine.runner.tensor_parallel_codec import PlanDecoder, PlanEncoder, append_sampled
from nanolens.engine.sampling_params import SamplingParams
from nanolens.engine.sequence import Sequence

READ_BY_RUNNERS = (
    "seq_id", "token_ids", "num_prompt_tokens", "params", "seed", "block_table", "appended", "num_appended_tokens",
    "output_start", "stop_token_ids", "bad_words_ids", "given_token_ids", "output_token_ids", "num_read_output_tokens",
)  # fmt: skip


def sequence(seq_id: int, length: int = 20, **params: Any) -> Sequence:
    own = SamplingParams(**({"temperature": 0.0} | params))
    seq = Sequence(seq_id, "r", list(range(length)), own, 2**62 + seq_id, 0, lambda event: None, lambda: 0, 4096)
    seq.block_table = list(range(100 * seq_id, 100 * seq_id + -(-length // 4)))
    return seq


def plan_of(step: int, sequences: list[Sequence], counts: list[int] | None = None, **changes: Any) -> StepPlan:
    size = len(sequences)
    fields: dict[str, Any] = {
        "kind": "decode",
        "starts": [len(seq.token_ids) - 1 for seq in sequences],
        "counts": counts or [1] * size,
        "samples": [True] * size,
        "epochs": [seq.epoch for seq in sequences],
        "released": [],
    }
    return StepPlan(step=step, sequences=sequences, **(fields | changes))


def read(seq: Sequence) -> dict[str, Any]:
    return {name: getattr(seq, name) for name in READ_BY_RUNNERS}


def same(theirs: StepPlan, ours: StepPlan) -> bool:
    names = ("step", "kind", "starts", "counts", "samples", "epochs", "released", "moves", "copies")
    sequences = zip(theirs.sequences, ours.sequences, strict=True)
    return all(getattr(theirs, name) == getattr(ours, name) for name in names) and all(
        read(a) == read(b) for a, b in sequences
    )


def test_a_new_sequence_arrives_whole() -> None:
    seq = sequence(
        3, bad_words=["x"], logit_bias={5: 1.5}, seed=7, prompt_logprobs=2, stop=["end"], presence_penalty=0.5
    )
    seq.append([7, 8])
    seq.stop_token_ids, seq.bad_words_ids = frozenset({2, 9}), [[1, 2], [3]]
    plan = plan_of(
        1, [seq], [22], kind="prefill", starts=[0], moves=[BlockMove(1, 3, "out", [4], [-1])], copies=[(1, 2)]
    )
    assert same(PlanDecoder().decode(PlanEncoder().encode(plan)), plan)


def test_a_known_sequence_brings_only_its_new_blocks_along() -> None:
    encoder, decoder = PlanEncoder(), PlanDecoder()
    sequences = [sequence(seq_id, 2000) for seq_id in range(8)]
    first = encoder.encode(plan_of(1, sequences))
    append_sampled(decoder.decode(first), [5] * 8)
    for seq in sequences:
        seq.token_ids.append(5)
    sequences[2].block_table += [77, 78]
    plan = plan_of(2, sequences)
    data = encoder.encode(plan)
    assert same(decoder.decode(data), plan)
    assert len(first) > 8 * 2000
    assert len(data) < 100


def test_a_sequence_that_was_released_or_lost_its_blocks_arrives_anew() -> None:
    encoder, decoder = PlanEncoder(), PlanDecoder()
    kept, back, lost = (sequence(seq_id) for seq_id in range(3))
    decoder.decode(encoder.encode(plan_of(1, [kept, back, lost])))
    lost.epoch, lost.block_table = 1, [9, 8]
    back.append([1])
    plan = plan_of(2, [lost, back, kept], released=[back.seq_id])
    assert same(decoder.decode(encoder.encode(plan)), plan)


def test_what_the_plan_before_had_in_common_is_not_taken_for_this_one() -> None:
    encoder, decoder = PlanEncoder(), PlanDecoder()
    a, b = sequence(1), sequence(2)
    plans = [
        plan_of(1, [a, b]),
        plan_of(2, [b, a]),
        plan_of(3, [a], [3], samples=[False], starts=[4], kind="prefill"),
        plan_of(4, [], kind="moves"),
        plan_of(5, [a, b], [1, 4], samples=[True, False], kind="mixed"),
    ]
    for plan in plans:
        assert same(decoder.decode(encoder.encode(plan)), plan)


def test_a_plan_may_change_its_epochs_in_place_afterwards() -> None:
    encoder, decoder = PlanEncoder(), PlanDecoder()
    seq = sequence(1)
    plan = plan_of(1, [seq])
    decoder.decode(encoder.encode(plan))
    decoder.decode(encoder.encode(plan))
    seq.epoch = plan.epochs[0] = 1
    assert same(decoder.decode(encoder.encode(plan)), plan)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(0, 5), st.sampled_from("sgrea")), max_size=6), min_size=1, max_size=12))
def test_any_history_of_plans_is_mirrored(history: list[list[tuple[int, str]]]) -> None:
    encoder, decoder = PlanEncoder(), PlanDecoder()
    sequences: dict[int, Sequence] = {}
    for step, changes in enumerate(history):
        released = []
        for seq_id, change in changes:
            seq = sequences.setdefault(seq_id, sequence(seq_id))
            if change == "g":
                seq.block_table += [step, step + 1]
            elif change in "ra":
                released.append(seq_id)
                if change == "a":
                    seq.append([step])
            elif change == "e":
                seq.epoch += 1
                seq.block_table = [step]
        planned = [sequences[seq_id] for seq_id in dict.fromkeys(seq_id for seq_id, _ in changes)]
        plan = plan_of(step, planned, released=released)
        theirs = decoder.decode(encoder.encode(plan))
        assert same(theirs, plan)
        append_sampled(theirs, [step] * len(planned))
        for seq in planned:
            seq.token_ids.append(step)
