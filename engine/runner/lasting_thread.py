"""A thread that lasts as long as its process, for what the system ties to the thread that did it."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
_Calls = queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]]

_lock = threading.Lock()
_calls: _Calls | None = None


def call_in_lasting_thread(work: Callable[[], T]) -> T:
    """What `work` returns, or raises, done in the thread that ends with this process and not before."""
    global _calls
    with _lock:
        if _calls is None:
            _calls = queue.SimpleQueue()
            threading.Thread(target=_serve, args=(_calls,), name="nanolens-starter", daemon=True).start()
        future: Future[T] = Future()
        _calls.put((future, work))
    return future.result()


def _serve(calls: _Calls) -> None:
    while True:
        future, work = calls.get()
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)


def _forget() -> None:
    """In a fork: the thread is the parent's alone."""
    global _lock, _calls
    _lock, _calls = threading.Lock(), None


os.register_at_fork(after_in_child=_forget)
