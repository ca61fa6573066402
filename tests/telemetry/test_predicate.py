"""The predicate language: what holds, what is refused and how, and its canonical text."""

from __future__ import annotations

import operator
from typing import Any, get_args, get_origin

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanolens.errors import InvalidRequest
from nanolens.telemetry.event_fields import BY_TAG, FIELDS, MAX_ENDED, RequestNames
from nanolens.telemetry.events import (
    AnyEvent,
    BlocksAllocated,
    CallbackFailed,
    EnginePaused,
    EngineStarted,
    Keyframe,
    Mark,
    PrefixMatched,
    RequestArrived,
    RequestFinished,
    SequencePreempted,
    SequenceSnapshot,
    StatusChanged,
    StepFinished,
    StepPlanned,
    StreamStalled,
)
from nanolens.telemetry.predicate import MAX_LENGTH, parse

ALLOCATED = BlocksAllocated(1, 2, 17, [4], [5, 6, 7], [], 9)
PAUSED = StatusChanged(1, 2, 17, "RUNNING", "PAUSED", "stop")
PLANNED = StepPlanned(1, 2, "mixed", [(17, 0, 4), (18, 0, 4)], 8, [20], 3, 10, 5)
PREEMPTED = SequencePreempted(1, 2, 17, 5, "no_blocks", "swap", 3, 0, 40)
FINISHED = StepFinished(1, 2, 0, 0, 0, 0, 8, 8, [17], graph=True)
KINDS: tuple[type, ...] = get_args(AnyEvent)


def made(kind: type) -> Any:
    """An event of a class, with a value in every field."""
    values = []
    for each in msgspec.structs.fields(kind):
        hint = next((t for t in get_args(each.type) if t is not type(None)), None)
        hint = each.type if get_origin(each.type) in (list, dict, None) else hint
        if each.name == "chunks":
            values.append([(3, 0, 4)])
        elif each.name in ("seqs", "wasted"):
            values.append([3])
        elif hint is EngineStarted:
            values.append(made(EngineStarted))
        else:
            empty = {list: [], dict: {}}.get(get_origin(hint) or hint)
            values.append(empty if empty is not None else {int: 3, str: "x", bool: True, bytes: b""}[hint])
    return kind(*values)


