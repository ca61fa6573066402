"""Which replica of a fleet a call goes to, and why: prefixes first, unless their holder is too busy; then load."""

from __future__ import annotations

from typing import Any

from nanolens.server.fleet_cache import RECENT_S
from nanolens.server.fleet_messages import HttpCall, Report
from nanolens.server.fleet_view import FleetView, fleet_of

PROMPT = tuple(bytes([number]) * 8 for number in range(1, 6))
OTHER = tuple(bytes([number]) * 8 for number in range(101, 106))


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def fleet(*names: str, max_num_seqs: int = 16) -> FleetView:
    made = FleetView(max_num_seqs, Clock())
    made.update(names)
    return made


def call(hashes: tuple[bytes, ...] = PROMPT, **fields: Any) -> HttpCall:
    return HttpCall("POST", "/v1/completions", hashes=hashes, generates=True, **fields)


def send(view: FleetView, replica: str, hashes: tuple[bytes, ...] = PROMPT) -> int:
    """A call that a replica holds."""
    number = view.open()
    view.begin(replica, number, hashes)
    return number


def in_flight(view: FleetView) -> dict[str, int]:
    return {report.replica: count for report, count, _ in view.reports()}


def whole(replica: str, hashes: tuple[bytes, ...] = (), **fields: Any) -> Report:
    return Report(replica, version=1, is_whole=True, added=b"".join(hashes), **fields)


def test_the_longest_cached_prefix_decides() -> None:
    view = fleet("a", "b", "c")
    view.take(whole("a", PROMPT[:2]))
    view.take(whole("b", PROMPT[:4]))
    view.take(whole("c", PROMPT[3:]))  # blocks without those before them are no prefix
    route = view.choose(("a", "b", "c"), call())
    assert (route.order[0], route.reason, route.best_matched, route.blocks) == ("b", "prefix", 4, 5)
    assert route.matched == {"a": 2, "b": 4, "c": 0}
    assert set(route.order) == {"a", "b", "c"}


def test_a_holder_that_is_too_far_ahead_in_load_is_passed_over() -> None:
    view = fleet("a", "b", max_num_seqs=4)
    view.take(whole("a", PROMPT, running=3))
    view.take(whole("b"))
    assert view.choose(("a", "b"), call()).order[0] == "a"
    view.take(whole("a", PROMPT, running=4, waiting=1, free_blocks=99))
    route = view.choose(("a", "b"), call())
    assert (route.order[0], route.reason, route.best_matched) == ("b", "load", 5)


def test_a_holder_that_has_room_gets_its_prefixes_however_idle_the_others_are() -> None:
    view = fleet("a", "b", max_num_seqs=16)
    view.take(whole("a", PROMPT, running=15))
    view.take(whole("b"))
    assert view.choose(("a", "b"), call()).reason == "prefix"


def test_what_is_cached_in_small_part_goes_by_load() -> None:
    view = fleet("a", "b")
    view.take(whole("a", PROMPT[:1], running=5))
    view.take(whole("b"))
    assert view.choose(("a", "b"), call()).order[0] == "b"


def test_a_prefix_at_two_replicas_goes_where_it_went_first() -> None:
    view = fleet("a", "b")
    clock = view._clock
    assert isinstance(clock, Clock)
    for name in ("b", "a"):
        view.end(send(view, name))
        view.take(whole(name, PROMPT))
    view.take(whole("b", PROMPT, running=3))
    assert view.choose(("a", "b"), call()).order == ("b", "a")
    clock.now += 1
    view.take(whole("b", OTHER, running=3))  # it has forgotten it
    assert view.choose(("a", "b"), call()).order == ("a", "b")


def test_a_prefix_that_many_ask_for_at_once_is_copied_sooner() -> None:
    crowd, others = fleet("a", "b"), fleet("a", "b")
    for view, prompts in ((crowd, [PROMPT] * 12), (others, [(bytes([number] * 8),) for number in range(12)])):
        view.end(send(view, "a"))
        view.take(whole("a", PROMPT))
        for each in prompts:
            send(view, "a", each)
    assert others.choose(("a", "b"), call()).order[0] == "a"
    assert crowd.choose(("a", "b"), call()).order[0] == "b"


def test_a_holder_with_a_queue_and_no_free_blocks_is_passed_over() -> None:
    view = fleet("a", "b")
    view.take(whole("a", PROMPT[:2], waiting=1, free_blocks=3))
    view.take(whole("b", free_blocks=100))
    assert view.choose(("a", "b"), call()).reason == "no_blocks"
    view.take(whole("a", PROMPT[:2], waiting=1, free_blocks=4))
    assert view.choose(("a", "b"), call()).reason == "prefix"


