"""The prefill attention compiles for sm_90 without a GPU, for every dtype and head size, and keeps to its registers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_launchers_tiles_compile_for_hopper_fit_and_spill_nothing(tmp_path: Path) -> None:
    pytest.importorskip("triton.backends.nvidia", reason="needs triton, which is not here")
    script = Path(__file__).resolve().parents[1] / "support" / "compile_prefill_attention.py"
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-P", str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
