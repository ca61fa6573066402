"""The same comparison on a clock that counts the CPU time of the engine's thread: for a machine that others use, too.

Steps are really computed, and the clock stands still while another process has the core. What the engine sleeps is
added to the clock at once. One thread computes; its caches and memory are still shared.
"""

from __future__ import annotations

import sys
import threading
import time


class CpuClock:
    """Nanoseconds of CPU time of the main thread, and of the time in which it would have slept."""

    def __init__(self) -> None:
        ident = threading.main_thread().ident
        if ident is None:
            raise RuntimeError("the main thread does not run")
        self._clock = time.pthread_getcpuclockid(ident)
        self._slept = 0
        self._sleep = time.sleep

    def monotonic_ns(self) -> int:
        """The time, from any thread."""
        return time.clock_gettime_ns(self._clock) + self._slept

    def sleep(self, seconds: float) -> None:
        """Move the clock; other threads really sleep."""
        if threading.current_thread() is threading.main_thread():
            self._slept += int(seconds * 1e9)
        else:
            self._sleep(seconds)


def main() -> None:
    """Take the clock's place, then load the engine and compare."""
    clock = CpuClock()
    time.monotonic_ns = clock.monotonic_ns
    time.sleep = clock.sleep  # type: ignore[assignment]
    from . import whatif

    whatif.main([*sys.argv[1:], "--threads", "1"])


if __name__ == "__main__":
    main()