def test_without_a_prefix_the_least_loaded_replica_gets_it() -> None:
    view = fleet("a", "b")
    view.take(whole("a", running=2))
    view.take(whole("b", running=1))
    route = view.choose(("a", "b"), call())
    assert (route.order, route.reason, route.loads) == (("b", "a"), "load", {"a": 2, "b": 1})


def test_calls_in_flight_from_here_count_before_any_report() -> None:
    view = fleet("a", "b")
    first = view.choose(("a", "b"), call(())).order[0]
    number = send(view, first, ())
    assert view.choose(("a", "b"), call(())).order[0] != first
    view.end(number)
    assert view.choose(("a", "b"), call(())).order[0] == first


def test_a_call_that_ends_before_it_is_said_to_have_begun_counts_nowhere() -> None:
    view = fleet("a", "b")
    number = view.open()
    view.end(number)
    view.begin("a", number, PROMPT)
    assert in_flight(view) == {"a": 0, "b": 0}


def test_a_call_that_another_replica_took_counts_there_alone() -> None:
    view = fleet("a", "b")
    number = send(view, "a")
    view.begin("b", number, PROMPT)
    assert in_flight(view) == {"a": 0, "b": 1}
    view.end(number)
    assert in_flight(view) == {"a": 0, "b": 0}


def test_sequences_beside_the_calls_from_here_count_as_load() -> None:
    view = fleet("a", "b")
    number = send(view, "a")
    view.take(whole("a", running=4))  # one call of four sequences
    assert view.choose(("a", "b"), call()).loads == {"a": 4, "b": 0}
    view.end(number)
    view.take(whole("a"))
    assert view.choose(("a", "b"), call()).loads == {"a": 0, "b": 0}


def test_calls_that_have_ended_since_a_report_do_not_count() -> None:
    view = fleet("a", "b")
    numbers = [send(view, "a") for _ in range(4)]
    view.take(whole("a", running=4))
    for number in numbers:
        view.end(number)
    assert view.choose(("a", "b"), call()).loads == {"a": 0, "b": 0}


def test_a_prompt_that_was_just_sent_counts_as_cached_for_a_while() -> None:
    view = fleet("a", "b")
    clock = view._clock
    assert isinstance(clock, Clock)
    view.end(send(view, "b"))
    assert view.choose(("a", "b"), call()).reason == "prefix"
    clock.now += RECENT_S + 1
    assert view.choose(("a", "b"), call()).reason == "load"


def test_a_prompt_that_was_sent_and_is_forgotten_again_does_not_count_as_cached() -> None:
    view = fleet("a", "b")
    clock = view._clock
    assert isinstance(clock, Clock)
    view.end(send(view, "b"))
    view.take(whole("b", PROMPT))
    clock.now += RECENT_S / 2
    view.take(Report("b", version=2, removed=b"".join(PROMPT)))
    assert view.choose(("a", "b"), call()).best_matched == 0


def full(view: FleetView) -> None:
    """Two prompts are cached at a, OTHER is the older one, and its pool has begun to evict."""
    send(view, "a", OTHER)
    send(view, "a")
    view.take(whole("a", PROMPT + OTHER))
    view.take(Report("a", version=2, added=b"o" * 8))
    view.take(Report("a", version=3, removed=b"o" * 8))


def believed(view: FleetView, hashes: tuple[bytes, ...]) -> int:
    return view.choose(("a",), call(hashes)).matched["a"]


def test_prompts_on_their_way_to_a_full_pool_take_the_place_of_the_oldest_blocks() -> None:
    view = fleet("a")
    full(view)
    new = tuple(bytes([number]) * 8 for number in range(200, 202))
    number = send(view, "a", new)
    assert believed(view, OTHER) == 2 and believed(view, PROMPT) == 5  # and a block that is not full goes with them
    view.take(Report("a", version=4, added=b"".join(new), removed=b"".join(OTHER[4:])))
    assert believed(view, OTHER) == 4  # what was evicted is known now
    view.end(number)
    assert believed(view, new) == 2


def test_a_pool_with_room_evicts_nothing() -> None:
    view = fleet("a")
    view.take(whole("a", OTHER + PROMPT))
    send(view, "a", tuple(bytes([number]) * 8 for number in range(200, 205)))
    assert believed(view, OTHER) == believed(view, PROMPT) == 5


