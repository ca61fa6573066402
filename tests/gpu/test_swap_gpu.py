"""Blocks leave a GPU and come back while steps run: the same bits and tokens, no wait in a launch, no memory kept."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from gpu_checks import need_gpu

need_gpu()

from nanolens.engine import faults  # noqa: E402
from nanolens.engine.config import EngineConfig  # noqa: E402
from nanolens.engine.plan import BlockMove  # noqa: E402
from nanolens.engine.runner import swap_transfers  # noqa: E402
from nanolens.engine.runner.load import load_parts  # noqa: E402
from nanolens.engine.sequence import Sequence  # noqa: E402
from nanolens.errors import OutOfDeviceMemory  # noqa: E402
from runner_host import Host, prompt_of  # noqa: E402

pytestmark = pytest.mark.gpu
HOST, DISK, SIZE = 24, 24, 16
WAYS = ("host", "disk", "down")


@pytest.fixture(scope="module")
def model() -> Any:
    return load_parts(EngineConfig(model="dummy:llama-tiny", dtype="float32", device="cuda")).model


@pytest.fixture
def swapping(model: Any, tmp_path: Path) -> Iterator[Callable[..., Host]]:
    made: list[Host] = []

    def build(host_blocks: int = HOST, disk_blocks: int = DISK, **options: Any) -> Host:
        path = str(tmp_path / f"swap{len(made)}") if disk_blocks else None
        options = {"num_blocks": 64, "block_size": SIZE, "max_num_seqs": 4, "max_num_batched_tokens": 512} | options
        swap = {"host_blocks": host_blocks, "disk_blocks": disk_blocks, "swap_path": path}
        made.append(Host(model, device="cuda", **(swap | options)))
        return made[-1]

    yield build
    for host in made:
        host.runner.close()


def kv(host: Host, blocks: list[int]) -> torch.Tensor:
    return torch.stack([torch.stack([pages[blocks] for pages in layer]) for layer in host.runner.kv_caches]).cpu()


def leave(host: Host, seq: Sequence, way: str) -> list[BlockMove]:
    """The moves of all blocks of a sequence that left RUNNING."""
    held = seq.block_table
    first = HOST if way == "disk" else 0
    moves = [host.move("out", held, [-1 - first - i for i in range(len(held))])]
    if way == "down":
        moves.append(host.move("down", moves[0].targets, [-1 - HOST - 2 - i for i in range(len(held))]))
    host.free += held  # to be taken first
    seq.block_table = moves[-1].targets
    seq.epoch += 1
    host.released.append(seq.seq_id)
    return moves


def come_back(host: Host, seq: Sequence) -> list[BlockMove]:
    move = host.move("in", seq.block_table, [host.free.pop(0) for _ in seq.block_table])
    seq.block_table = move.targets
    return [move]


@contextmanager
def gate(point: str) -> Iterator[threading.Event]:
    """The worker waits at a point until the event is set."""
    opened = threading.Event()

    def wait() -> None:
        assert opened.wait(60)

    with faults.armed(point, wait):
        try:
            yield opened
        finally:
            opened.set()


def alone(host: Host, prompt: list[int], count: int, seed: int) -> list[int]:
    return host.generate(host.add(prompt, seed=seed, temperature=0.8), count)


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_moves_beside_decode_graphs_change_no_token_and_no_bit(
    swapping: Callable[..., Host], way: str, eager: bool
) -> None:
    host = swapping(enforce_eager=eager)
    gone = host.add(prompt_of(100), seed=1, temperature=0.8)
    others = [host.add(prompt_of(20 + 9 * i, i), seed=2 + i, temperature=0.8) for i in range(2)]
    host.generate(gone, 5)
    host.step(*((seq, len(seq.token_ids)) for seq in others))
    held = kv(host, gone.block_table)
    moves: list[BlockMove] = leave(host, gone, way)
    flying: list[Any] = []
    moved: list[int] = []
    for number in range(90):  # a launch ahead, as an engine on a GPU runs
        if number == 40:
            moves = come_back(host, gone)
        flying.append(host.launch(*((seq, 1) for seq in others), moves=moves))
        moves = []
        if len(flying) > 1:
            moved += [result.move for result in host.collect(flying.pop(0)).moved if not result.error]
    moved += [result.move for result in host.collect(flying.pop(0)).moved if not result.error]
    moved += [result.move for result in host.step().moved if not result.error]
    assert moved == list(range(1, host.moves + 1))
    assert torch.equal(kv(host, gone.block_table), held)
    host.generate(gone, 8)
    fresh = swapping(enforce_eager=eager)
    assert gone.output_token_ids == alone(fresh, prompt_of(100), 13, 1)
    for i, seq in enumerate(others):
        assert seq.output_token_ids == alone(fresh, prompt_of(20 + 9 * i, i), 91, 2 + i)


def test_a_launch_with_moves_waits_for_nothing(swapping: Callable[..., Host]) -> None:
    host = swapping()
    gone, other = host.add(prompt_of(100)), host.add(prompt_of(20, 1))
    host.generate(gone, 2)
    host.generate(other, 2)
    host.step((other, 1), moves=leave(host, gone, "host"))
    host.step()
    moves = [*come_back(host, gone), host.move("out", [60, 61], [-20, -21])]
    torch.cuda._sleep(1 << 31)  # about a second
    slept = torch.cuda.Event()
    slept.record()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        launched = host.launch((other, 1), moves=moves)
        assert not slept.query()
    finally:
        torch.cuda.set_sync_debug_mode(before)
    host.collect(launched)
    assert [result.error for result in host.step().moved][-2:] == ["", ""]


@pytest.mark.parametrize("point", ["disk_write", "disk_read"])
def test_a_step_does_not_wait_for_a_move_that_it_does_not_need(swapping: Callable[..., Host], point: str) -> None:
    host = swapping()
    gone, other = host.add(prompt_of(40)), host.add(prompt_of(20, 1))
    host.generate(gone, 2)
    host.generate(other, 2)
    held = kv(host, gone.block_table)
    out = leave(host, gone, "disk")
    if point == "disk_read":
        host.step(moves=out)
    with gate(point) as opened:
        moves = out if point == "disk_write" else come_back(host, gone)
        for _ in range(30):  # through the blocks that were left
            result = host.step((other, 1), moves=moves)
            moves = []
            assert result.moved == []
        opened.set()
    assert [result.error for result in host.step().moved] == [""]
    if point == "disk_write":
        host.step(moves=come_back(host, gone))
    assert torch.equal(kv(host, gone.block_table), held)


def test_more_blocks_than_staging_holds(swapping: Callable[..., Host], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swap_transfers, "STAGING_BYTES", 1)
    host = swapping(24, 24)
    for keys, values in host.runner.kv_caches:
        keys.normal_()
        values.normal_()
    blocks = list(range(48))
    held = kv(host, blocks)
    slots = [-1 - slot for slot in reversed(blocks)]
    host.step(moves=[host.move("out", blocks, slots)])
    for keys, values in host.runner.kv_caches:
        keys.zero_()
        values.zero_()
    assert host.step(moves=[host.move("in", slots, [block + 16 for block in blocks])]).moved[-1].error == ""
    assert torch.equal(kv(host, [block + 16 for block in blocks]), held)


def test_copies_come_before_the_step(swapping: Callable[..., Host]) -> None:
    host = swapping()
    leader = host.add(prompt_of(40))
    host.generate(leader, 1)
    sibling = host.add(prompt_of(40))
    own = host.free.pop()
    sibling.block_table = [*leader.block_table[:2], own]
    sibling.num_computed_tokens = 39
    host.step((sibling, 1), copies=[(leader.block_table[2], own)])
    assert host.generate(sibling, 10) == host.generate(leader, 10)


def test_host_memory_is_pinned_and_all_of_it_is_given_back(swapping: Callable[..., Host], tmp_path: Path) -> None:
    swapping().runner.close()  # what the first engine leaves in caches is not this test's
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    host = swapping()
    assert host.runner._moves._swap is not None
    memory = host.runner._moves._swap._slots._memory
    assert memory.bytes.is_pinned()
    assert host.runner.swap_ns_per_block > 0
    with gate("disk_write") as opened:
        moves = [host.move("out", [i, i + 1], [-1 - HOST - i, -2 - HOST - i]) for i in range(0, 8, 2)]
        host.launch((host.add([1, 2, 3]), 3), moves=moves)
        threading.Timer(0.1, opened.set).start()
        host.runner.close()
    assert list(tmp_path.iterdir()) == []
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() <= before + (1 << 20)


def test_a_step_that_does_not_fit_is_said_and_the_next_one_runs(swapping: Callable[..., Host]) -> None:
    host = swapping(0, 0)
    seq, same = (host.add(prompt_of(40), seed=3, temperature=0.8, frequency_penalty=0.5) for _ in range(2))
    host.generate(same, 4)

    def fill() -> None:
        torch.empty(1 << 45, dtype=torch.uint8, device="cuda")

    for _ in range(4):
        plan = host.plan((seq, seq.num_tokens - seq.num_computed_tokens))
        with faults.armed("forward", fill), pytest.raises(OutOfDeviceMemory, match="does not fit into the memory"):
            host.runner.launch(plan)
        assert host.runner.is_sound()
        host.collect((plan, host.runner.launch(plan)))
    assert seq.output_token_ids == same.output_token_ids


def test_a_device_that_failed_is_not_sound_and_can_still_be_closed(tmp_path: Path) -> None:
    code = f"""
import torch
from nanolens.engine.config import EngineConfig
from nanolens.engine.runner.load import load
config = EngineConfig(model="dummy:llama-tiny", device="cuda", num_blocks=64, host_blocks=4, disk_blocks=4,
                      swap_path={str(tmp_path / "swap")!r}, enforce_eager=True, max_num_batched_tokens=512)
runner = load(config).runner
print("sound", runner.is_sound())
torch.zeros(2, device="cuda")[torch.tensor([5], device="cuda")]
print("sound", runner.is_sound())
runner.close()
print("closed")
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=200)
    assert done.stdout.split("\n")[:3] == ["sound True", "sound False", "closed"], done.stderr
    assert list(tmp_path.iterdir()) == []
