"""The swap space under the runner: blocks go out, down and in, and come back bit by bit; steps overlap them; faults."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from nanolens.engine import faults
from nanolens.engine.plan import MoveResult
from nanolens.engine.sequence import Sequence
from runner_host import Host, prompt_of, recomputed

HOST, DISK = 8, 8


@pytest.fixture
def swapping(tmp_path: Path) -> Iterator[Callable[..., Host]]:
    """`swapping(host_blocks=.., disk_blocks=..)` gives a host with a swap space."""
    made: list[Host] = []

    def build(host_blocks: int = HOST, disk_blocks: int = DISK, **options: Any) -> Host:
        path = str(tmp_path / f"swap{len(made)}") if disk_blocks else None
        made.append(Host(host_blocks=host_blocks, disk_blocks=disk_blocks, swap_path=path, **options))
        return made[-1]

    yield build
    for host in made:
        host.runner.close()


def kv(host: Host, blocks: list[int]) -> torch.Tensor:
    """[layers, 2, blocks, ...] of these blocks."""
    return torch.stack([torch.stack([pages[blocks] for pages in layer]) for layer in host.runner.kv_caches])


def out(host: Host, seq: Sequence, slots: list[int]) -> Any:
    """A move of all of a sequence's blocks out, as the core does it for one that left RUNNING."""
    move = host.move("out", seq.block_table, [-1 - slot for slot in slots])
    host.free += seq.block_table  # to be taken first
    seq.block_table = move.targets
    seq.epoch += 1
    host.released.append(seq.seq_id)
    return move


def back(host: Host, seq: Sequence) -> Any:
    """The move that brings them back, to other blocks."""
    move = host.move("in", seq.block_table, [host.free.pop() for _ in seq.block_table])
    seq.block_table = move.targets
    return move


def errors(results: list[MoveResult]) -> list[str]:
    return [result.error for result in results]


@contextmanager
def gate(point: str) -> Iterator[threading.Event]:
    """The worker waits at a point until the event is set."""
    opened = threading.Event()

    def wait() -> None:
        assert opened.wait(30)

    with faults.armed(point, wait):
        try:
            yield opened
        finally:
            opened.set()


@pytest.mark.parametrize("way", ["host", "host alone", "disk", "disk alone", "down"])
def test_a_sequence_goes_on_where_it_was_from_other_blocks(swapping: Callable[..., Host], way: str) -> None:
    sizes = {"host alone": (HOST, 0), "disk alone": (0, DISK)}
    host = swapping(*sizes.get(way, (HOST, DISK)))
    seq, other = host.add(prompt_of(10)), host.add(prompt_of(5, 1))
    host.generate(seq, 4)
    blocks, filed = list(seq.block_table), host.runner.num_filed()
    held = kv(host, blocks)
    slots = [HOST + 3, HOST + 1, HOST, HOST + 6] if way == "disk" else [2, 5, 1, 0]
    moves = [out(host, seq, slots)]
    if way == "down":
        moves.append(host.move("down", seq.block_table, [-1 - HOST - i for i in (4, 1, 2, 3)]))
        seq.block_table = moves[-1].targets
    host.step((other, 5), moves=moves)
    host.generate(other, 30)  # into the blocks that were left
    assert set(other.block_table) & set(blocks)
    done = host.step(moves=[back(host, seq)]).moved
    assert (errors(done), done[-1].num_bytes, done[-1].move) == ([""] * len(done), held.nbytes, host.moves)
    assert not set(seq.block_table) & set(blocks)
    assert torch.equal(kv(host, seq.block_table), held)
    assert host.runner.num_filed() - filed == (0 if way.startswith("host") else 2 * len(blocks))
    assert host.generate(seq, 6) == recomputed(prompt_of(10), 10)


def test_results_come_in_order_and_once(swapping: Callable[..., Host]) -> None:
    host = swapping()
    seq = host.add(prompt_of(4))
    with gate("disk_write") as opened:
        moves = [host.move("out", [1], [-1 - HOST]), host.move("out", [2], [-1])]
        assert host.step((seq, 4), moves=moves).moved == []  # a step waits for no move
        opened.set()
    done = host.step().moved
    assert [(result.move, result.error) for result in done] == [(1, ""), (2, "")]
    assert all(result.duration_ns > 0 for result in done)
    assert host.step().moved == host.runner.finish_moves() == []
    launched = host.launch((seq, 1), moves=[host.move("in", [-1], [3])])
    assert [result.move for result in host.runner.finish_moves()] == [3]
    assert host.collect(launched).moved == []