def test_what_was_used_last_is_evicted_last() -> None:
    view = fleet("a")
    full(view)
    send(view, "a", OTHER)
    send(view, "a", (b"n" * 8,))
    assert believed(view, OTHER) == 5 and believed(view, PROMPT) == 3


def test_what_was_computed_and_is_evicted_again_at_once_is_not_cached() -> None:
    view = fleet("a")
    send(view, "a")
    view.take(Report("a", version=1, added=b"".join(PROMPT)))
    view.take(Report("a", version=2, removed=b"".join(PROMPT)))
    assert believed(view, PROMPT) == 0


def test_a_route_says_how_old_what_is_known_was() -> None:
    view = fleet("a", "b")
    clock = view._clock
    assert isinstance(clock, Clock)
    view.ask("a")
    clock.now += 0.05
    view.take(whole("a"))
    clock.now += 0.2
    one = call(pinned="a")
    one.route = view.choose(("a", "b"), one)
    one.route.taken_by("a")
    assert one.route_record()["known_ms"] == 250


def test_new_prefixes_spread_over_replicas_that_are_about_equally_loaded() -> None:
    view = fleet("a", "b")
    first = view.choose(("a", "b"), call()).order[0]
    for number in range(4):
        view.end(send(view, first, tuple(bytes([number, block] * 4) for block in range(5))))
    other = "ab".replace(first, "")
    view.take(whole(other, running=3))
    route = view.choose(("a", "b"), call(OTHER))
    assert (route.order[0], route.reason) == (other, "load")
    view.take(whole(other, running=5))
    assert view.choose(("a", "b"), call(OTHER)).order[0] == first


def test_prompts_that_are_found_in_a_cache_give_a_replica_nothing_to_compute() -> None:
    view = fleet("a", "b")
    view.take(whole("a", PROMPT))
    view.end(send(view, "a"))
    view.end(send(view, "b", OTHER[:1]))
    assert view.choose(("a", "b"), call((b"n" * 8,))).order[0] == "a"


def test_a_report_of_changes_adds_and_removes() -> None:
    view = fleet("a", "b")
    view.take(whole("a", PROMPT))
    view.take(Report("a", version=2, added=OTHER[0], removed=b"".join(PROMPT[2:])))
    assert view.choose(("a", "b"), call()).best_matched == 2
    assert view.choose(("a", "b"), call(OTHER)).best_matched == 1
    assert view.ask("a").version == 2


def test_replicas_to_avoid_are_asked_only_where_there_are_no_others() -> None:
    view = fleet("a", "b")
    view.take(whole("a", PROMPT))
    assert view.choose(("a", "b"), call(avoid=frozenset("a"))).order == ("b",)
    assert set(view.choose(("a", "b"), call(avoid=frozenset("ab"))).order) == {"a", "b"}


def test_a_replica_whose_engine_is_in_trouble_gets_nothing() -> None:
    view = fleet("a", "b")
    view.take(whole("a", PROMPT, trouble="the engine has stopped"))
    route = view.choose(("a", "b"), call())
    assert (route.order, route.reason) == (("b",), "only")


def test_a_pinned_call_goes_nowhere_else() -> None:
    view = fleet("a", "b")
    view.take(whole("a", PROMPT))
    route = view.choose(("a", "b"), call(pinned="b"))
    assert (route.order, route.reason) == (("b",), "pinned")


def test_the_record_of_a_pinned_call_has_the_best_figures_of_the_fleet() -> None:
    view = fleet("a", "b", "c")
    view.take(whole("a", PROMPT[:4]))
    send(view, "b", ())
    pinned = call(pinned="b")
    pinned.route = view.choose(("a", "b", "c"), pinned)
    pinned.route.taken_by("b")
    record = pinned.route_record()
    assert pinned.route.order == ("b",)
    assert (record["matched_blocks"], record["best_matched_blocks"]) == (0, 4)
    assert (record["load"], record["least_load"], record["replicas"]) == (1, 0, 3)


def test_a_replica_that_is_gone_is_forgotten_with_what_it_cached() -> None:
    view = fleet("a", "b")
    view.take(whole("a", PROMPT))
    view.update(("b", "c"))
    view.take(whole("a", PROMPT))
    assert view.replicas == ("b", "c")
    assert view.choose(("b", "c"), call()).reason == "load"


def test_a_name_stands_for_one_view() -> None:
    assert fleet_of("test-one") is fleet_of("test-one") is not fleet_of("test-two")
