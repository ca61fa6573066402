"""Compile kernels for sm_90 where no GPU is. Run as a script: prints a line a kernel, and fails on spills.

A process of its own, since one that interprets kernels can't compile them.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from nanolens.kernels import triton_activation, triton_all_reduce, triton_linear, triton_norm, triton_qkv

POINTERS = {"positions_ptr": "*i64", "slots_ptr": "*i64", "cos_sin_ptr": "*fp32"}
POINTERS |= {"addresses_ptr": "*i64", "turns_ptr": "*i32", "waited_ptr": "*i64"}


def compile_kernel(kernel: Any, dtype: str, num_warps: int, **constants: int | bool) -> str:
    """What ptxas says of registers and spills; pointers and strides are taken as multiples of 16."""
    names = kernel.arg_names
    signature = {}
    for name in names:
        plain = "fp32" if name == "eps" else POINTERS.get(name, f"*{dtype}") if name.endswith("_ptr") else "i32"
        signature[name] = "constexpr" if name in constants else plain
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(names)
        if signature[name].startswith("*") or name.endswith("stride")
    }
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs=aligned,
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": num_warps})
    ptxas = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(compiled.asm["ptx"])
        file.flush()
        command = [str(ptxas), "-v", "--gpu-name=sm_90a", file.name, "-o", "/dev/null"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr


def variants() -> Iterator[tuple[Any, str, int, dict[str, int | bool]]]:
    """Kernel, dtype, warps and constants of what is launched, at the widest tiles."""
    yield triton_all_reduce._stamp, "bf16", 1, {"SIGN": 1}
    offers = {"SIZE": 2, "LANES": 2, "BLOCK": 512, "PROGRAMS": 1024, "CAPACITY": 1 << 22, "SUM": False}
    yield triton_all_reduce._exchange, "i64", 4, offers
    for dtype, lanes in (("bf16", 8), ("fp16", 8), ("fp32", 4)):
        for size, tokens in ((2, 2), (3, 4), (8, 8)):
            shape = {"SIZE": size, "LANES": tokens, "BLOCK": 256 * lanes, "PROGRAMS": 1024, "CAPACITY": 1 << 22}
            for is_sum in (True, False):
                yield triton_all_reduce._exchange, dtype, 4, shape | {"SUM": is_sum}
        for block in (1024, 8192):
            constants = {"ADD": True, "BLOCK": block, "EARLY": True}
            yield triton_norm._norm, dtype, triton_norm.warps_for(block), constants
        yield triton_activation._silu_and_mul, dtype, 4, {"BLOCK": 1024, "EARLY": True}
        for head_dim, half_block in ((64, 32), (80, 64), (96, 64), (128, 64), (256, 128)):
            shape = {"HQ": 16, "HKV": 8, "D": head_dim, "EARLY": True}
            norms = {"Q_NORM": True, "K_NORM": True, "HEADS": 16, "HALF_BLOCK": half_block}
            yield triton_qkv._split_norm_rope_store, dtype, 4, shape | norms
            shape.pop("HQ")
            yield triton_qkv._store_kv, dtype, 4, shape | {"HEADS": 8, "D_BLOCK": 2 * half_block}
        for size in (1024, 3072, 4096, 14336):
            for form in ("NORM", "GATED", "RESIDUAL"):
                gated = form == "GATED"
                flags = {"NORM": form != "RESIDUAL", "GATED": gated, "RESIDUAL": form == "RESIDUAL", "BIAS": True}
                tiles = min(size // (128 * lanes), 2 if gated else 4)
                tile = {"K": size, "TOKENS": 4, "ROWS": 4, "TILE": 128 * lanes, "TILES": tiles, "LANES": lanes}
                yield triton_linear._few_rows, dtype, 4, flags | tile | {"EARLY": True}


def main() -> int:
    spilled = 0
    for kernel, dtype, num_warps, constants in variants():
        said = compile_kernel(kernel, dtype, num_warps, **constants)
        registers = re.search(r"Used (\d+) registers", said)
        spills = sum(int(count) for count in re.findall(r"(\d+) bytes spill", said))
        spilled += spills
        print(f"{kernel.__name__} {dtype} {registers.group(1) if registers else '?'} registers, {spills} B", constants)
    return 1 if spilled else 0


if __name__ == "__main__":
    sys.exit(main())