@pytest.mark.parametrize("disk", [0, DISK])
def test_moves_of_a_plan_are_done_in_their_order(swapping: Callable[..., Host], disk: int) -> None:
    """A slot and a block change hands within one plan."""
    host = swapping(2, disk)
    for block in range(4):
        for keys, values in host.runner.kv_caches:
            keys[block], values[block] = block + 1, -block - 1
    host.step(moves=[host.move("out", [0, 1], [-1, -2])])
    host.step(
        moves=[
            host.move("in", [-1], [5]),
            host.move("out", [2], [-1]),  # the slot that was just left
            host.move("in", [-2], [2]),  # the block that was just left
            host.move("out", [2, 5], [-2, -1]),  # blocks that are just being filled
            host.move("in", [-1, -2], [6, 7]),
        ]
    )
    assert kv(host, [5, 2, 6, 7])[0, 0, :, 0, 0, 0].tolist() == [1, 2, 1, 2]


def test_more_blocks_than_staging_holds(swapping: Callable[..., Host]) -> None:
    host = swapping(40, 40, num_blocks=48)
    for keys, values in host.runner.kv_caches:
        keys.normal_(), values.normal_()
    blocks = list(range(40))
    held = kv(host, blocks)
    moves = [host.move("out", blocks[:23], [-1 - 40 - i for i in range(23)])]  # staging holds 6
    moves += [host.move("out", blocks[23:], [-1 - i for i in range(17)])]
    host.step(moves=moves)
    for keys, values in host.runner.kv_caches:
        keys.zero_(), values.zero_()
    sources = moves[0].targets + moves[1].targets
    assert errors(host.step(moves=[host.move("in", sources[::-1], blocks)]).moved) == [""]
    assert torch.equal(kv(host, blocks[::-1]), held)


def test_a_step_that_reuses_blocks_does_not_change_what_left_them(swapping: Callable[..., Host]) -> None:
    host = swapping()
    seq, other = host.add(prompt_of(10)), host.add(prompt_of(12, 1))
    host.generate(seq, 2)
    held = kv(host, seq.block_table)
    with gate("disk_write") as opened:
        move = out(host, seq, [HOST, HOST + 1, HOST + 2])
        host.step((other, 12), moves=[move])  # while the move has not begun to write
        assert set(other.block_table) == set(move.sources)
        opened.set()
    host.step(moves=[back(host, seq)])
    assert torch.equal(kv(host, seq.block_table), held)


def test_a_step_into_blocks_that_a_move_still_fills_comes_after_it(swapping: Callable[..., Host]) -> None:
    """The sequence of the move was given up meanwhile, and its blocks went to another one."""
    host = swapping()
    seq, other = host.add(prompt_of(7)), host.add(prompt_of(8, 1))
    host.generate(seq, 1)
    host.step(moves=[out(host, seq, [HOST, HOST + 1])])
    with gate("disk_read") as opened:
        move = back(host, seq)
        host.step((host.add([1]), 1), moves=[move])
        host.free += move.targets
        timer = threading.Timer(0.2, opened.set)
        timer.start()
        host.step((other, 8))
        timer.join()
    assert set(other.block_table) == set(move.targets)
    host.step()
    assert host.generate(other, 5) == recomputed(prompt_of(8, 1), 6)


def test_a_plan_of_moves_alone_takes_back_rows_and_waits(swapping: Callable[..., Host]) -> None:
    host = swapping(max_num_seqs=1)
    seq = host.add(prompt_of(6))
    host.generate(seq, 1)
    result = host.step(moves=[out(host, seq, [HOST, 0])])
    assert (result.tokens, errors(result.moved)) == ([], [""])
    host.generate(host.add(prompt_of(5)), 1)  # the one row is free again


