"""`nano-serve --replicas N`: Ray, Serve and a fleet from their start to their end; signals, drain, rolling restart."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from .. import __version__
from ..errors import InvalidConfig, NanolensError
from ..telemetry.registry import announced_server
from .engine_process import LOG_LEVEL, start_logging
from .fleet_deployment import Deployment, until_running
from .fleet_end import ASK_S, Ended, drain, kill_silent, within
from .lifecycle import bind
from .ray_host import NODE, RayHost
from .settings import ServeSettings, check_place
from .startup import base_url, load_tokenizer_alone, say

APP = "nanolens"
LOGGING = {"log_level": "WARNING"}  # of Ray Serve's processes
DELETE_S = 45.0  # for the replicas to end their engines, and for Ray to end the replicas
LEAVE_S = 5.0  # for Ray to let go of this process
ONE_S = 0.3  # signals closer than that are one: `timeout` and some shells send each twice, to the process and its group
_OWN = {  # of a Ray that is started here
    "RAY_AUTH_MODE": "token", "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "nanolens.server.ray_proxy:middlewares",
}  # fmt: skip
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",  # or a call that comes after the end starts another Ray
}  # fmt: skip

logger = logging.getLogger("nanolens.server")


def run_fleet(settings: ServeSettings, keys: Sequence[str]) -> bool:
    """Serve until SIGTERM or SIGINT; whether it ended in order. SIGHUP replaces the replicas one after the other.

    Raises:
        InvalidConfig: Ray is missing, or can't start as the settings ask for.
        UnknownModel, ModelLoadError: there is no such model.
        NanolensError: the replicas did not start.
    """
    is_own = not os.environ.get("RAY_ADDRESS")
    for name, value in (_QUIET | (_OWN if is_own else {})).items():
        os.environ.setdefault(name, value)
    if importlib.util.find_spec("ray") is None:
        raise InvalidConfig(f"replicas={settings.replicas}: needs Ray: pip install 'nanolens[ray]'")
    os.environ[LOG_LEVEL] = settings.log_level
    start_logging(settings.log_level)
    began = time.monotonic()
    say(f"nanolens {__version__}: {settings.engine.model}, {settings.replicas} replicas")
    load_tokenizer_alone(settings.engine.model)  # a model that is not there is known before Ray starts
    if is_own and settings.engine.journal is not None:
        warn_unwritable(settings.engine.journal)
    with bind(settings.host, settings.port) as listener:  # a port that is taken is known at once
        port = int(listener.getsockname()[1])
    signals = Signals()
    connection, is_over = _Connection(), False
    try:
        with contextlib.ExitStack() as stack:
            host = stack.enter_context(RayHost()) if is_own else None
            stack.enter_context(_connected(settings, port, host, connection))
            stack.enter_context(signals.taken())  # Ray takes signals, too, as it starts
            is_over = _serve(settings, keys, port, signals, began)
    finally:
        if not connection.is_closed:
            if (error := sys.exc_info()[1]) is not None:
                say(str(error))
            say("Ray was gone before the end")
            os._exit(1)  # its threads in this process would hold it for a minute, and then break it off
    return is_over


class Signals:
    """What the process was told.

    Attributes:
        stop: set by SIGTERM and SIGINT.
        hurry: set by a second one of these.
        again: set by SIGHUP.
        wake: set by each.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.stop, self.hurry, self.again, self.wake = (threading.Event() for _ in range(4))
        self._clock, self._stopped_t = clock, 0.0

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Handle them for as long as the block lasts."""
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        before = {number: signal.signal(number, self.on_signal) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Take a signal."""
        if number == signal.SIGHUP:
            self.again.set()
        elif not self.stop.is_set():
            self._stopped_t = self._clock()
            self.stop.set()
        elif self._clock() - self._stopped_t > ONE_S:
            self.hurry.set()
        self.wake.set()


@dataclass
class _Connection:
    """To Ray.

    Attributes:
        is_closed: whether there is none, any more or yet.
    """

    is_closed: bool = True


@contextlib.contextmanager
def _connected(
    settings: ServeSettings, port: int, host: RayHost | None, connection: _Connection
) -> Iterator[None]:
    """Ray Serve and its HTTP, for as long as the block lasts; without a host, of the cluster that RAY_ADDRESS names."""
    import ray
    from ray import serve
    from ray.serve.config import HTTPOptions

    options = {} if host is None else {"address": host.address(), "_node_ip_address": NODE}
    try:
        ray.init(log_to_driver=False, configure_logging=False, **options)
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        serve.start(http_options=HTTPOptions(host=settings.host, port=port), logging_config=LOGGING)
        yield
    finally:
        connection.is_closed = within(LEAVE_S, ray.shutdown)


