"""Files that nano-trace writes: never a journal's, devices and pipes as they are, others whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import threading
from pathlib import Path

import pytest

from journals import busy_engine
from nanolens.errors import InvalidConfig
from nanolens.inspector.out_file import writing
from nanolens.inspector.trace_cli import main

WAYS = [["export", "--perfetto"], ["export", "--csv"], ["top", "--csv"], ["export", "--once", "--file"]]


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("journal")
    busy_engine(path).core.close()
    return path


def write(way: list[str], journal: Path, target: Path) -> int:
    command, *flags = way
    return main([command, str(journal), *flags, str(target)])


@pytest.mark.parametrize("way", WAYS, ids=" ".join)
def test_a_journals_segment_is_refused(
    way: list[str], journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(journal, tmp_path / "j")
    segment = next(copy.glob("*.journal"))
    other_name = tmp_path / "copied"
    shutil.copy(segment, other_name)
    link = tmp_path / "link"
    link.symlink_to(segment)
    before = segment.read_bytes()
    for target in (segment, other_name, link, copy / "test-000099.journal"):
        assert write(way, copy, target) == 2
        error = capsys.readouterr().err
        assert f"{target}: is a segment of a journal" in error and error.count("\n") == 1
    assert segment.read_bytes() == other_name.read_bytes() == before
    assert not (copy / "test-000099.journal").exists()


@pytest.mark.parametrize("way", WAYS[:3], ids=" ".join)
def test_a_pipe_stays_one_and_gets_all(way: list[str], journal: Path, tmp_path: Path) -> None:
    assert write(way, journal, tmp_path / "plain") == 0
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()), daemon=True)
    reader.start()
    assert write(way, journal, pipe) == 0
    reader.join(30)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert got == [(tmp_path / "plain").read_bytes()]


@pytest.mark.parametrize("way", WAYS[:3], ids=" ".join)
def test_a_link_stays_one_and_what_it_leads_to_is_written(way: list[str], journal: Path, tmp_path: Path) -> None:
    assert write(way, journal, tmp_path / "plain") == 0
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    assert write(way, journal, link) == 0
    assert link.is_symlink()
    assert target.read_bytes() == (tmp_path / "plain").read_bytes()
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


@pytest.mark.skipif(os.geteuid() != 0, reason="making a device takes root")
def test_a_device_stays_one(journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full = tmp_path / "full"
    try:
        os.mknod(full, 0o666 | stat.S_IFCHR, os.makedev(1, 7))
        full.open("wb").close()
    except OSError:
        pytest.skip("devices can't be made or opened here")
    assert main(["export", str(journal), "--perfetto", str(full)]) == 2
    assert f"{full}: can't be written (No space left on device)" in capsys.readouterr().err
    assert stat.S_ISCHR(full.stat().st_mode)


def test_with_an_error_the_file_stays_as_it_was(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.write_text("old")
    with contextlib.suppress(ZeroDivisionError), writing(target, "--csv") as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert target.read_text() == "old" and list(tmp_path.iterdir()) == [target]


def test_what_cannot_be_written_is_named_once(tmp_path: Path) -> None:
    for target, why in ((tmp_path / "no" / "a.svg", "can't be written (No such file or directory)"),
                        (tmp_path, "is a directory; give a file")):  # fmt: skip
        with pytest.raises(InvalidConfig) as caught, writing(target, "--plot"):
            pass
        assert str(caught.value) in (f"--plot {target}: {why}")
