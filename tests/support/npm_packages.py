"""Packages of npm that tests need, at exact versions."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn


def installed(packages: Sequence[str], npm: str, lacks: Callable[[str], NoReturn]) -> Path:
    """The folder of npm packages, named with their versions; in the user's cache, installed once.

    `npm` is the program; `lacks` ends the test where it can't get them.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nanolens"
    final = cache / "-".join(["npm", *(package.replace("/", "-").replace("@", "") for package in packages)])
    if not final.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(dir=cache))
        try:
            flags = ["--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1", "--prefix", str(making)]
            command = [npm, "install", *flags, *packages]
            done = subprocess.run(command, capture_output=True, text=True, timeout=180, cwd=making)
            if done.returncode:
                lacks(f"npm packages {', '.join(packages)} (npm says {done.stderr.strip()[-300:]})")
            try:
                making.rename(final)
            except OSError:
                assert final.is_dir()  # another run was faster
        finally:
            shutil.rmtree(making, ignore_errors=True)
    return final
