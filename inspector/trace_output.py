"""The standard output of nano-trace where it fails: closed before the start, full, or left by its reader."""

from __future__ import annotations

import errno
import io
import os
import sys


class ClosedOutput(io.TextIOBase):
    """Stands in for an output that was closed before the program began."""

    def write(self, text: str, /) -> int:
        """Errors: OSError, always."""
        raise OSError(errno.EBADF, "it is closed")


def silence_output() -> None:
    """Keep the interpreter from flushing, at its end, what can't be written."""
    if not isinstance(sys.stdout, ClosedOutput):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
