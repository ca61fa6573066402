"""A program for tests: one GPU's rank; checks collectives and sampling, then computes a split model's logits.

Usage: gpu_ranks.py RANK SIZE FOLDER. Every rank draws every rank's tensors itself, so that it knows what must come out.
It saves the logits of the models in FOLDER as FOLDER/RANK.pt, and fails at the first wrong bit.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from nanolens.kernels.attention import build_metadata
from nanolens.kernels.sampling import SamplingTensors, sample_checked
from nanolens.kernels.sampling_parts import VocabularyPart, sample_part_checked
from nanolens.models import load_model
from nanolens.models.batch import ForwardBatch
from nanolens.models.collectives import GpuCollectives, join
from nanolens.models.parallel import Shard, join_vocabulary
from one_gpu import share_gpu
from sampling_rows import mixed_params
from split_sampling import columns_of, part_of
from tiny_models import some_ids

SHAPES = ((1, 8), (1, 1024), (1, 4096), (3, 1000), (7, 4097), (64, 4096), (256, 4096), (512, 8192))
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def drawn(shape: tuple[int, ...], dtype: torch.dtype, size: int, seed: int) -> list[Tensor]:
    """Each rank's tensor, the same on all ranks."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return [torch.randn(shape, generator=generator).to("cuda", dtype) for _ in range(size)]


def check_values(collectives: GpuCollectives, shard: Shard) -> None:
    """Sums within rounding and the same bits everywhere; gatherings exact; small and large, one after the other."""
    for turn in range(4):
        for shape in SHAPES:
            for dtype in DTYPES:
                each = drawn(shape, dtype, shard.size, seed=turn)
                if (turn + shard.rank) % 2:
                    time.sleep(0.002)  # now one rank is late, now another
                summed = collectives.all_reduce(each[shard.rank].clone())
                exact = torch.stack(each).double().sum(0)
                bound = 1e-5 if dtype == torch.float32 else 2e-2
                assert ((summed.double() - exact).norm() / exact.norm()).item() < bound, (shape, dtype)
                seen = collectives.all_gather(summed.clone())
                assert all(torch.equal(one, summed) for one in seen), (shape, dtype)
                assert torch.equal(collectives.all_gather(each[shard.rank]), torch.stack(each)), (shape, dtype)


def check_graph(collectives: GpuCollectives, shard: Shard, replays: int) -> None:
    """A captured chain of collectives gives the same at each replay, among calls that are not captured."""
    each = drawn((16, 4096), torch.bfloat16, shard.size, seed=9)
    given, result = each[shard.rank].clone(), torch.empty_like(each[0])

    def chain() -> None:
        x = given.clone()
        for _ in range(20):
            x = collectives.all_reduce(x).mul_(1.0 / shard.size)
        result.copy_(collectives.all_gather(x)[-1])

    chain()
    expected = result.clone()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain()
    before = int(collectives.waited())
    for replay in range(replays):
        result.zero_()
        graph.replay()
        if replay % 50 == 0:
            collectives.all_reduce(torch.ones(5, 8, device="cuda"))
            assert torch.equal(result, expected), replay
    torch.cuda.synchronize()
    assert torch.equal(result, expected)
    assert int(collectives.waited()) > before


def check_sampling(collectives: GpuCollectives, shard: Shard) -> None:
    """Tokens drawn from the ranks' own columns are those drawn from whole rows, in a graph too."""
    for vocab, num_tokens in ((151_936, 151_669), (50_001, 50_001)):
        part = part_of(shard.rank, shard.size, vocab, num_tokens)
        for rows in (1, 256):
            for dtype in (torch.bfloat16, torch.float32):
                params, result = mixed_params(rows, "cuda"), torch.empty(rows, dtype=torch.int64, device="cuda")
                own = columns_of(whole_logits(rows, vocab, dtype, seed=0), part).clone()
                graph = captured(partial(sample_own, own, part, params, collectives, result))
                for seed in range(3):
                    logits = whole_logits(rows, vocab, dtype, seed)
                    own.copy_(columns_of(logits, part))
                    expected = sample_checked(logits[:, :num_tokens], params)
                    graph.replay()
                    assert torch.equal(result, expected), (vocab, rows, dtype, seed)
                    sample_own(own, part, params, collectives, result)
                    assert torch.equal(result, expected), (vocab, rows, dtype, seed)


