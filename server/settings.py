"""The settings of one server: its own and its engine's, from flags, the environment and a file. Starts nothing."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..engine.config import EngineConfig
from ..errors import InvalidConfig
from .options import Option, from_environment, from_file, options_of

SIZES = frozenset({"journal_cap", "max_body_bytes"})
MIN_KEY = 8  # characters of an API key

# Least and most of each number.
_RANGES: dict[str, tuple[float, float]] = {
    "port": (0, 65535),
    "max_queue": (0, 1 << 30),
    "max_prompts": (1, 1 << 20),
    "max_sequences": (1, 1 << 20),
    "max_body_bytes": (1 << 10, 1 << 40),
    "max_timeout_s": (0.001, 1e9),
    "drain_seconds": (0, 1e6),
    "stall_seconds": (0.1, 1e6),
    "write_timeout_s": (0.1, 1e6),
    "replicas": (1, 4096),
    "max_replicas": (1, 4096),
    "scale_queue_s": (0.001, 1e6),
}


@dataclass(frozen=True)
class ServeSettings:
    """Settings of one server; times in seconds, sizes in bytes.

    Attributes:
        engine: those of its engine.
        host: the address to listen at; 0.0.0.0 is every one of this machine's. The default can be reached from this
            machine alone.
        port: the port to listen at; 0 takes any free one.
        served_model_name: names that requests call the model by, the first one in answers; none: MODEL itself.
        api_key: keys that let a client in, as `Authorization: Bearer KEY`. Other users of this machine can see flags:
            the environment or a file is a better place.
        api_key_file: a file with one key a line.
        debug_needs_key: /debug and /metrics need a key from this machine too. Turn it on behind a proxy, which may
            not say that it speaks for others.
        max_queue: requests that may wait beyond those that run (max_num_seqs) before new ones get 429; none: any
            number.
        max_prompts: prompts of one completion request.
        max_sequences: prompts times n of one HTTP request.
        max_body_bytes: size of a request's body.
        max_timeout_s: the longest `timeout` of a request, and that of one which gives none; none: no deadline.
        drain_seconds: after SIGTERM, how long running requests may take to finish before they are ended.
        stall_seconds: /health fails when work waits and no step ends for so long.
        write_timeout_s: a client that takes no byte of its answer for so long is let go, and its request ended.
        metrics: serve /metrics; this takes a process beside the engine and a journal, in a temporary directory where
            none is kept.
        replicas: engines behind one address, each in a process of Ray Serve (pip install 'nanolens[ray]'), which
            starts another one for one that dies; none: one engine, and no Ray.
        max_replicas: the most that are started as requests wait; none: there are always as many as `replicas` says.
        scale_queue_s: seconds that a request may wait in a replica's queue before another replica is started.
        access_log: a line on stderr for each HTTP request.
        log_level: how much is said on stderr.
    """

    engine: EngineConfig = field(default_factory=EngineConfig)
    host: str = "127.0.0.1"
    port: int = 8000
    served_model_name: tuple[str, ...] = ()
    api_key: tuple[str, ...] = field(default=(), repr=False)
    api_key_file: str | None = None
    debug_needs_key: bool = False
    max_queue: int | None = 1024
    max_prompts: int = 1024
    max_sequences: int = 4096
    max_body_bytes: int = 4 << 20
    max_timeout_s: float | None = None
    drain_seconds: float = 30.0
    stall_seconds: float = 60.0
    write_timeout_s: float = 300.0
    metrics: bool = True
    replicas: int | None = None
    max_replicas: int | None = None
    scale_queue_s: float = 2.0
    access_log: bool = False
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    def __post_init__(self) -> None:
        """Refuse what can't work.

        Raises:
            InvalidConfig: naming the setting, its value and what is allowed.
        """
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise InvalidConfig(f"{name}={value}: must be at least {least:g} and at most {most:g}")
        for key in self.api_key:
            _check_key(key, "api_key")
        if not all(self.served_model_name):
            raise InvalidConfig("served_model_name: a name must not be empty")
        if self.replicas is not None or self.max_replicas is not None:
            self._check_fleet(self.replicas or 1)

    def _check_fleet(self, replicas: int) -> None:
        """Refuse what can't work with several engines behind one address."""
        engine = self.engine
        if self.replicas is None or (self.max_replicas is not None and self.max_replicas < replicas):
            raise InvalidConfig(f"max_replicas={self.max_replicas} with replicas={self.replicas}: give replicas, and "
                                "at least as many for max_replicas")  # fmt: skip
        if not engine.recording:
            raise InvalidConfig("recording=False with replicas: must be on, for requests go by what is recorded")
        if engine.metrics_port:
            raise InvalidConfig(f"metrics_port={engine.metrics_port} with replicas: must be 0 or none, for each has "
                                "a port of its own; /metrics has them all")  # fmt: skip

    @property
    def model_names(self) -> tuple[str, ...]:
        """What requests may call the model."""
        return self.served_model_name or (self.engine.model,)

    @property
    def is_open_to_others(self) -> bool:
        """Whether other machines can reach it."""
        try:
            return not ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host != "localhost"

    def keys(self) -> tuple[str, ...]:
        """All API keys, those of the file too.

        Raises:
            InvalidConfig: the file can't be read, holds no key or one that is too short; a key is needed, and there
                is none.
        """
        if self.api_key_file is None:
            if self.debug_needs_key and not self.api_key:
                raise InvalidConfig("debug_needs_key: there is no key, so that nobody could get in; give api_key_file")
            return self.api_key
        try:
            lines = Path(self.api_key_file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is no text"
            raise InvalidConfig(f"api_key_file={self.api_key_file!r}: can't be read ({reason})") from error
        keys = [line.strip() for line in lines if line.strip()]
        if not keys:
            raise InvalidConfig(f"api_key_file={self.api_key_file!r}: holds no key; write one a line")
        for key in keys:
            _check_key(key, "api_key_file")
        return (*self.api_key, *keys)


def _check_key(key: str, name: str) -> None:
    """Refuse a key that no header carries or that can be guessed; it is not shown."""
    if len(key) < MIN_KEY or not key.isascii() or not key.isprintable() or " " in key:
        raise InvalidConfig(f"{name}: a key has at least {MIN_KEY} characters, all of printable ASCII without spaces")


def check_place(swap_path: str | None) -> None:
    """Refuse a swap file where none can be made, before a model is loaded; the engine itself checks all the rest.

    Raises:
        InvalidConfig: naming the place.
    """
    if swap_path is None:
        return
    directory = Path(swap_path).absolute().parent
    if not directory.is_dir():
        raise InvalidConfig(f"swap_path={swap_path!r}: there is no directory {str(directory)!r}; make it first")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise InvalidConfig(f"swap_path={swap_path!r}: no file can be made in {str(directory)!r}; give another place")


ENGINE_OPTIONS = options_of(EngineConfig, SIZES)
SERVER_OPTIONS = options_of(ServeSettings, SIZES, leave_out={"engine"})
OPTIONS: dict[str, Option] = {option.name: option for option in (*SERVER_OPTIONS, *ENGINE_OPTIONS)}


def load_settings(
    flags: Mapping[str, Any], config: str | None = None, environment: Mapping[str, str] | None = None
) -> ServeSettings:
    """Put settings together: flags go before the environment, that before the file, that before the defaults.

    Args:
        flags: by option name.
        config: path of the file; None: the one that NANOLENS_CONFIG names, if any.
        environment: None takes the process's.

    Raises:
        InvalidConfig: what can't work, and where it was given.
    """
    environment = os.environ if environment is None else environment
    config = config or environment.get("NANOLENS_CONFIG") or None
    values = from_file(OPTIONS.values(), config) if config else {}
    values |= from_environment(OPTIONS.values(), environment)
    values |= flags
    values = {name: tuple(value) if OPTIONS[name].many else value for name, value in values.items()}
    of_engine = {option.name for option in ENGINE_OPTIONS}
    engine = EngineConfig(**{name: value for name, value in values.items() if name in of_engine})
    settings = ServeSettings(
        engine=engine, **{name: value for name, value in values.items() if name not in of_engine}
    )
    check_place(engine.swap_path)
    needs_journal = settings.replicas is not None and engine.journal is None and not engine.exports
    if (settings.metrics or needs_journal) and engine.recording and engine.metrics_port is None:
        settings = dataclasses.replace(settings, engine=dataclasses.replace(engine, metrics_port=0))
    return settings
