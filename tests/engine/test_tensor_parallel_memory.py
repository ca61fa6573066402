"""The memory that ranks share: slots grow with the plans, cells tell of each rank, and a watch tells who hangs."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from fake_ranks import shared_descriptors
from nanolens.engine.runner import tensor_parallel_watch as watching
from nanolens.engine.runner.tensor_parallel_memory import (
    FIRST_SLOT,
    SLOTS,
    TIMES,
    PlanReader,
    PlanWriter,
    Progress,
    make_shared_memory,
)
from nanolens.engine.runner.tensor_parallel_watch import Watch


@pytest.fixture
def memory() -> Iterator[int]:
    fd = make_shared_memory(3)
    yield fd
    os.close(fd)


def test_the_last_plans_can_be_read_whatever_their_size(memory: int) -> None:
    writer, reader = PlanWriter(memory, 3), PlanReader(memory)
    sizes = [10, FIRST_SLOT, 3 * FIRST_SLOT + 1, 5, 2 * FIRST_SLOT, 20 * FIRST_SLOT, 1]
    written: list[tuple[int, bytes]] = []
    for number, size in enumerate(sizes):
        data = bytes([number]) * size
        written.append((writer.write(number, data), data))
        for offset, expected in written[-SLOTS:]:
            assert reader.read(offset, len(expected)) == expected
    writer.close()


def test_plans_of_one_size_take_no_more_memory(memory: int) -> None:
    writer = PlanWriter(memory, 3)
    writer.write(0, b"x")
    before = os.fstat(memory).st_size
    for number in range(1, 50):
        writer.write(number, b"x" * FIRST_SLOT)
    assert os.fstat(memory).st_size == before
    writer.close()


def test_plans_leave_the_cells_alone(memory: int) -> None:
    progress, writer = Progress(memory, 3), PlanWriter(memory, 3)
    progress.begin_step(2, 41)
    for number in range(SLOTS):
        writer.write(number, b"\xff" * FIRST_SLOT)
    assert [progress.step(rank) for rank in range(3)] == [None, None, 41]
    assert progress.beats() == [0, 0, 0]
    writer.close()


def test_a_message_is_taken_when_all_ranks_have(memory: int) -> None:
    progress = Progress(memory, 3)
    for rank in range(3):
        assert not progress.has_taken(1)
        progress.take(rank, 1 + rank)
    assert progress.has_taken(1) and not progress.has_taken(2)


def test_times_are_told_once_all_ranks_have_them(memory: int) -> None:
    progress = Progress(memory, 3)
    for rank in range(3):
        assert progress.times(5) is None
        progress.end_step(rank, 5, 100 + rank, rank)
    assert progress.times(5) == ([100, 101, 102], [0, 1, 2], [])
    progress.end_step(1, 5 + TIMES, 1, 1)
    assert progress.times(5) is None


def test_how_late_ranks_came_is_told_where_all_know_and_sums_may_wrap(memory: int) -> None:
    progress = Progress(memory, 3)
    for rank, came in enumerate([(1 << 64) - 10, (1 << 64) + 20, (1 << 64) - 40]):
        progress.end_step(rank, 1, 100, 50, came)
        progress.end_step(rank, 2, 100, 50, came if rank else 0)
    assert progress.times(1) == ([100] * 3, [50] * 3, [30, 60, 0])
    assert progress.times(2) == ([100] * 3, [50] * 3, [])


def test_the_memory_has_no_name() -> None:
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    fd = make_shared_memory(2)
    assert not os.path.isdir("/dev/shm") or set(os.listdir("/dev/shm")) <= before
    assert len(shared_descriptors()) == 1
    progress, writer = Progress(fd, 2), PlanWriter(fd, 2)
    progress.close()
    writer.close()
    os.close(fd)
    assert not shared_descriptors()


class Time:
    now = 100.0

    @classmethod
    def monotonic(cls) -> float:
        return cls.now


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Watch:
    monkeypatch.setattr(watching, "time", Time)
    return Watch(2)


def look(watch: Watch, seconds: float, beats: list[int]) -> int | None:
    Time.now += seconds
    return watch.look(beats)


def test_a_rank_that_does_not_beat_hangs(looks: Watch) -> None:
    found = [look(looks, watching.LOOK_S, [beat, 7]) for beat in range(100)]
    first = found.index(1)
    assert first * watching.LOOK_S == pytest.approx(watching.HANG_S)
    assert set(found[:first]) == {None}


def test_a_driver_that_slept_accuses_nobody(looks: Watch) -> None:
    assert [look(looks, 1000.0, [1, 7]) for _ in range(10)] == [None] * 10


def test_looks_in_quick_succession_count_once(looks: Watch) -> None:
    assert [look(looks, watching.LOOK_S / 1000, [1, 7]) for _ in range(1000)] == [None] * 1000


def test_only_looks_of_one_wait_count(looks: Watch) -> None:
    enough = int(watching.HANG_S / watching.LOOK_S)
    for _ in range(4):
        assert [look(looks, watching.LOOK_S, [1, 7]) for _ in range(enough - 1)] == [None] * (enough - 1)
        looks.reset()
