"""Ray's helper process, with a stand-in for Ray: what it does once its starter is gone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FAKE = """
import os
class _Context:
    gcs_address = "127.0.0.1:1"
def init(**flags): pass
def get_runtime_context():
    return _Context
def shutdown(): open(os.environ["FAKE_RAY_ENDED"], "w").close()
"""
PROGRAM = "import sys; sys.path[:] = {path!r}; from nanolens.server.ray_host import main; main()"


def test_a_starter_that_is_gone_before_ray_runs_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "ray.py").write_text(FAKE)
    ended = tmp_path / "ended"
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", PROGRAM.format(path=[str(tmp_path), *sys.path])],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={"TMPDIR": str(tmp_path), "FAKE_RAY_ENDED": str(ended)},
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    process.stdout.close()
    process.stdin.close()
    said = process.stderr.read().decode()
    process.stderr.close()
    assert (process.wait(), said) == (0, "")
    assert ended.exists()
