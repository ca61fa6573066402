"""What a request may ask for, what is refused and in which words, and where unset values come from."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanolens.engine.sampling_params import SamplingParams, check_token_ids
from nanolens.errors import InvalidRequest


@dataclass(frozen=True)
class Defaults:
    """What a model says; nothing unless given."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


def refusal(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**fields)
    return caught.value


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("n", 0, "n=0: must be at least 1"),
        ("n", 1025, "n=1025: must be at most 1024"),
        ("max_tokens", 0, "max_tokens=0: must be at least 1"),
        ("max_tokens", 2**40, "max_tokens=1099511627776: must be at most 2147483647"),
        ("min_tokens", -1, "min_tokens=-1: must be at least 0"),
        ("min_tokens", 17, "min_tokens=17: must be at most max_tokens (16)"),
        ("temperature", -0.1, "temperature=-0.1: must be at least 0 (0 is greedy)"),
        ("top_k", -2, "top_k=-2: must be at least -1 (0 and -1 turn it off)"),
        ("top_p", 0, "top_p=0.0: must be above 0 and at most 1"),
        ("top_p", 1.5, "top_p=1.5: must be at most 1"),
        ("min_p", -0.5, "min_p=-0.5: must be at least 0"),
        ("min_p", 1.01, "min_p=1.01: must be at most 1"),
        ("presence_penalty", 2.1, "presence_penalty=2.1: must be at most 2"),
        ("frequency_penalty", -2.1, "frequency_penalty=-2.1: must be at least -2"),
        ("repetition_penalty", 0.0, "repetition_penalty=0.0: must be at least 1e-06"),
        ("logprobs", 21, "logprobs=21: must be at most 20"),
        ("logprobs", -1, "logprobs=-1: must be at least 0"),
        ("prompt_logprobs", 21, "prompt_logprobs=21: must be at most 20"),
        ("seed", 2**63, "seed=9223372036854775808: must be at most 9223372036854775807"),
        ("priority", 1.5, "priority=1.5: must be a whole number"),
        ("ignore_eos", 1, "ignore_eos=1: must be true or false"),
        ("on_stop", "wait", "on_stop='wait': must be 'finish' or 'pause'"),
        ("stop", "", "stop[0]='': must not be empty; leave it out"),
        ("stop", ["a", ""], "stop[1]='': must not be empty; leave it out"),
        ("stop", [5], "stop[0]: must be a string, not int"),
        ("stop", 5, "stop: must be a list of strings, not int"),
        ("stop", ["a"] * 65, "stop: 65 strings; must be at most 64"),
        ("bad_words", "word", "bad_words: must be a list of strings, not str"),
        ("bad_words", [""], "bad_words[0]='': must not be empty; leave it out"),
        ("stop_token_ids", [1, -1], "stop_token_ids[1]=-1: must be a token id, 0 or above"),
        ("stop_token_ids", [True], "stop_token_ids[0]=True: must be a token id, 0 or above"),
        ("logit_bias", [1], "logit_bias: must map token ids to numbers, not list"),
        ("logit_bias", {"x": 1}, "logit_bias {'x'}: must be a token id, 0 or above"),
        ("logit_bias", {-1: 1}, "logit_bias {-1}: must be a token id, 0 or above"),
        ("logit_bias", {7: 101}, "logit_bias {7}=101: must be at most 100"),
        ("logit_bias", {7: math.nan}, "logit_bias {7}=nan: must be a finite number"),
        ("logit_bias", {7: 1, "7": 2}, "logit_bias {'7'}: the token id is given twice"),
    ],
)
def test_a_value_out_of_range_is_refused_in_words(name: str, value: Any, message: str) -> None:
    error = refusal(**{name: value})
    assert (error.field, str(error)) == (name, message)


