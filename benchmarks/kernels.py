"""`nano-bench kernels`: each kernel's time beside its own limit on this machine, torch's form of it, and flash-attn."""

from __future__ import annotations

import argparse
import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidConfig
from .report import table

if TYPE_CHECKING:
    import torch

    from .kernel_shapes import Case

DESCRIPTION = """\
Time every kernel on inputs of Qwen3-0.6B's shape in bfloat16, in replayed CUDA graphs, on a GPU; without one, torch's
operations on small float32 inputs. A limit is the larger of its bytes over the read bandwidth and its arithmetic over
the matrix rate, both measured in the same process. Torch's form is launched by the host, one by one."""


@dataclass(frozen=True)
class Figure:
    """A case, timed.

    Attributes:
        name, shape: of the case.
        microseconds: median.
        num_bytes, flops: of a call.
        share: its limit over its time.
        limited_by: "reads" or "products".
        reference_us: torch's form; None where there is none.
        flash_us: flash-attn's; None where it isn't here or doesn't do this.
    """

    name: str
    shape: str
    microseconds: float
    num_bytes: int
    flops: int
    share: float
    limited_by: str
    reference_us: float | None
    flash_us: float | None


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags."""
    parser.add_argument("--quick", action="store_true", help="fewer and smaller cases, fewer repetitions")
    parser.add_argument(
        "--device", choices=("auto", "cuda", "cpu"), default="auto", help="default: a GPU if there is one"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")


def run(arguments: argparse.Namespace) -> int:
    """Print a line for each kernel as it is timed, then the table; the exit status.

    Raises:
        InvalidConfig: no such device, Triton missing, or a JSON file that can't be written.
    """
    import torch

    from ..engine.runner.load import pick_device
    from .environment import environment

    if arguments.json is not None and not arguments.json.absolute().parent.is_dir():
        raise InvalidConfig(f"json={arguments.json}: its directory does not exist")
    device = torch.device(pick_device(arguments.device, torch.cuda.is_available()))
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    where = environment()
    print(f"{dtype} on {device} ({where['gpu'] if device.type == 'cuda' else where['cpu']})".removeprefix("torch."))
    with torch.inference_mode():
        limits = _limits(device, dtype)
        print(f"limits measured here: {limits[0] / 1e9:,.0f} GB/s read, {limits[1] / 1e12:,.2f} TFLOP/s", flush=True)
        figures = _figures(device, dtype, limits, arguments.quick)
    print(figure_table(figures))
    if arguments.json is not None:
        record = {
            "what": "kernels",
            "dtype": str(dtype).removeprefix("torch."),
            "device": str(device),
            "read_bytes_per_s": limits[0],
            "flops_per_s": limits[1],
            "figures": [dataclasses.asdict(figure) for figure in figures],
            "environment": where,
        }
        _write(arguments.json, record)
    return 0


def _limits(device: torch.device, dtype: torch.dtype) -> tuple[float, float]:
    """(bytes a second of reading, floating-point operations a second of a matrix product)."""
    from .floor import matmul_rate, read_bandwidth

    return read_bandwidth(device), matmul_rate(dtype, device)


def _figures(device: torch.device, dtype: torch.dtype, limits: tuple[float, float], quick: bool) -> list[Figure]:
    import torch

    from .environment import package_version
    from .kernel_cases import CaseMaker
    from .kernel_shapes import FULL, QUICK, SMALL, SMALL_QUICK

    on_gpu = device.type == "cuda"
    scale = (QUICK if quick else FULL) if on_gpu else (SMALL_QUICK if quick else SMALL)
    torch.manual_seed(0)
    with_flash = on_gpu and package_version("flash-attn") is not None
    figures = []
    for case in CaseMaker(scale, device, dtype, with_flash).all():
        figures.append(time_case(case, device, limits, replays=7 if quick else 20))
        if on_gpu:
            torch.cuda.empty_cache()
    return figures


def time_case(case: Case, device: torch.device, limits: tuple[float, float], replays: int) -> Figure:
    """Time a case, and what it is compared with.

    Args:
        case: made on `device`.
        device: where.
        limits: bytes and floating-point operations a second.
        replays: of the kernel's own figure.
    """
    from .timing import call_microseconds, eager_microseconds

    own = call_microseconds(case.calls, device, replays)
    reading, computing = case.num_bytes / limits[0], case.flops / limits[1]
    return Figure(
        name=case.name,
        shape=case.shape,
        microseconds=own,
        num_bytes=case.num_bytes,
        flops=case.flops,
        share=max(reading, computing) * 1e6 / own,
        limited_by="reads" if reading >= computing else "products",
        reference_us=eager_microseconds(case.reference[:4], device) if case.reference else None,
        flash_us=call_microseconds(case.flash, device, replays) if case.flash else None,
    )


def figure_table(figures: list[Figure]) -> str:
    """One line a kernel."""
    head = ["kernel", "shape", "us", "MB", "GFLOP", "of its limit", "by", "torch us", "x torch", "flash us", "x flash"]
    return table(head, [_cells(figure) for figure in figures])


def _cells(figure: Figure) -> list[str]:
    own = figure.microseconds

    def against(other: float | None) -> list[str]:
        return ["-", "-"] if other is None else [f"{other:,.1f}", f"{other / own:,.2f}"]

    return [
        figure.name,
        figure.shape,
        f"{own:,.2f}",
        f"{figure.num_bytes / 1e6:,.2f}",
        f"{figure.flops / 1e9:,.2f}" if figure.flops else "-",
        f"{figure.share:.1%}",
        figure.limited_by,
        *against(figure.reference_us),
        *against(figure.flash_us),
    ]


def _write(path: Path, record: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise InvalidConfig(f"json={path}: can't be written: {error}") from error
