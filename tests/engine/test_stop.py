"""Stop strings are found across pieces of text; what may begin one is held back, and nothing is lost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanolens.engine.stop import StopChecker


def cut_at_once(text: str, stop: list[str], include_stop: bool) -> tuple[str, str | None]:
    """What the whole text comes to: the definition, without any streaming."""
    for end in range(1, len(text) + 1):
        ending = [s for s in stop if text[:end].endswith(s)]
        if ending:
            longest = max(ending, key=len)
            return text[: end if include_stop else end - len(longest)], longest
    return text, None


def stream(pieces: list[str], stop: list[str], include_stop: bool = False) -> tuple[list[str], str | None]:
    """Push the pieces; the deltas, the last one from finish when nothing matched, and the match."""
    checker = StopChecker(stop, include_stop)
    deltas = []
    for piece in pieces:
        delta, matched = checker.push(piece)
        deltas.append(delta)
        if matched is not None:
            return deltas, matched
    return [*deltas, checker.finish()], None


letters = st.text(alphabet="ab\u00e9", max_size=6)


@given(
    pieces=st.lists(letters, max_size=12),
    stop=st.lists(st.text(alphabet="ab\u00e9", min_size=1, max_size=5), max_size=4),
    include_stop=st.booleans(),
)
@settings(max_examples=400)
def test_streamed_text_is_that_of_the_whole_text_however_it_is_cut(
    pieces: list[str], stop: list[str], include_stop: bool
) -> None:
    deltas, matched = stream(pieces, stop, include_stop)
    assert ("".join(deltas), matched) == cut_at_once("".join(pieces), stop, include_stop)


@given(pieces=st.lists(letters, max_size=12), stop=st.lists(st.text(alphabet="ab", min_size=1, max_size=5), max_size=4))
def test_no_more_is_held_back_than_may_begin_a_stop_string(pieces: list[str], stop: list[str]) -> None:
    checker, seen, shown = StopChecker(stop), "", ""
    for piece in pieces:
        delta, matched = checker.push(piece)
        if matched is not None:
            return
        seen, shown = seen + piece, shown + delta
        beginnings = [k for s in stop for k in range(1, len(s)) if seen.endswith(s[:k])]
        assert len(seen) - len(shown) == max(beginnings, default=0)


def test_text_without_stop_strings_passes_at_once() -> None:
    assert stream(["ab", "", "c"], []) == (["ab", "", "c", ""], None)


def test_a_false_beginning_is_released_as_soon_as_it_is_one() -> None:
    assert stream(["aab", "x"], ["aabc"]) == (["", "aabx", ""], None)


def test_a_beginning_inside_a_false_beginning_stays_held() -> None:
    assert stream(["aab", "aa", "c"], ["aabaac"]) == (["", "", ""], "aabaac")
    assert stream(["aa", "a", "b"], ["aab"]) == (["", "a", ""], "aab")


def test_the_stop_string_that_is_complete_first_ends_the_text() -> None:
    assert stream(["abcd"], ["abcd", "bc"]) == (["a"], "bc")


def test_of_two_that_end_together_the_longer_one_counts() -> None:
    assert stream(["xabc"], ["c", "abc"]) == (["x"], "abc")


def test_an_included_stop_string_is_shown_and_what_follows_it_is_not() -> None:
    assert stream(["xD", "EFGh"], ["DEFG"], include_stop=True) == (["x", "DEFG"], "DEFG")


@pytest.mark.parametrize("include_stop", [False, True])
def test_nothing_passes_after_a_match(include_stop: bool) -> None:
    checker = StopChecker(["b"], include_stop)
    checker.push("abc")
    assert checker.push("def") == ("", None)
    assert checker.finish() == ""


def test_an_occurrence_that_does_not_count_passes_and_the_next_is_found() -> None:
    checker = StopChecker(["aba"])
    assert checker.push("xaba", counts=False) == ("xab", None)
    assert checker.push("ba") == ("", "aba")  # it shares its first letter with the one that did not count


def test_finish_releases_what_was_held_back_exactly_once() -> None:
    checker = StopChecker(["DEFG"])
    assert checker.push("DE") == ("", None)
    assert checker.finish() == "DE"
    assert checker.finish() == ""
