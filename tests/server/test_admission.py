"""Who is let in: places taken and given back, Retry-After, and what a server that stops says."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nanolens.server.admission import LONGEST_S, UNKNOWN_S, QueueAdmission
from nanolens.server.errors import ApiError
from serve import Server, completion


class FakeClock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def refusal(admission: QueueAdmission, num_requests: int = 1) -> ApiError:
    with pytest.raises(ApiError) as caught:
        admission.enter(num_requests)
    return caught.value


def test_as_many_are_let_in_as_run_and_wait() -> None:
    admission = QueueAdmission(2, 1)
    places = [admission.enter(1) for _ in range(3)]
    assert refusal(admission).status == 429
    places[0]()
    admission.enter(1)
    assert admission.in_flight == 3 and admission.admitted == 4 and admission.refused["full"] == 1


def test_a_place_is_given_back_once() -> None:
    admission = QueueAdmission(2, 0)
    leave = admission.enter(2)
    leave()
    leave()
    assert admission.in_flight == 0


def test_a_call_takes_a_place_for_each_of_its_requests() -> None:
    admission = QueueAdmission(3, 0)
    admission.enter(2)
    assert refusal(admission, 2).status == 429
    admission.enter(1)


def test_a_call_that_an_empty_queue_could_not_hold_is_a_bad_request() -> None:
    found = refusal(QueueAdmission(3, 1), 5)
    assert (found.status, found.param) == (400, "prompt")


def test_without_a_limit_everyone_is_let_in() -> None:
    admission = QueueAdmission(1, None)
    for _ in range(1000):
        admission.enter(10)
    assert admission.in_flight == 10_000


def test_retry_after_follows_the_rate_at_which_requests_ended() -> None:
    clock = FakeClock()
    admission = QueueAdmission(4, 0, clock)
    places = [admission.enter(1) for _ in range(4)]
    for leave in places[:3]:  # one every two seconds
        leave()
        clock.now += 2
    for _ in range(3):
        admission.enter(1)
    assert refusal(admission).headers["Retry-After"] == "2"
    assert refusal(admission, 3).headers["Retry-After"] == "6"
    clock.now += 54  # nothing ends for a while: the estimate grows
    assert refusal(admission).headers["Retry-After"] == "20"
    clock.now += 1e6
    assert refusal(admission).headers["Retry-After"] == str(LONGEST_S)


def test_retry_after_is_a_guess_while_nothing_has_ended() -> None:
    admission = QueueAdmission(1, 0)
    admission.enter(1)
    assert refusal(admission).headers["Retry-After"] == str(UNKNOWN_S)


def test_a_server_that_stops_lets_nobody_in_and_waits_for_the_last() -> None:
    async def main() -> None:
        admission = QueueAdmission(1, 0)
        leave = admission.enter(1)
        admission.stop()
        assert (refusal(admission).status, refusal(admission).code) == (503, "stopping")
        waiting = asyncio.ensure_future(admission.wait_idle())
        await asyncio.sleep(0)
        assert not waiting.done()
        leave()
        await asyncio.wait_for(waiting, 5)

    asyncio.run(main())


def test_a_full_server_answers_429_with_retry_after_and_takes_more_when_there_is_room(tmp_path: Path) -> None:
    with Server(tmp_path, max_num_seqs=1, max_queue=1) as server, ThreadPoolExecutor(2) as pool:
        server.post("/debug/engine/pause", {})
        held = [pool.submit(server.post, "/v1/completions", completion([1, 2], max_tokens=4)) for _ in range(2)]
        server.wait_until(lambda: len(server.snapshot()["sequences"]) == 2, "full")
        full = server.post("/v1/completions", completion([1, 2]))
        assert (full.status, full.error["code"], full.error["type"]) == (429, "queue_full", "rate_limit_error")
        assert int(full.headers["retry-after"]) >= 1
        streamed = server.post("/v1/chat/completions", {
            "model": "test", "messages": [{"role": "user", "content": "Hi"}], "stream": True})  # fmt: skip
        assert streamed.status == 429
        server.post("/debug/engine/resume", {})
        assert [each.result().status for each in held] == [200, 200]
        assert server.post("/v1/completions", completion([1, 2], max_tokens=2)).status == 200