def _serve(settings: ServeSettings, keys: Sequence[str], port: int, signals: Signals, began: float) -> bool:
    from ray import serve

    from .ray_app import Fleet

    fleet = Fleet(settings, keys)

    def deploy() -> Any:
        target = serve.RunTarget(fleet.application(), name=APP, logging_config=LOGGING)
        handle, *_ = serve.run_many(
            [target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False
        )
        until_running(lambda: serve.status().applications.get(APP), signals.stop)
        return handle

    first = Deployment(deploy)
    deployments = [first]
    try:
        first.wait(signals.stop)
        if signals.stop.is_set():
            say("ended before it was ready")
            return False
        if first.error is not None:
            raise NanolensError(f"the replicas did not start: {_reason() or first.error}") from first.error
        with announced_server(base_url(settings, port), settings.model_names[0], "", settings.engine.journal or ""):
            _welcome(settings, port, began)
            _serve_until_told(settings, signals, deploy, deployments)
            ended = drain(first.handle, settings.drain_seconds, signals.hurry, _is_replacing)
            killed = 0 if ended is Ended.WITHOUT_FRONT else kill_silent(first.handle)
    finally:
        is_there = within(ASK_S, serve.status)  # each step without it would take as long as it may
        # A cluster that others use keeps its Serve.
        is_deleted = is_there and within(DELETE_S, lambda: serve.delete(APP))
        if not is_deleted:
            say("some replicas have not ended in time, or Ray is gone; what is left is ended")
        for each in deployments:
            each.join(LEAVE_S)  # a call of Ray that it made after Ray's end would end this process, and with 1
    return in_order(ended, killed, is_deleted)


def in_order(ended: Ended, killed: int, is_deleted: bool) -> bool:
    """Say how the fleet has ended: whether in order.

    Args:
        ended: how what ran has.
        killed: replicas that gave no sign of life.
        is_deleted: whether the others ended in time.
    """
    if killed:
        say(f"ended; {killed} replicas gave no sign of life and were killed: what their journals lack is lost")
    else:
        say("ended" if ended is not Ended.WITHOUT_FRONT else "ended; the front was gone before")
    return is_deleted and not killed


def _welcome(settings: ServeSettings, port: int, began: float) -> None:
    base = base_url(settings, port)
    for line in (f"OpenAI API   {base}/v1", f"replicas     {base}/debug/fleet", f"metrics      {base}/metrics"):
        say(line)
    say(f"ready after {time.monotonic() - began:.1f} s")


def _serve_until_told(
    settings: ServeSettings, signals: Signals, deploy: Callable[[], object], deployments: list[Deployment]
) -> None:
    """Wait for the signal to stop, and replace the replicas meanwhile as often as told."""
    while not signals.stop.is_set():
        signals.wake.wait()
        signals.wake.clear()
        if signals.again.is_set() and not signals.stop.is_set():
            signals.again.clear()
            if (new := replace_all(settings, deploy, signals.stop)) is not None:
                deployments.append(new)


def replace_all(
    settings: ServeSettings, deploy: Callable[[], object], stop: threading.Event
) -> Deployment | None:
    """Replace the replicas one after the other; where the new ones can't start, the old ones stay.

    Args:
        settings: of the replicas.
        deploy: makes it so.
        stop: ends the wait, and with it what this would say.

    Returns:
        What may go on once this has been told to stop; None: nothing was begun.
    """
    say("SIGHUP: the replicas are replaced, one after the other")
    new = None
    try:
        load_tokenizer_alone(settings.engine.model)
        check_place(settings.engine.swap_path)
    except NanolensError as found:
        reason = str(found)
    else:
        new = Deployment(deploy)
        new.wait(stop)
        reason = "" if new.error is None else _reason() or str(new.error) or "no reason is known"
    if stop.is_set():
        return new
    if reason:
        say(f"the replicas could not be replaced, and those that run stay: {' '.join(reason.split())[:500]}")
    else:
        say("the replicas have been replaced")
    return new


def _is_replacing() -> bool:
    """Whether replicas, or a front, that others have taken the place of still run, as far as Ray knows."""
    with contextlib.suppress(Exception):  # Ray's own
        from ray import serve

        found = serve.status().applications[APP].deployments.values()
        return any(each.replica_states.get("STOPPING") for each in found)  # type: ignore[call-overload, unused-ignore]
    return False


def _reason() -> str:
    """What the replicas that did not start say, as far as Ray knows."""
    with contextlib.suppress(Exception):  # Ray's own: then its first words have to do
        from ray import serve

        found = serve.status().applications[APP].deployments
        told = [each.message.strip() for each in found.values() if each.status in ("DEPLOY_FAILED", "UNHEALTHY")]
        return "; ".join(each.splitlines()[-1] for each in told if each)  # of a traceback: what it ends in
    return ""


def warn_unwritable(journal: str) -> None:
    """Say what each replica would say of a journal that can't be written; Ray keeps its messages in files."""
    try:
        os.makedirs(journal, exist_ok=True)
        with tempfile.TemporaryFile(dir=journal):
            pass
    except OSError as error:
        logger.warning(
            "journal in %s: %s; events are lost until it can be written again, generation goes on", journal, error
        )
