"""A journal that can't be written never touches generation: what is lost is counted, and told once."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from nanolens.engine.llm import LLM
from nanolens.inspector.trace_cli import main as nano_trace
from nanolens.telemetry.events import JournalDropped
from nanolens.telemetry.reader import JournalReader
from real_engine import greedy, ids_of, is_idle, prompt_of, tiny_llm

PROMPTS = [prompt_of(5 + i, i) for i in range(6)]
PARAMS = greedy(24)


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    """Tokens of a run without a journal."""
    with tiny_llm() as llm:
        return ids_of(llm.generate(PROMPTS, PARAMS, use_tqdm=False))


def lost(llm: LLM) -> int:
    return llm.engine.core.recorder.totals.counts["dropped_events"]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def run(llm: LLM, expected: list[list[int]]) -> None:
    assert ids_of(llm.generate(PROMPTS, PARAMS, use_tqdm=False)) == expected
    assert is_idle(llm.engine.snapshot())


def test_a_directory_that_cannot_be_made(
    tmp_path: Path, expected: list[list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    with tiny_llm(journal=str(tmp_path / "file" / "journal")) as llm:
        run(llm, expected)
        run(llm, expected)
        assert lost(llm) > 100
    told = warnings(caplog)
    assert len(told) == 1
    assert "Not a directory" in told[0]
    assert "events are lost until it can be written again, generation goes on" in told[0]


def test_a_file_in_the_place_of_the_directory(
    tmp_path: Path, expected: list[list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "journal").write_text("in the way")
    with tiny_llm(journal=str(tmp_path / "journal")) as llm:
        run(llm, expected)
        assert lost(llm) > 0
    assert len(warnings(caplog)) == 1
    assert (tmp_path / "journal").read_text() == "in the way"


def test_a_directory_that_is_removed_while_the_engine_runs(
    tmp_path: Path, expected: list[list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    journal = tmp_path / "journal"
    with tiny_llm(journal=str(journal)) as llm:
        run(llm, expected)
        assert lost(llm) == 0
        shutil.rmtree(journal)
        run(llm, expected)
    assert lost(llm) > 0  # seen at the latest when the journal is closed
    assert len(warnings(caplog)) == 1


FULL_DISK = """
    import json, logging, resource, sys
    from nanolens.engine.llm import LLM
    from nanolens.engine.sampling_params import SamplingParams

    told = []
    class Count(logging.Handler):
        def emit(self, record):
            told.append(record.getMessage())
    logging.getLogger("nanolens").addHandler(Count(logging.WARNING))

    prompts, journal, limit = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    llm = LLM("dummy:llama-tiny", device="cpu", num_blocks=64, block_size=4, audit=True, journal=journal)
    if limit:  # Python ignores SIGXFSZ: a write beyond the limit is an OSError, as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    ids = [output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)]
    counts = llm.engine.core.recorder.totals.counts
    print(json.dumps({"ids": ids, "dropped": counts["dropped_events"], "told": told}))
    sys.stdout.flush()
    llm.close()
"""


def run_on_full_disk(journal: Path, limit: int, expected: list[list[int]]) -> int:
    """Run a child whose disk is full; events that it lost. Its tokens are right and it warned once."""
    command = [sys.executable, "-P", "-c", textwrap.dedent(FULL_DISK), json.dumps(PROMPTS), str(journal), str(limit)]
    done = subprocess.run(
        command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["ids"] == expected
    assert len(found["told"]) == 1
    assert "generation goes on" in found["told"][0]
    dropped: int = found["dropped"]
    return dropped


def is_readable(journal: Path) -> None:
    """What was written before the disk was full reads back and adds up."""
    assert sum(len(frame.events) for frame in JournalReader(journal).frames()) > 1
    assert nano_trace(["check", str(journal)]) == 0


def test_a_limit_on_the_files_size(tmp_path: Path, expected: list[list[int]]) -> None:
    assert run_on_full_disk(tmp_path, 4000, expected) > 0
    is_readable(tmp_path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small tmpfs needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk(small_disk: Path, expected: list[list[int]]) -> None:
    assert run_on_full_disk(small_disk / "journal", 0, expected) > 0
    is_readable(small_disk / "journal")


def test_writing_goes_on_when_it_can_be_written_again(
    tmp_path: Path, expected: list[list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    blocker = tmp_path / "journal"
    blocker.write_text("in the way")
    with tiny_llm(journal=str(tmp_path / "journal")) as llm:
        run(llm, expected)
        missed = lost(llm)
        assert missed > 0
        blocker.unlink()
        while not blocker.is_dir():  # the writer tries again after a second
            run(llm, expected)
        run(llm, expected)
        missed = lost(llm)
    events = [event for frame in JournalReader(tmp_path / "journal").frames() for event in frame.events]
    dropped = [event for event in events if isinstance(event, JournalDropped)]
    assert dropped[0] is events[0]
    assert [event.events for event in dropped] == [missed]
    assert nano_trace(["check", str(tmp_path / "journal")]) == 0
    assert len(warnings(caplog)) == 1