def refusal(text: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        parse(text)
    assert caught.value.field == "predicate"
    return str(caught.value)


@pytest.mark.parametrize("op", ["=", "!=", "<", "<=", ">", ">="])
@pytest.mark.parametrize("value", [8, 9, 10])
def test_each_operator_compares_numbers_and_lengths_as_python_does(op: str, value: int) -> None:
    compare = {"=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt}
    expected = compare.get(op, operator.ge)
    assert parse(f"on=blocks.allocated free{op}{value}").matches(ALLOCATED) == expected(9, value)
    assert parse(f"on=blocks.allocated new{op}{value - 6}").matches(ALLOCATED) == expected(3, value - 6)


@pytest.mark.parametrize(
    ("text", "event", "holds"),
    [
        ("on=preempted", PREEMPTED, True),
        ("on=preempted", PAUSED, False),
        ("on=sequence.preempted mode=swap", PREEMPTED, True),
        ("on=preempted mode!=swap", PREEMPTED, False),
        ("on!=preempted", PREEMPTED, False),
        ("on!=preempted", PAUSED, True),
        ("on=status to=PAUSED", PAUSED, True),
        ("on=status new=PAUSED old=RUNNING", PAUSED, True),
        ("on=status from=WAITING to=PAUSED", PAUSED, False),
        ("to!=PAUSED", PAUSED, False),
        ('from=""', StatusChanged(1, 2, 3, "", "WAITING", "arrived"), True),
        ("on=blocks.allocated free<10", ALLOCATED, True),
        ("free<10", ALLOCATED, True),
        ("free<10", PLANNED, True),
        ("free<10", PAUSED, False),
        ("new>=4", ALLOCATED, False),
        ("on=step.planned decodes>=8 waiting!=0", PLANNED, True),
        ("on=step.planned decodes>=9 waiting!=0", PLANNED, False),
        ("graph=true", FINISHED, True),
        ("graph!=true", FINISHED, False),
        ('text="two words"', Mark(1, "two words", "me"), True),
        ('text="a \\"b\\" \\\\"', Mark(1, 'a "b" \\', "me"), True),
        ('cause="breakpoint 3"', EnginePaused(1, 2, "breakpoint 3"), True),
        ("cause=3", StatusChanged(1, 2, 3, "RUNNING", "ERROR", "error", cause=3), True),
        ("cause=3", SequencePreempted(1, 2, 3, 4, "3", "swap", 0, 0), True),
        ('error=""', RequestFinished(1, "a", "stop", 1, 1, 0), True),
        ("error!=boom", RequestFinished(1, "a", "error", 1, 1, 0, "boom"), False),
        ("prompt_token_ids=0", RequestArrived(1, "a", [1], 3, 4, 0, {}), True),
        ("hit>0 recompute=false", PrefixMatched(1, 2, 3, 16, 16, 0, 0, 0, False), True),
        ("step>1 step<3", PLANNED, True),
    ],
)
def test_a_predicate_holds_when_all_its_terms_do(text: str, event: AnyEvent, holds: bool) -> None:
    assert parse(text).matches(event) is holds


@pytest.mark.parametrize(
    ("text", "event", "seqs"),
    [
        ("seq=17", PAUSED, [17]),
        ("seq=18", PAUSED, []),
        ("seq=17", PLANNED, [17]),
        ("seq=20", PLANNED, [20]),
        ("seq=19", PLANNED, []),
        ("seq!=17", PLANNED, [18, 20]),
        ("seq>17 seq<20", PLANNED, [18]),
        ("on=step.planned", PLANNED, [17, 18, 20]),
        ("seq=17", FINISHED, [17]),
        ("seq=2", RequestArrived(1, "a", [1, 2], 3, 4, 0, {}), [2]),
        ("seq=17", PREEMPTED, [17]),
        ("seq=5", PREEMPTED, []),
        ("on=preempted by=5", PREEMPTED, [17]),
    ],
)
def test_seq_is_any_of_the_sequences_that_an_event_names(text: str, event: AnyEvent, seqs: list[int]) -> None:
    predicate = parse(text)
    assert predicate.matches(event) is bool(seqs)
    assert predicate.sequences(event) == seqs


def test_request_is_looked_up_where_the_event_holds_none() -> None:
    names = {17: "abc", 18: "def"}
    predicate = parse("on=status reason=stop request=abc")
    assert predicate.matches(PAUSED, names)
    assert not predicate.matches(PAUSED) and not predicate.matches(PAUSED, {17: "other"})
    assert parse("request=def").sequences(PLANNED, names) == [18]
    assert not parse("request=def seq=17").matches(PLANNED, names)
    assert parse("request=abc").matches(CallbackFailed(1, "abc", "boom"))
    assert not parse("request=abc").matches(CallbackFailed(1, "def", "boom"))


def test_slow_readers_are_picked_by_how_long_they_held_their_stream_up() -> None:
    slow = parse("on=stalled stalled_ns>1_000_000_000 request=abc")
    assert slow.matches(StreamStalled(1, "abc", 2_000_000_000, 1))
    assert not slow.matches(StreamStalled(1, "abc", 1_000_000_000, 1))
    assert not slow.matches(StreamStalled(1, "def", 2_000_000_000, 1))
    assert parse("request=abc").sequences(RequestArrived(1, "abc", [1, 2], 3, 4, 0, {})) == [1, 2]


def test_names_come_from_arrivals_and_keyframes_and_outlive_the_end_for_a_while() -> None:
    names = RequestNames({1: "old"})
    names.learn(RequestArrived(1, "abc", [2, 3], 3, 4, 0, {}))
    keyframe = made(Keyframe)
    keyframe.sequences = [SequenceSnapshot(9, "kept", *[""] * 5, *[0] * 10, [])]
    names.learn(keyframe)
    assert names.names == {1: "old", 2: "abc", 3: "abc", 9: "kept"}
    names.learn(StatusChanged(1, 2, 2, "RUNNING", "FINISHED", "stop"))
    assert names.names[2] == "abc"
    for seq in range(100, 100 + MAX_ENDED):
        names.learn(RequestArrived(1, "more", [seq], 3, 4, 0, {}))
        names.learn(StatusChanged(1, 2, seq, "RUNNING", "ERROR", "error"))
    assert 2 not in names.names and len(names.names) == 3 + MAX_ENDED


@pytest.mark.parametrize("kind", KINDS, ids=BY_TAG)
def test_every_event_can_be_named_and_each_of_its_fields_compared(kind: type) -> None:
    event = made(kind)
    tag = next(tag for tag, each in BY_TAG.items() if each is kind)
    assert parse(f"on={tag}").matches(event)
    assert not parse(f"on!={tag}").matches(event)
    short = tag.rpartition(".")[2]
    if sum(each.rpartition(".")[2] == short for each in BY_TAG) == 1:
        assert parse(f"on={short}") == parse(f"on={tag}")
    plain = {each.name for each in msgspec.structs.fields(kind) if each.type is not EngineStarted}
    assert plain <= FIELDS[kind].keys()
    for name, how in FIELDS[kind].items():
        if how == "status":
            setattr(event, {"from": "old", "to": "new"}.get(name, name), "PAUSED")
        value = {"number": 3, "flag": "true", "text": "x", "status": "PAUSED", "subject": "x"}.get(how)
        if how == "length" or name == "seq":
            value = 3 if name == "seq" else len(getattr(event, name))
        assert parse(f"on={tag} {name}={value}").matches(event, {3: "x"}), name
        assert not parse(f"on={tag} {name}!={value}").matches(event, {3: "x"}), name


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("  \n", "is empty"),
        (None, "must be a text such as on=preempted, not NoneType"),
        (7, "not int"),
        ("seq=" + "1" * MAX_LENGTH, f"must be at most {MAX_LENGTH}"),
        ("text=\ud800", "lone surrogate"),
        ("preempted", "'preempted' is no term: a term is NAME OP VALUE"),
        ("seq==17", "'seq==17' is no term"),
        ("seq = 17", "'seq' is no term"),
        ("reason=", "'reason=' is no term"),
        ('reason="open', "'reason=\"open' is no term"),
        ('reason="a"b', "is no term"),
        ("on=finished", "that may be request.finished, swap.finished, step.finished; give the whole name"),
        ("on=preemted", "no such event; did you mean sequence.preempted"),
        ("on=block.alocated", "blocks.allocated"),
        ("on=finshed", "did you mean request.finished or swap.finished or step.finished"),
        ("on=zzzz", "no such event; there are engine.started, "),
        ("on<preempted", "the name of an event has no order; use = or !="),
        ("on=status on=mark", "no event is left"),
        ("on=mark on!=mark", "no event is left"),
        ("on=mark texts=1", "mark has no field texts; did you mean text? There are origin, t, text"),
        ("on=mark seq=1", "mark has no field seq"),
        ("on=mark to=PAUSED", "mark has no field to"),
        ("frees<10", "the events that are meant have no field frees; did you mean free? There are "),
        ("started=3", "the events that are meant have no field started"),
        ("reason<3", "reason is a text, which has no order; use = or !="),
        ("on=status to>PAUSED", "to is a text, which has no order"),
        ("request>=a", "request is a text, which has no order"),
        ("graph<true", "graph is a flag, which has no order"),
        ("graph=1", "graph is a flag; give true or false"),
        ("free<ten", "free is a number; give a whole number"),
        ("free<1.5", "free is a number; give a whole number"),
        ("free<٣", "free is a number; give a whole number"),
        ("seq=x", "seq is a number; give a whole number"),
        ("on=blocks.allocated new=PAUSED", "new is compared by its length; give a whole number"),
        ("to=paused", "to is a status; did you mean PAUSED? There are WAITING, RUNNING, PAUSED, FINISHED, ERROR"),
        ("decodes=2 reason=stop", "decodes=2 reason=stop: no event has all of these fields"),
    ],
)
def test_what_can_never_hold_is_refused_in_words(text: Any, said: str) -> None:
    assert said in refusal(text)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("on=preempted", "on=sequence.preempted"),
        ("  free<010\ton=blocks.allocated  free<1_0", "on=blocks.allocated free<10"),
        ("new=PAUSED", "to=PAUSED"),
        ("new>=04", "new>=4"),
        ("cause=03", "cause=03"),
        ('reason="stop"', "reason=stop"),
        ('reason=""', 'reason=""'),
        ('text="a \\"b\\""', 'text="a \\"b\\""'),
        ("seq=-0", "seq=0"),
        ("graph=true on=step.finished", "on=step.finished graph=true"),
    ],
)
def test_equal_predicates_have_one_text(text: str, canonical: str) -> None:
    assert parse(text).text == canonical
    assert parse(text) == parse(canonical)


