"""Processes that were started without standard files: no journal, pipe or socket gets the numbers of those."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nanolens.inspector.trace_cli import main as nano_trace

OPENED = """
def opened(pid="self"):
    return [os.path.realpath(f"/proc/{pid}/fd/{fd}") for fd in range(3)]
"""
LLM_PROGRAM = f"""
import ctypes, os, sys
from nanolens import LLM, SamplingParams
{OPENED}
journal, told, closed, size, exports = sys.argv[1:]
if __name__ == "__main__":
    llm = LLM(
        "dummy:llama-tiny", journal=journal, num_blocks=64, device="cpu", tensor_parallel_size=int(size),
        metrics_port=0 if exports == "True" else None,
    )
    for fd in map(int, closed):
        os.write(fd, b"said by a library")
    llm.generate([[5, 6, 7]], SamplingParams(max_tokens=4), use_tqdm=False)
    found = opened()
    llm.close()
    open(told, "w").write("\\n".join(found))
"""
CORE_PROGRAM = f"""
import asyncio, os, sys
from fake_core import FakeAsyncEngine
{OPENED}
journal, told, closed = sys.argv[1:]

async def look():
    async with FakeAsyncEngine(journal=journal) as engine:
        await engine.complete([1, 2, 3])
        found = opened(engine.pid)
    open(told, "w").write("\\n".join(found))

if __name__ == "__main__":
    asyncio.run(look())
"""
LINK_PROGRAM = f"""
import os, sys
from fake_core import sleep_long
from nanolens.engine.core_link import CoreLink
{OPENED}
journal, told, closed = sys.argv[1:]
if __name__ == "__main__":
    link = CoreLink(sleep_long, print, print)
    open(told, "w").write("\\n".join(opened()))
    link.kill()
"""
SERVER_PROGRAM = f"""
import os, sys
from nanolens.server import cli
{OPENED}
journal, told, closed = sys.argv[1:]

def look(settings, keys):
    open(told, "w").write("\\n".join(opened()))
    return True

cli._run = look
sys.exit(cli.main(["dummy:llama-tiny", "--journal", journal]))
"""


def run_without(closed: str, program: str, folder: Path, *arguments: object) -> list[str]:
    """Run a program in which the files of these numbers are not open; what they are once it has started."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    script, told = folder / "program.py", folder / "told"
    script.write_text(program)
    subprocess.run(
        [sys.executable, "-P", str(script), str(folder / "journal"), str(told), closed, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}, timeout=120, check=True,
        preexec_fn=lambda: [os.close(int(fd)) for fd in closed],
    )  # fmt: skip
    found = told.read_text().splitlines()
    return [found[int(fd)] for fd in closed]


@pytest.mark.parametrize("closed", ["2", "012"])
def test_what_is_said_on_stderr_that_was_not_open_does_not_reach_the_journal(closed: str, tmp_path: Path) -> None:
    assert set(run_without(closed, LLM_PROGRAM, tmp_path, 1, False)) == {os.devnull}
    assert nano_trace(["check", str(tmp_path / "journal")]) == 0


def test_ranks_start_beside_an_exporter_without_stdout_and_stderr(tmp_path: Path) -> None:
    assert set(run_without("12", LLM_PROGRAM, tmp_path, 2, True)) == {os.devnull}
    assert nano_trace(["check", str(tmp_path / "journal")]) == 0


def test_an_engines_process_gets_standard_files_where_its_parent_has_none(tmp_path: Path) -> None:
    found = run_without("012", CORE_PROGRAM, tmp_path)
    assert not [name for name in found if name.startswith(str(tmp_path)) or "socket:" in name]
    assert nano_trace(["check", str(tmp_path / "journal")]) == 0


def test_the_pipe_to_an_engines_process_gets_no_number_of_a_standard_file(tmp_path: Path) -> None:
    assert set(run_without("012", LINK_PROGRAM, tmp_path)) == {os.devnull}


def test_a_server_opens_its_standard_files_before_anything_else(tmp_path: Path) -> None:
    assert set(run_without("012", SERVER_PROGRAM, tmp_path)) == {os.devnull}
