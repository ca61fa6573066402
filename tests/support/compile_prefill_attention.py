"""Compile the prefill attention for sm_90 where no GPU is. Fails on spills, or tiles that do not fit.

A script, so that it has a process of its own: one that interprets kernels can't compile them.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from nanolens.kernels.triton_prefill_attention import _prefill_kernel, default_tiles

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
SHARED_MEMORY = 227 * 1024


def compile_for(dtype: str, head_dim: int, page: int, group: int, lanes: int, with_rows: bool) -> tuple[int, int, int]:
    """(bytes of shared memory, registers of a thread, bytes spilled)."""
    block_m, block_n, num_warps, num_stages = default_tiles(head_dim, DTYPES[dtype], lanes)
    constants: dict[str, object] = {
        "NUM_HEADS": 2 * group,
        "NUM_KV_HEADS": 2,
        "HEAD_DIM": head_dim,
        "BLOCK_D": triton.next_power_of_2(head_dim),
        "PAGE": page,
        "PACK": group,
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "PRECISION": "ieee" if dtype == "fp32" else "tf32",
    }
    if not with_rows:
        constants["rows"] = None
    names = _prefill_kernel.arg_names
    aligned = dict.fromkeys(("out", "q", "key_cache", "value_cache"), f"*{dtype}")
    strides = dict.fromkeys(("q_token_stride", "q_head_stride"), "i32")
    others = dict.fromkeys(("block_tables", "rows", "query_start", "context_lens"), "*i32")
    types = {**aligned, **strides, **others, "table_stride": "i32", "scale_log2": "fp32"}
    source = ASTSource(
        fn=_prefill_kernel,
        signature=types | dict.fromkeys(constants, "constexpr"),
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in (*aligned, *strides)},
    )
    options = {"num_warps": num_warps, "num_stages": num_stages}
    built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(built.asm["ptx"])
        file.flush()
        ptxas = str(Path(triton.__file__).parent / "backends/nvidia/bin/ptxas")
        command = [ptxas, "-v", "--gpu-name=sm_90a", file.name, "-o", "/dev/null"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    registers = re.search(r"Used (\d+) registers", said)
    spills = sum(int(count) for count in re.findall(r"(\d+) bytes spill", said))
    return built.metadata.shared, int(registers.group(1)) if registers else 0, spills


def main() -> int:
    cases = [(d, h, 16, 2, lanes, True) for d in DTYPES for h in (64, 80, 96, 128, 256) for lanes in (32, 2048)]
    cases += [("bf16", 128, 256, 2, 2048, False), ("bf16", 128, 24, 7, 2048, True), ("bf16", 64, 64, 1, 2048, True)]
    wrong = 0
    for case in cases:
        shared, registers, spills = compile_for(*case)
        wrong += spills > 0 or shared > SHARED_MEMORY
        print(case, f"{shared} B shared, {registers} registers, {spills} B spilled", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
