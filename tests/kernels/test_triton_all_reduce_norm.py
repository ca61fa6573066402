"""The sum over ranks, addition and norm in one kernel, interpreted: one rank runs, what the other shows lies ready."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from poison import poisoned_memory
from triton_interpreter import load_interpreter

load_interpreter()

from nanolens.kernels import triton_all_reduce, triton_all_reduce_norm, triton_norm  # noqa: E402
from nanolens.kernels.triton_all_reduce import MAX_ROWS, ROW_BYTES, Peers, buffer_bytes, rows_offset  # noqa: E402


@pytest.fixture(autouse=True)
def prepared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in (triton_all_reduce, triton_all_reduce_norm):
        monkeypatch.setattr(module, "globaltimer", lambda: 0)  # the interpreter has none
    with poisoned_memory():
        yield


class Pair:
    """Rank `rank` of two, and a peer that is always there first: its flags and rows are written by hand."""

    def __init__(self, rank: int) -> None:
        self.rank, self.other = rank, 1 - rank
        self.buffers = [torch.zeros(buffer_bytes(2), dtype=torch.uint8) for _ in range(2)]
        waited = torch.zeros(1, dtype=torch.int64)
        self.peers = Peers.of([each.data_ptr() for each in self.buffers], rank, waited)

    def flags(self, rank: int) -> Tensor:
        """[size, programs] int32 in a rank's buffer."""
        return self.buffers[rank][: 8 * MAX_ROWS].view(torch.int32).view(2, MAX_ROWS)

    def rows(self, rank: int, turn: int, like: Tensor) -> Tensor:
        """[rows, H], what a rank shows in a turn."""
        places = self.buffers[rank][rows_offset(2) :].view(2, MAX_ROWS, ROW_BYTES)[turn & 1]
        return places.view(like.dtype)[: like.shape[0], : like.shape[1]]

    def show(self, turn: int, theirs: Tensor) -> None:
        self.rows(self.other, turn, theirs).copy_(theirs)
        self.flags(self.rank)[self.other, : theirs.shape[0]] = turn


def composed(own: Tensor, theirs: Tensor, rank: int, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """A sum in the order of the ranks, stored, then the kernel that adds and norms."""
    first, second = (own, theirs) if rank == 0 else (theirs, own)
    summed = (first.float() + second.float()).to(own.dtype)
    return triton_norm.add_rms_norm(summed, residual, weight, 1e-6)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])  # the interpreter cuts off what bfloat16 rounds
@pytest.mark.parametrize("shape", [(1, 16), (3, 576), (2, 1024)])
def test_it_has_the_bits_of_sum_then_addition_and_norm(shape: tuple[int, int], dtype: torch.dtype, rank: int) -> None:
    pair = Pair(rank)
    for turn in (1, 2, 3):
        own, theirs, residual = (torch.randn(shape).to(dtype) for _ in range(3))
        weight, before = torch.randn(shape[1]).to(dtype), own.clone()
        pair.show(turn, theirs)
        found = triton_all_reduce_norm.all_reduce_add_norm(own, residual, weight, 1e-6, pair.peers)
        assert all(map(torch.equal, found, composed(own, theirs, rank, residual, weight)))
        assert torch.equal(own, before) and torch.equal(pair.rows(rank, turn, own), own)
        assert pair.peers.turns[: shape[0]].eq(turn).all() and pair.peers.turns[shape[0] :].eq(0).all()
        assert pair.flags(pair.other)[rank, : shape[0]].eq(turn).all()


def test_the_sum_is_rounded_before_the_stream_is_added() -> None:
    pair, own = Pair(0), torch.full((1, 16), 2048.0, dtype=torch.float16)
    theirs, residual = torch.ones_like(own), torch.ones_like(own)
    pair.show(1, theirs)
    _, total = triton_all_reduce_norm.all_reduce_add_norm(own, residual, torch.ones(16).half(), 1e-6, pair.peers)
    assert total.eq(2048).all()  # 2049 is no float16, 2050 is one


def test_calls_take_turns_with_plain_sums_of_other_sizes() -> None:
    pair, x, weight = Pair(0), torch.randn(2, 64), torch.ones(64)
    for turn in (1, 2, 3, 4):
        if turn % 2:
            pair.show(turn, x[:1])
            _, total = triton_all_reduce_norm.all_reduce_add_norm(x[:1], x[:1], weight, 1e-6, pair.peers)
            torch.testing.assert_close(total, 3 * x[:1])
        else:
            pair.flags(0)[1, 0] = turn
            half = pair.buffers[1][8 * MAX_ROWS : rows_offset(2)].view(2, -1)[turn & 1]
            half.view(torch.float32)[: x.numel()] = x.flatten()
            assert torch.equal(triton_all_reduce.all_reduce(x.clone(), pair.peers), 2 * x)
    assert pair.peers.turns[:2].tolist() == [4, 0]


def test_rows_and_strides_of_a_larger_tensor() -> None:
    pair = Pair(1)
    own, residual = torch.randn(3, 96)[:, 16:80], torch.randn(3, 80)[:, :64]
    theirs, weight = torch.randn(3, 64), torch.randn(64)
    pair.show(1, theirs)
    found = triton_all_reduce_norm.all_reduce_add_norm(own, residual, weight, 1e-6, pair.peers)
    assert all(map(torch.equal, found, composed(own, theirs, 1, residual, weight)))


@pytest.mark.parametrize(
    ("shape", "does"),
    [
        ((1, 16), True), ((MAX_ROWS, 16), True), ((2, 3, 64), True), ((1, ROW_BYTES // 4), True),
        ((0, 16), False), ((1, 24), False), ((MAX_ROWS + 1, 16), False), ((1, ROW_BYTES // 4 + 16), False),
    ],
)  # fmt: skip
def test_what_fits(shape: tuple[int, ...], does: bool) -> None:
    assert triton_all_reduce_norm.fits(torch.empty(shape)) is does