WHOLE = ("n", "top_k", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs", "seed", "priority")
REAL = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("value", [True, 1.0, "1", math.nan])
def test_a_whole_number_is_no_bool_float_or_string(name: str, value: Any) -> None:
    assert str(refusal(**{name: value})) == f"{name}={value!r}: must be a whole number" + (
        " (0 and -1 turn it off)" if name == "top_k" else ""
    )


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("value", [True, "1", math.nan, math.inf, -math.inf, [1.0]])
def test_a_number_is_finite_and_no_bool_or_string(name: str, value: Any) -> None:
    error = refusal(**{name: value})
    assert error.field == name
    assert "must be a number" in str(error) or "must be a finite number" in str(error)


def test_a_number_too_large_for_a_float_is_refused_like_any_other() -> None:
    assert refusal(temperature=10**400).field == "temperature"


@pytest.mark.parametrize("name", ["n", "min_tokens", "presence_penalty", "priority", "ignore_eos"])
def test_none_is_refused_where_it_means_nothing(name: str) -> None:
    assert refusal(**{name: None}).field == name


def test_a_refusal_never_repeats_the_text_of_a_stop_string() -> None:
    secret = "the user's words"
    assert secret not in str(refusal(stop=[secret, ""]))
    assert secret not in str(refusal(bad_words=secret))


def test_values_come_out_in_their_plain_types() -> None:
    params = SamplingParams(
        stop="END", temperature=1, logit_bias={"5": 1, 6: -2.5}, stop_token_ids=(3, 4), bad_words=None
    )
    assert (params.stop, params.stop_token_ids, params.bad_words) == (["END"], [3, 4], [])
    assert params.logit_bias == {5: 1.0, 6: -2.5}
    assert type(params.temperature) is float


@pytest.mark.parametrize(
    ("given_seed", "kept"), [(0, 0), (7, 7), (2**63 - 1, 2**63 - 1), (-1, 2**63 - 1), (-(2**63), 0)]
)
def test_any_int64_is_a_seed(given_seed: int, kept: int) -> None:
    assert SamplingParams(seed=given_seed).seed == kept


@pytest.mark.parametrize("top_k", [-1, 0, 1])
def test_top_k_off_and_on_is_accepted(top_k: int) -> None:
    assert SamplingParams(top_k=top_k).top_k == top_k


def test_max_tokens_may_be_unlimited_beside_min_tokens() -> None:
    assert SamplingParams(max_tokens=None, min_tokens=5000).max_tokens is None


# --- defaults ------------------------------------------------------------------------------------------------------


def test_a_requests_own_values_win_over_the_models() -> None:
    params = SamplingParams(temperature=0.0, top_k=0).resolve(Defaults(temperature=0.6, top_k=20, top_p=0.95))
    assert (params.temperature, params.top_k, params.top_p) == (0.0, 0, 0.95)


def test_where_neither_says_anything_values_are_neutral() -> None:
    params = SamplingParams().resolve(Defaults())
    values = (params.temperature, params.top_p, params.top_k, params.min_p, params.repetition_penalty)
    assert values == (1.0, 1.0, 0, 0.0, 1.0)


def test_a_models_default_of_zero_is_not_taken_for_none() -> None:
    assert SamplingParams().resolve(Defaults(temperature=0.0)).greedy


def test_resolving_leaves_the_original_alone() -> None:
    params = SamplingParams()
    params.resolve(Defaults(temperature=0.6))
    assert params.temperature is None


def test_a_models_default_out_of_range_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match=r"top_p=1.5"):
        SamplingParams().resolve(Defaults(top_p=1.5))


@pytest.mark.parametrize(
    ("temperature", "greedy"), [(None, False), (0, True), (1e-6, True), (1e-5, False), (1.0, False)]
)
def test_temperatures_too_small_to_divide_by_are_greedy(temperature: float | None, greedy: bool) -> None:
    assert SamplingParams(temperature=temperature).greedy is greedy


# --- vocabulary ----------------------------------------------------------------------------------------------------


def test_a_biased_token_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"^logit_bias \{49152\}: must be a token id from 0 to 49151$") as caught:
        SamplingParams(logit_bias={49152: 5}).validate_for_model(49152)
    assert caught.value.field == "logit_bias"


def test_a_stop_token_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"^stop_token_ids\[1\]=107: must be a token id from 0 to 99$") as caught:
        SamplingParams(stop_token_ids=[99, 107]).validate_for_model(100)
    assert caught.value.field == "stop_token_ids"


def test_ids_inside_the_vocabulary_pass() -> None:
    SamplingParams(logit_bias={0: 1, 99: 1}, stop_token_ids=[0, 99]).validate_for_model(100)


@pytest.mark.parametrize("bad", [-1, 100, True, 1.0, "5", None])
def test_a_prompt_id_outside_the_vocabulary_is_refused_by_its_place(bad: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_token_ids("prompt", [5, bad], 100)
    assert caught.value.field == "prompt"
    assert str(caught.value) == f"prompt[1]={bad!r}: must be a token id from 0 to 99"


# --- the journal ---------------------------------------------------------------------------------------------------


def test_the_journal_gets_numbers_and_no_content() -> None:
    params = SamplingParams(
        stop=["secret", "x"], bad_words=["hidden"], stop_token_ids=[777], logit_bias={888: 1.5}, seed=3
    )
    record = params.as_record()
    text = json.dumps(record)
    assert not any(word in text for word in ("secret", "hidden", "777", "888"))
    counts = {name: record[name] for name in ("num_stop", "num_bad_words", "num_stop_token_ids", "num_logit_bias")}
    assert counts == {"num_stop": 2, "num_bad_words": 1, "num_stop_token_ids": 1, "num_logit_bias": 1}
    assert (record["seed"], record["temperature"], record["max_tokens"]) == (3, None, 16)


@given(
    st.from_type(object) | st.integers() | st.floats() | st.text() | st.lists(st.integers()),
    st.sampled_from(WHOLE + REAL),
)
def test_any_value_is_taken_or_refused_and_nothing_else(value: Any, name: str) -> None:
    try:
        SamplingParams(**{name: value})
    except InvalidRequest as error:
        assert error.field in (name, "min_tokens")  # max_tokens below min_tokens and the reverse
