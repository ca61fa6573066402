"""`nano-serve --replicas N`: Ray, Serve and a fleet from their start to their end; signals, drain, rolling restart."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from .. import __version__
from ..errors import InvalidConfig, NanolensError
from .engine_process import LOG_LEVEL, start_logging
from .lifecycle import bind
from .settings import ServeSettings
from .startup import base_url, load_tokenizer_alone, say

STORE_BYTES = 100 << 20  # of Ray's object store: answers are small
APP = "nanolens"
LOGGING = {"log_level": "WARNING"}  # of Ray Serve's processes
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


def run_fleet(settings: ServeSettings, keys: Sequence[str]) -> bool:
    """Serve until SIGTERM or SIGINT; whether it ended in order. SIGHUP replaces the replicas one after the other.

    Raises:
        InvalidConfig: Ray is missing, or can't start as the settings ask for.
        UnknownModel, ModelLoadError: there is no such model.
        NanolensError: the replicas did not start.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray  # noqa: F401
    except ImportError as error:
        raise InvalidConfig(f"replicas={settings.replicas}: needs Ray: pip install 'nanolens[ray]'") from error
    os.environ[LOG_LEVEL] = settings.log_level
    start_logging(settings.log_level)
    began = time.monotonic()
    say(f"nanolens {__version__}: {settings.engine.model}, {settings.replicas} replicas")
    load_tokenizer_alone(settings.engine.model)  # a model that is not there is known before Ray starts
    signals = Signals()
    with _ray(settings) as port, signals.taken():  # Ray takes signals, too, as it starts
        return _serve(settings, keys, port, signals, began)


class Signals:
    """What the process was told.

    Attributes:
        stop: set by SIGTERM and SIGINT.
        again: set by SIGHUP.
        wake: set by each.
    """

    def __init__(self) -> None:
        self.stop, self.again, self.wake = threading.Event(), threading.Event(), threading.Event()

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Handle them for as long as the block lasts."""
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        before = {number: signal.signal(number, self._on_signal) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        (self.again if number == signal.SIGHUP else self.stop).set()
        self.wake.set()


@contextlib.contextmanager
def _ray(settings: ServeSettings) -> Iterator[int]:
    """Ray and Serve's HTTP, for as long as the block lasts: the port. With RAY_ADDRESS, the cluster that it names."""
    import ray
    from ray import serve
    from ray.serve.config import HTTPOptions

    with bind(settings.host, settings.port) as listener:  # a port that is taken is known at once
        port = int(listener.getsockname()[1])
    folder = None
    options: dict[str, Any] = {}
    if not os.environ.get("RAY_ADDRESS"):
        folder = tempfile.mkdtemp(prefix="nl-ray-")  # short: Ray's sockets lie in it
        options = {
            "include_dashboard": False, "object_store_memory": STORE_BYTES, "_temp_dir": folder,
            "_node_ip_address": "127.0.0.1",
        }  # fmt: skip
    try:
        ray.init(log_to_driver=False, configure_logging=False, **options)
        try:
            logging.getLogger("ray.serve").setLevel(logging.WARNING)
            serve.start(http_options=HTTPOptions(host=settings.host, port=port), logging_config=LOGGING)
            yield port
        finally:
            with contextlib.suppress(Exception):  # Ray's own: it may be gone
                serve.delete(APP)  # in order; a cluster that others use keeps its Serve
            ray.shutdown()
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _serve(settings: ServeSettings, keys: Sequence[str], port: int, signals: Signals, began: float) -> bool:
    from ray import serve

    from .ray_app import Fleet

    fleet = Fleet(settings, keys)
    try:
        handle = serve.run(fleet.application(), name=APP, logging_config=LOGGING)
    except (RuntimeError, TimeoutError) as error:
        if signals.stop.is_set():
            say("ended before it was ready")
            return False
        raise NanolensError(f"the replicas did not start: {_reason() or error}") from error
    base = base_url(settings, port)
    for line in (f"OpenAI API   {base}/v1", f"replicas     {base}/debug/fleet", f"metrics      {base}/metrics"):
        say(line)
    say(f"ready after {time.monotonic() - began:.1f} s")
    while not signals.stop.is_set():
        signals.wake.wait()
        signals.wake.clear()
        if signals.again.is_set() and not signals.stop.is_set():
            signals.again.clear()
            say("SIGHUP: the replicas are replaced, one after the other")
            handle = serve.run(fleet.application(), name=APP, logging_config=LOGGING)
            say("the replicas have been replaced")
    say(f"new requests are refused; those that run may take {settings.drain_seconds:g} s to finish")
    try:
        handle.options(method_name="drain").remote().result(timeout_s=settings.drain_seconds)
    except TimeoutError:
        say("some requests are ended before they finished")
    except Exception as error:  # Ray's own: there is nothing left to drain
        say(f"the front is gone: {type(error).__name__}")
    say("ended")
    return True


def _reason() -> str:
    """What the replicas that did not start say, as far as Ray knows."""
    from ray import serve

    with contextlib.suppress(Exception):  # Ray's own: then its first words have to do
        found = serve.status().applications[APP].deployments
        told = [each.message.strip() for each in found.values() if each.status in ("DEPLOY_FAILED", "UNHEALTHY")]
        return "; ".join(each.splitlines()[-1] for each in told if each)  # of a traceback: what it ends in
    return ""
