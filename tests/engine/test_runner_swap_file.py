"""The swap file: bounded, one engine's alone, never over another's file, gone at the end."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from nanolens.engine.runner import host_memory
from nanolens.engine.runner.host_memory import HostMemory
from nanolens.engine.runner.swap_file import SwapFile
from nanolens.errors import InvalidConfig
from runner_host import Host


def block(value: int, size: int = 64) -> memoryview:
    return memoryview(bytes([value]) * size)


def test_slots_keep_what_was_written_and_the_file_grows_no_further_than_they_need(tmp_path: Path) -> None:
    file = SwapFile(str(tmp_path / "swap"), 4, 64)
    assert file.size() == 0
    file.write(1, block(7))
    assert file.size() == 128
    for slot in (3, 0, 1):
        file.write(slot, block(slot))
    assert file.size() == 4 * 64
    into = bytearray(64)
    for slot in (0, 1, 3):
        file.read(slot, memoryview(into))
        assert into == block(slot)
    with pytest.raises(OSError, match="slot 4 is not in the swap file of 4 slots"):
        file.write(4, block(1))
    assert file.size() == 4 * 64
    file.close()


def test_a_short_read_is_an_error(tmp_path: Path) -> None:
    file = SwapFile(str(tmp_path / "swap"), 4, 64)
    file.write(0, block(1))
    with pytest.raises(OSError, match="short read: 0 of 64 bytes of slot 2"):
        file.read(2, memoryview(bytearray(64)))
    os.ftruncate(file._data.fileno(), 40)
    with pytest.raises(OSError, match="short read: 40 of 64 bytes of slot 0"):
        file.read(0, memoryview(bytearray(64)))
    file.close()


def test_writes_in_pieces_are_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = SwapFile(str(tmp_path / "swap"), 2, 64)
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: write(fd, data[:5], at))
    file.write(1, memoryview(bytes(range(64))))
    monkeypatch.undo()
    into = bytearray(64)
    file.read(1, memoryview(into))
    assert into == bytes(range(64))
    file.close()


def test_two_engines_do_not_share_a_path(tmp_path: Path) -> None:
    path = tmp_path / "swap"
    first = SwapFile(str(path), 1, 64)
    with pytest.raises(InvalidConfig, match=r"swap_path='.*swap': another engine uses it"):
        SwapFile(str(path), 1, 64)
    first.close()
    assert not path.exists()
    SwapFile(str(path), 1, 64).close()
    assert list(tmp_path.iterdir()) == []


def test_what_lies_at_the_path_already_is_left_alone(tmp_path: Path) -> None:
    mine, folder, pipe = tmp_path / "mine", tmp_path / "folder", tmp_path / "pipe"
    mine.write_text("precious")
    folder.mkdir()
    os.mkfifo(pipe)
    for path, message in ((mine, "another file lies there"), (folder, "directory"), (pipe, "no plain file")):
        with pytest.raises(InvalidConfig, match=message):
            SwapFile(str(path), 1, 64)
    assert mine.read_text() == "precious"
    assert sorted(tmp_path.iterdir()) == [folder, mine, pipe]


@pytest.mark.parametrize("path", ["nowhere/swap", "file/swap"])
def test_a_directory_that_does_not_exist_is_said(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidConfig, match=r"swap_path=.*no file can be made there: "):
        SwapFile(str(tmp_path / path), 1, 64)


def test_a_swap_file_that_is_dropped_is_removed(tmp_path: Path) -> None:
    file = SwapFile(str(tmp_path / "swap"), 1, 64)
    del file
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_engine_left_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "swap"
    code = (
        "import sys, time; from nanolens.engine.runner.swap_file import SwapFile; "
        "f = SwapFile(sys.argv[1], 4, 1 << 20); f.write(3, memoryview(bytes(1 << 20))); print('ready', flush=True); "
        "time.sleep(60)"
    )
    command = [sys.executable, "-P", "-c", code, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        with pytest.raises(InvalidConfig, match="another engine uses it"):
            SwapFile(str(path), 1, 64)
        process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while sum(entry.stat().st_size for entry in tmp_path.iterdir()) > 1000 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [entry.name for entry in tmp_path.iterdir()] == ["swap"]
    assert path.stat().st_size < 1000  # the data went with its process
    SwapFile(str(path), 1, 64).close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host_blocks": 1 << 30}, r"host_blocks=1073741824: needs \d+ MiB of main memory, \d+ MiB are free"),
        ({"disk_blocks": 1, "swap_path": "nowhere/at/all"}, "swap_path='.*nowhere/at/all': no file can be made there"),
    ],
)
def test_a_runner_without_its_swap_space_does_not_start(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        Host(**options)


def test_memory_that_cannot_be_mapped_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "available_memory", lambda: 1 << 62)
    with pytest.raises(InvalidConfig, match=r"host_blocks=1: \d+ MiB of main memory can't be had"):
        HostMemory(1 << 60, torch.device("cpu"), "host_blocks=1")
