"""An engine's process as its parent sees it: started, written to, read from, and how it ended. Knows no engine."""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection

from .messages import Close, Gone, Report, decode_report, encode_command
from .outbox import Outbox
from .standard_files import open_standard_files

LOOK_S = 1.0  # between two looks at whether the process lives; a copy of its end of the pipe may outlive it
EXIT_S = 30.0  # for the process to end after its pipe did, or when the program ends

logger = logging.getLogger("nanolens.engine")


class CoreLink:
    """A process that runs `target(connection)`, and the pipe to it.

    Two threads belong to it: one writes what `send` was given, one reads and waits for the process's end. When the
    program ends without `hang_up`, the process is asked to end then.

    Args:
        target: a module's function that takes the other end of the pipe.
        on_report: called with each message, in the reading thread.
        on_end: called last, in the reading thread, with why the process ended; it has been waited for.

    Attributes:
        pid: of the process.
        ended: set before `on_end` is called.
    """

    def __init__(
        self,
        target: Callable[[Connection], None],
        on_report: Callable[[Report], None],
        on_end: Callable[[str], None],
    ) -> None:
        self._on_report = on_report
        self._on_end = on_end
        self._owner = os.getpid()
        self._last_words = ""
        self.ended = threading.Event()
        open_standard_files()
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=target, args=(theirs,), name="nanolens-core")
        self._spawn()
        theirs.close()
        self.pid = self._process.pid or 0
        self._outbox = Outbox(self._connection)
        threading.Thread(target=self._read, name="nanolens-link", daemon=True).start()
        atexit.register(self._at_exit)  # runs before multiprocessing waits for its children

    def send(self, message: bytes) -> None:
        """Write a message. Never waits; any thread."""
        self._outbox.put(message)

    def hang_up(self) -> None:
        """Ask the process to end in order."""
        self.send(encode_command(0, Close()))

    def kill(self) -> None:
        """End the process at once."""
        if not self.ended.is_set():
            self._process.kill()

    def _spawn(self) -> None:
        """Start the process with SIGINT blocked, until it ignores it: a Ctrl-C is the parent's alone."""
        resource_tracker.ensure_running()  # starting it unblocks SIGINT
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _read(self) -> None:
        try:
            while self._has_more():
                report = decode_report(self._connection.recv_bytes())
                if isinstance(report, Gone):
                    self._last_words = report.reason
                else:
                    self._on_report(report)
        except (EOFError, OSError):
            pass  # its end of the pipe is closed
        except Exception:
            logger.exception("the engine process %d is killed, for its messages can't be taken", self.pid)
            self._process.kill()
        how = self._wait()
        if self._outbox.close(LOOK_S):  # it can only be stuck where a copy of the other end outlives the process
            self._connection.close()
        atexit.unregister(self._at_exit)
        self.ended.set()
        self._on_end(self._last_words or f"the engine process {self.pid} {how}")

    def _has_more(self) -> bool:
        """Wait for a message; False when the process has ended without closing its pipe."""
        while not self._connection.poll(LOOK_S):
            if self._process.exitcode is not None:
                return self._connection.poll()
        return True

    def _wait(self) -> str:
        """Wait for the process, which has closed its pipe: how it ended."""
        self._process.join(EXIT_S)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        code = self._process.exitcode or 0
        self._process.close()
        return how_it_ended(code)

    def _at_exit(self) -> None:
        if os.getpid() != self._owner:
            return  # a fork of the program: the process is not its child
        self.hang_up()
        if not self.ended.wait(EXIT_S):
            self.kill()
            self.ended.wait(EXIT_S)


def how_it_ended(code: int) -> str:
    """An exit code as multiprocessing gives it, in words."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by signal {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
