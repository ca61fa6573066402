"""The files 0, 1 and 2 of a process that was started without them. Knows nothing of what is opened afterwards."""

from __future__ import annotations

import os


def open_standard_files() -> None:
    """Open the null device as each standard file that is not open, here and for the programs that this one starts.

    Whatever else got such a number would take what a library writes to stderr: a journal, a pipe of a rank, a socket.
    So this comes before anything that stays open, in every process that an engine or a server begins in.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
