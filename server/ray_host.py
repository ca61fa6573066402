"""Ray on this machine, for one fleet: in a process with a session of its own, which ends with whoever started it.

A signal to the starter's process group (Ctrl-C, `timeout`) so reaches no process of Ray, which would be gone before the
fleet has drained.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import NanolensError

STORE_BYTES = 100 << 20  # of Ray's object store: answers are small
NODE = "127.0.0.1"
END_S = 10.0  # for Ray to end, before its processes are killed
PREFIX = "nl-ray-"  # short: Ray's sockets lie in it
LOCK = "lock"  # held by the process that made the folder, for as long as it lives

# The package may have been found along a path that only the starter knows.
_PROGRAM = "import sys; sys.path[:] = {path!r}; from {module} import main; main()"


class RayHost:
    """Ray, for as long as the block lasts.

    Raises:
        NanolensError: it did not start; its own messages are on stderr.
    """

    def __init__(self) -> None:
        path = [entry or os.getcwd() for entry in sys.path]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM.format(path=path, module=__name__)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def __enter__(self) -> RayHost:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def address(self) -> str:
        """Wait until it runs: where."""
        answers = self._process.stdout
        line = answers.readline() if answers is not None else b""
        if not line:
            raise NanolensError("Ray did not start; its messages are above")
        return str(json.loads(line)["address"])

    def close(self) -> None:
        """End it, its processes and its folder."""
        for pipe in filter(None, (self._process.stdin, self._process.stdout)):
            with contextlib.suppress(OSError):
                pipe.close()  # the end of its input tells it
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # the kernel ends Ray's with it
            self._process.wait()
            sweep()


def main() -> None:
    """Run Ray until the end of the input, which is the starter's end, too, however it comes."""
    with signals_left_alone(), folder() as place:
        import ray

        ray.init(
            log_to_driver=False, configure_logging=False, include_dashboard=False, object_store_memory=STORE_BYTES,
            _temp_dir=place, _node_ip_address=NODE,
        )  # fmt: skip
        with signals_left_alone():  # Ray has taken them
            try:
                with contextlib.suppress(BrokenPipeError):  # the starter is gone, which its input says, too
                    os.write(sys.stdout.fileno(), _line({"address": ray.get_runtime_context().gcs_address}))
                sys.stdin.buffer.read()
            finally:
                with contextlib.suppress(Exception):  # Ray's own: it may be gone
                    ray.shutdown()


def _line(value: dict[str, str]) -> bytes:
    return (json.dumps(value) + "\n").encode()


@contextlib.contextmanager
def signals_left_alone() -> Iterator[None]:
    """Do nothing on a signal that ends a process. They are not ignored: what Ray starts would inherit that."""

    def nothing(*_: Any) -> None:
        return None

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.signal(number, nothing) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def folder() -> Iterator[str]:
    """A folder for Ray's files, for as long as the block lasts; those of processes that are gone are removed first."""
    sweep()
    place = tempfile.mkdtemp(prefix=PREFIX)
    try:
        with (Path(place) / LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def sweep() -> None:
    """Remove the folders of this user whose process was killed."""
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError), lock.open("r+") as held:  # another user's can't be opened
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its process lives
            shutil.rmtree(lock.parent, ignore_errors=True)