def whole_logits(rows: int, vocab: int, dtype: torch.dtype, seed: int) -> Tensor:
    """The same on all ranks; of more than three rows one has ties, one NaN near its end, and one forbids all."""
    generator = torch.Generator("cuda").manual_seed(seed)
    logits = (torch.randn(rows, vocab, generator=generator, device="cuda") * 3).to(dtype)
    if rows > 3:
        logits[0] = logits[0].round()
        logits[2, -300] = torch.nan
        logits[3] = -torch.inf
    return logits


def sample_own(
    own: Tensor, part: VocabularyPart, params: SamplingTensors, collectives: GpuCollectives, result: Tensor
) -> None:
    """Tokens by way of the ranks' own columns."""
    result.copy_(sample_part_checked(own, part, params, collectives.all_gather))


def sample_joined(own: Tensor, params: SamplingTensors, collectives: GpuCollectives, out: Tensor) -> None:
    """Tokens by way of all columns on each rank."""
    sample_checked(join_vocabulary(collectives.all_gather(own), out.shape[1], out), params)


def captured(call: Callable[[], object], times: int = 1) -> torch.cuda.CUDAGraph:
    """A graph of a call, after one that compiles what it needs."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            call()
    return graph


def measure(collectives: GpuCollectives, shard: Shard) -> None:
    """Microseconds of sums, ours and NCCL's, and of sampling, in a graph, to stdout; never judged."""
    for rows in (1, 8, 64, 256, 512):
        x = torch.zeros(rows, 4096, dtype=torch.bfloat16, device="cuda")
        for name, call in (("ours", collectives.all_reduce), ("nccl", dist.all_reduce)):
            tell(shard, f"sum of {x.nbytes} B by {name}", partial(call, x))
    vocab = 151_936
    part = part_of(shard.rank, shard.size, vocab, vocab)
    for rows in (1, 64, 256):
        params, result = mixed_params(rows, "cuda"), torch.empty(rows, dtype=torch.int64, device="cuda")
        whole = whole_logits(rows, vocab, torch.bfloat16, seed=0)
        own = columns_of(whole, part).contiguous()
        tell(shard, f"{rows} tokens from joined logits", partial(sample_joined, own, params, collectives, whole))
        tell(shard, f"{rows} tokens from own logits", partial(sample_own, own, part, params, collectives, result))


def tell(shard: Shard, what: str, call: Callable[[], object]) -> None:
    """How long a call takes on the device, from fifty in a graph."""
    graph = captured(call, 50)
    graph.replay()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(10):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    if shard.rank == 0:
        print(f"{what}: {begin.elapsed_time(end) * 2:.2f} us", flush=True)


@torch.inference_mode()
def logits(model: torch.nn.Module, chunk: int) -> Tensor:
    """Of a prompt's positions, `chunk` tokens at a time, [T, V] float32 on the CPU."""
    ids, config, found = some_ids(12), model.config, []
    shape = (4, 16, config.num_kv_heads, config.head_dim)
    caches = [tuple(torch.zeros(shape, device="cuda", dtype=model.dtype) for _ in "kv") for _ in model.layers]
    for start in range(0, len(ids), chunk):
        piece = ids[start : start + chunk]
        positions = torch.arange(start, start + len(piece), device="cuda")
        tables = torch.tensor([[2]], dtype=torch.int32, device="cuda")
        metadata = build_metadata(tables, [len(piece)], [start + len(piece)], 16)
        batch = ForwardBatch(caches, positions + 32, metadata)
        found.append(model.logits(model(torch.tensor(piece, device="cuda"), positions, batch)).float().cpu())
    return torch.cat(found)


def main() -> None:
    """Check, measure, compute, save."""
    shard, folder = Shard(int(sys.argv[1]), int(sys.argv[2])), Path(sys.argv[3])
    is_alone = torch.cuda.device_count() == 1
    device = share_gpu() if is_alone else torch.device("cuda", shard.rank)
    collectives = join(shard, dist.FileStore(str(folder / "store"), shard.size), device, timeout_s=120)
    assert isinstance(collectives, GpuCollectives)
    check_values(collectives, shard)
    check_graph(collectives, shard, replays=100 if is_alone else 500)
    check_sampling(collectives, shard)
    if not is_alone:
        measure(collectives, shard)
    found = {}
    for path in sorted(folder.glob("*/config.json")):
        model = load_model(str(path.parent), "float32", device, shard=shard, collectives=collectives)
        found[path.parent.name] = {chunk: logits(model, chunk) for chunk in (1, 12)}
    torch.save(found, folder / f"{shard.rank}.pt")
    torch.cuda.synchronize()
    collectives.close()


if __name__ == "__main__":
    main()
