"""The sampling kernels compile for compute capability 9.0, in a process of its own: this one may interpret."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import triton
from triton.backends.compiler import GPUTarget
from nanolens.kernels import triton_penalties as penalties, triton_sampling as plain, triton_sampling_filters as filters
from nanolens.kernels import triton_sampling_parts as parts

def build(kernel, signature, constants, warps):
    signature = {**signature, **dict.fromkeys(constants, "constexpr")}
    source = triton.compiler.ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs={})
    built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    assert built.metadata.shared <= 32 * 1024, (kernel, built.metadata.shared)

rows = dict(temperatures="*fp32", seeds="*i64", positions="*i64")
chunks = dict(chunk_best="*fp32", chunk_bound="*fp32")
for logits in ("*fp32", "*bf16", "*fp16"):
    matrix = dict(logits=logits, stride="i64")
    for random in (False, True):
        passes = {**matrix, **rows, **chunks}
        for first in (0, 75_968, 37_985):
            own = dict(RANDOM=random, GROUPS=512, FIRST=first)
            build(plain._bound_chunks, {**passes, "vocab": "i32"}, own, 4)
        passes |= dict(row_best="*fp32", sampled="*i64", vocab="i32", chunks="i32")
        build(plain._race_best_chunks, passes, dict(FALLBACK=-1, RANDOM=random, WIDTH=128, GROUPS=512), 4)
        for first, size in ((0, 2), (75_968, 2), (37_985, 4)):
            own = dict(RANDOM=random, GROUPS=512, FIRST=first)
            race = {**matrix, **rows, **dict(all_best="*fp32", chunk_bound="*fp32", offers="*i64")}
            race |= dict.fromkeys(("columns", "chunks", "rows", "rank"), "i32")
            build(parts._race_part, race, {**own, "SIZE": size, "WIDTH": 64}, 4)
    columns = dict(row_best="*fp32", top_ks="*i64", top_ps="*fp32", min_ps="*fp32", sampled="*i64")
    build(filters._filter_rows, {**matrix, **rows, **columns}, dict(VOCAB=151_937, TILE=2048), 16)
    counts = dict(slots="*i64", prompt_mask="*i1", mask_stride="i64", output_counts="*i32", counts_stride="i64")
    factors = dict(presences="*fp32", frequencies="*fp32", repetitions="*fp32", vocab="i32")
    build(penalties._penalise, {**matrix, **counts, **factors}, dict(HAS_SLOTS=True, BLOCK=2048), 4)
    pairs = dict(rows="*i64", token_ids="*i64", size="i32")
    build(penalties._forbid_at, {**matrix, **pairs}, dict(BLOCK=128), 1)
build(parts._take_best_offers, dict(offers="*i64", sampled="*i64", rows="i32"), dict(SIZE=4, BLOCK=128), 4)
pairs = dict(logits="*fp32", stride="i64", rows="*i64", token_ids="*i64", values="*fp32", size="i32")
build(penalties._add_at, pairs, dict(BLOCK=128), 1)
pairs = dict(output_counts="*i32", stride="i64", slots="*i64", token_ids="*i64", size="i32")
build(penalties._count, pairs, dict(BLOCK=128), 1)
"""


@pytest.mark.slow
def test_every_sampling_kernel_compiles_for_sm_90(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="needs triton, which is not here")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