def test_copies_come_before_the_step_and_after_the_moves(swapping: Callable[..., Host]) -> None:
    host = swapping(HOST, 0)
    leader = host.add(prompt_of(6), temperature=0.0)
    host.generate(leader, 1)
    held = kv(host, leader.block_table)
    sibling = host.add(prompt_of(6), temperature=0.0)
    host.step(moves=[host.move("out", leader.block_table[1:], [-1])])
    brought, own, third = (host.free.pop() for _ in range(3))
    sibling.block_table = [leader.block_table[0], own]
    sibling.num_computed_tokens = 5
    for keys, values in host.runner.kv_caches:
        keys[leader.block_table[1]], values[leader.block_table[1]] = 0, 0
    host.step((sibling, 1), moves=[host.move("in", [-1], [brought])], copies=[(brought, third), (third, own)])
    assert torch.equal(kv(host, [own])[:, :, :, :1], held[:, :, 1:, :1])
    assert sibling.output_token_ids == leader.output_token_ids


def raising(error: BaseException) -> Callable[[], None]:
    def action() -> None:
        raise error

    return action


@pytest.mark.parametrize(
    ("point", "disk"),
    [("swap_out", 0), ("swap_in", 0), *((point, DISK) for point in ("swap_out", "swap_in", "disk_write", "disk_read"))],
)
def test_a_fault_is_reported_and_the_next_moves_work(swapping: Callable[..., Host], point: str, disk: int) -> None:
    host = swapping(HOST, disk)
    slot = HOST if disk else 0
    host.step(moves=[host.move("out", [3], [-1 - slot - 1])])
    with faults.armed(point, raising(OSError(28, "No space left on device"))):
        moves = [host.move("out", [1, 2], [-1 - slot, -1 - slot - 2]), host.move("in", [-1 - slot - 1], [4])]
        failed = errors(host.step(moves=moves).moved)
    expected = "OSError: [Errno 28] No space left on device"
    assert failed == ([expected, ""] if point in ("swap_out", "disk_write") else ["", expected])
    again = [host.move("out", [1], [-1 - slot]), host.move("in", [-1 - slot], [5])]
    assert errors(host.step(moves=again).moved) == ["", ""]


def test_a_slot_whose_write_failed_is_bad_until_written_again(swapping: Callable[..., Host]) -> None:
    host = swapping()
    with faults.armed("disk_write", raising(OSError("broken"))):
        down = host.move("down", [-1], [-1 - HOST])
        host.step(moves=[host.move("out", [1], [-1]), down])
    results = host.step(moves=[host.move("in", [-1 - HOST], [2])]).moved
    assert errors(results) == [f"OSError: slot {HOST} of the swap space holds nothing: its last write failed"]
    assert results[0].num_bytes == 0
    moves = [host.move("down", [-1], [-1 - HOST]), host.move("in", [-1 - HOST], [2])]
    assert errors(host.step(moves=moves).moved) == ["", ""]


def test_moves_without_a_swap_space_are_refused() -> None:
    host = Host()
    with pytest.raises(RuntimeError, match="there is no swap space"):
        host.step(moves=[host.move("out", [1], [-1])])


def test_the_cost_of_a_move_is_measured_only_where_there_is_a_swap_space(swapping: Callable[..., Host]) -> None:
    runner = swapping().runner
    assert runner.swap_ns_per_block == runner.startup["swap_ns_per_block"] > 0
    assert (runner.host_blocks, runner.disk_blocks) == (HOST, DISK)
    plain = Host().runner
    assert (plain.swap_ns_per_block, plain.host_blocks, plain.disk_blocks) == (0, 0, 0)
    assert "swap_ns_per_block" not in plain.startup


def test_closing_leaves_no_thread_and_no_file_whatever_is_queued(swapping: Callable[..., Host], tmp_path: Path) -> None:
    host = swapping()
    assert list(tmp_path.iterdir())
    with gate("disk_write") as opened:
        moves = [host.move("out", [i], [-1 - HOST - i]) for i in range(4)]
        host.launch((host.add([1, 2]), 2), moves=moves)
        threading.Timer(0.1, opened.set).start()
        host.runner.close()
    assert list(tmp_path.iterdir()) == []
    assert "nanolens-swap" not in {thread.name for thread in threading.enumerate()}
    host.runner.close()


def test_the_device_of_a_cpu_is_sound() -> None:
    assert Host().runner.is_sound()