def test_a_predicate_says_which_events_it_may_hold_for() -> None:
    assert parse("on=status").events == {StatusChanged}
    assert parse("new>=4").events == {BlocksAllocated}
    assert SequencePreempted in parse("seq=17").events and Mark not in parse("seq=17").events


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NUMBERS = st.integers(-(10**20), 10**20)


@st.composite
def predicates(draw: st.DrawFn) -> str:
    """Terms on one event, or on none, in any order, with any spaces between."""
    kind = draw(st.sampled_from(KINDS))
    tag = next(tag for tag, each in BY_TAG.items() if each is kind)
    terms = [f"on={tag}"] if draw(st.booleans()) else []
    for name in draw(st.lists(st.sampled_from(sorted(FIELDS[kind])), min_size=not terms, max_size=4)):
        how = FIELDS[kind][name]
        ordered = how in ("number", "length") or name == "seq"
        op = draw(st.sampled_from(["=", "!=", "<", "<=", ">", ">="] if ordered else ["=", "!="]))
        if ordered:
            value = str(draw(NUMBERS))
        elif how in ("flag", "status"):
            value = draw(st.sampled_from(["true", "false"] if how == "flag" else ["PAUSED", "ERROR"]))
        else:
            value = '"' + draw(TEXTS).replace("\\", "\\\\").replace('"', '\\"') + '"'
        terms.append(f"{name}{op}{value}")
    return draw(st.sampled_from([" ", "  ", "\n"])).join(draw(st.permutations(terms)))


@given(predicates())
def test_the_canonical_text_means_the_same(text: str) -> None:
    predicate = parse(text)
    again = parse(predicate.text)
    assert (again.text, again.events) == (predicate.text, predicate.events)
    for event in (ALLOCATED, PAUSED, PLANNED, PREEMPTED, FINISHED, *map(made, predicate.events)):
        assert again.matches(event, {17: "abc"}) == predicate.matches(event, {17: "abc"})


@given(st.text(max_size=30) | st.text('onseq=<>!" \\17.', max_size=20))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        predicate = parse(text)
    except InvalidRequest as refused:
        assert refused.field == "predicate"
    else:
        assert parse(predicate.text) == predicate
