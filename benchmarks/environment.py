"""Where a figure was measured: machine, versions, commit, threads. For the JSON file and the first lines printed."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from .. import __version__

PACKAGES = ("torch", "transformers", "numpy", "triton", "flash-attn")
ROOT = Path(__file__).resolve().parents[1]


def environment() -> dict[str, Any]:
    """Everything about the machine and the software that a figure depends on; None for what is not known."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "nanolens": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "gpu": gpu,
        "threads": torch.get_num_threads(),
        "versions": {name: version for name in PACKAGES if (version := package_version(name)) is not None},
    }


def package_version(name: str) -> str | None:
    """Version of an installed package, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def cpu_name() -> str | None:
    """The processor's name as its maker gives it, or None."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or None


def commit() -> str | None:
    """The commit that the code stands at, with "+" where files differ from it; None outside a git clone."""
    if not (ROOT / ".git").exists():
        return None
    command = ["git", "-C", str(ROOT)]
    try:
        head = subprocess.run([*command, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*command, "status", "--porcelain"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")
