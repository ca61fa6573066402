"""Ids of a fleet's requests: the rule of one server, for those that live and those that may be paused at a replica."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nanolens.models.dummy import ByteTokenizer
from nanolens.server.fleet_ids import FleetIds, Names
from nanolens.server.fleet_messages import HttpCall, Route
from nanolens.server.fleet_prefixes import PromptHashes

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
RUNNING = ("a", "b")


def taken(ids: FleetIds, name: str, path: str = COMPLETIONS, at: str = "a", **fields: Any) -> Names:
    """A call that was sent to a replica."""
    names = Names(name, **fields)
    ids.take(names, path)
    names.call = HttpCall("POST", path, route=Route(at))
    return names


def test_a_call_with_the_id_of_one_that_lives_gets_another_until_that_has_ended() -> None:
    ids = FleetIds()
    first = taken(ids, "x")
    assert first.name == "x" and taken(ids, "x", CHAT).name.startswith("chatcmpl-")
    ids.drop(first, True)
    assert taken(ids, "x").name == "x"


@pytest.mark.parametrize(("one", "other"), [(("w-1", 1), ("w", 2)), (("w", 2), ("w-1", 1)), (("w", 2), ("w", 1))])
def test_the_requests_of_a_batch_have_ids_that_are_taken_too(one: tuple[str, int], other: tuple[str, int]) -> None:
    ids = FleetIds()
    first = taken(ids, one[0], count=one[1])
    assert taken(ids, other[0], count=other[1]).name.startswith("cmpl-")
    ids.drop(first, True)
    assert taken(ids, other[0], count=other[1]).name == other[0]


def test_what_may_be_paused_is_asked_for_at_its_replica() -> None:
    ids = FleetIds()
    ids.drop(taken(ids, "y", count=2, may_pause=True), True)
    assert ids.of_path("/v1/requests/y-1/resume") == "a" and ids.of_path("/v1/requests/y-2/resume") == ""
    single = taken(ids, "y-1", at="b")
    assert ids.doubtful(single, RUNNING) == {"a": ["y-1"]} and ids.doubtful(single, ("b",)) == {}
    ids.rename(single, "cmpl-1")  # it is paused there
    assert ids.of_path("/v1/requests/y-1/resume") == "a" and ids.of_path("/v1/requests/cmpl-1/resume") == "b"
    ids.drop(single, True)
    assert ids.of_path("/v1/requests/y-1/finish") == "a" and ids.of_path("/v1/requests/cmpl-1/finish") == ""


def test_a_request_whose_client_is_gone_may_live_for_a_while() -> None:
    ids = FleetIds()
    ids.drop(taken(ids, "x"), has_ended=False)
    assert ids.doubtful(taken(ids, "x"), RUNNING) == {"a": ["x"]}


def test_a_call_that_went_nowhere_gives_its_ids_back_alone() -> None:
    ids = FleetIds()
    living = taken(ids, "x")
    ids.drop(Names("x"), False)  # its client left before it took any
    assert ids.of_path("/v1/requests/x/resume") == living.replica == "a"


@pytest.mark.parametrize(
    ("path", "body", "count", "may_pause"),
    [
        (COMPLETIONS, {"prompt": "one"}, 1, False),
        (COMPLETIONS, {"prompt": [1, 2, 3]}, 1, False),
        (COMPLETIONS, {"prompt": ["one", "two"], "on_stop": "pause"}, 2, True),
        (COMPLETIONS, {"prompt": [[1], [2], [3]], "on_stop": "finish"}, 3, False),
        (CHAT, {"messages": [{"role": "user", "content": "x"}] * 3, "on_stop": "pause"}, 1, True),
        (CHAT, {"prompt": ["one", "two"]}, 1, False),
    ],
)
def test_a_body_says_how_many_requests_it_brings(path: str, body: object, count: int, may_pause: bool) -> None:
    asked = PromptHashes(ByteTokenizer(264), 4, bytes(32)).read(path, json.dumps(body).encode())
    assert (asked.count, asked.may_pause) == (count, may_pause)
