"""The standard output where printing to it fails: closed before the start, full, left by its reader, or not UTF-8."""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys


class ClosedOutput(io.TextIOBase):
    """Stands in for an output that was closed before the program began."""

    def write(self, text: str, /) -> int:
        """Errors: OSError, always."""
        raise OSError(errno.EBADF, "it is closed")


def replace_unknown() -> None:
    """Print what the output's encoding does not have in its place: bars as `#` and `|`, other characters as `?`."""
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper) and out.errors in ("strict", "surrogateescape"):
        out.reconfigure(errors=_PLAIN)


def _plain(error: UnicodeError) -> tuple[str, int]:
    """The handler of characters that can't be encoded, each by one that all encodings have."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_IN_ASCII)
    return "".join(c if c.isascii() else "?" for c in text), error.end


_PLAIN = "nanolens.plain"
_IN_ASCII = str.maketrans("█▉▊▋▌▍▎▏…µ·", "#####|||.u-")
codecs.register_error(_PLAIN, _plain)


def silence_output() -> None:
    """Keep the interpreter from flushing, at its end, what can't be written."""
    if not isinstance(sys.stdout, ClosedOutput):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
