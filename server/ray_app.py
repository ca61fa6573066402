"""A fleet as an application of Ray Serve: `serve run nanolens.server.ray_app:app`, set up by NANOLENS_* variables."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import ray
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig

from ..engine.block_key import new_block_key
from .fleet_scaling import ByQueueAge
from .ray_front import Front
from .ray_replica import Replica
from .ray_router import PrefixRouter
from .settings import ServeSettings, load_settings

ROOM = 64  # calls of a replica beside those that generate: looks at it, and those that it refuses
HEALTH_S = 2.0  # between two looks of Ray at a replica
HEALTH_TIMEOUT_S = 8.0  # for the answer; a replica of which three times in a row none comes is replaced
GRACE_S = 40.0  # beyond the drain, for a replica to end what runs and its engine, before Ray kills it
FRONT_GRACE_S = 45.0  # the same of the front, which passes on how the replicas' answers end
LOOK_BACK_S = 11.0  # for the mean wait: longer than the 10 s after which replicas tell Ray of it, or Ray warns
START_TRIES = 3  # of a replica, before the fleet counts as one that can't start


class Fleet:
    """What one fleet is made of; it can be deployed again, which replaces its replicas one after the other.

    Args:
        settings: of the servers; `replicas` as many.
        keys: API keys.
        router: class of the router.
        actor_options: resources of a replica; None: GPUs as the settings ask for, else a CPU's share.
    """

    def __init__(
        self,
        settings: ServeSettings,
        keys: Sequence[str],
        router: type = PrefixRouter,
        actor_options: dict[str, Any] | None = None,
    ) -> None:
        self.settings, self._keys, self._router = settings, tuple(keys), router
        self._actor_options = _resources(settings) if actor_options is None else actor_options
        self._takes_gpus = bool(self._actor_options.get("num_gpus"))
        self._block_key = new_block_key()
        self._name = f"fleet-{secrets.token_hex(4)}"

    def application(self) -> Any:
        """The application. Where it runs already, Ray replaces what runs, replicas one after the other."""
        replicas = self._deployment().bind(self.settings, self._keys, self._block_key)
        front = serve.deployment(
            Front, name="Front", num_replicas=1, ray_actor_options={"num_cpus": 0.1},
            max_ongoing_requests=1 << 16, max_surge_percent=100,
            health_check_period_s=HEALTH_S, graceful_shutdown_wait_loop_s=0.2,
            graceful_shutdown_timeout_s=self.settings.drain_seconds + FRONT_GRACE_S,
            logging_config={"enable_access_log": self.settings.access_log},
        )  # fmt: skip
        return front.bind(replicas, self._name, self.settings, self._keys, self._block_key)

    def _deployment(self) -> Any:
        settings = self.settings
        seqs = settings.engine.max_num_seqs
        room = seqs + (settings.max_queue if settings.max_queue is not None else 1 << 16) + ROOM
        count: dict[str, Any] = {"num_replicas": settings.replicas or 1}
        if settings.max_replicas is not None:
            count = {"autoscaling_config": _scaling(settings)}
        return serve.deployment(
            Replica, name="Replica", ray_actor_options=self._actor_options, max_ongoing_requests=room,
            health_check_period_s=HEALTH_S, health_check_timeout_s=HEALTH_TIMEOUT_S,
            graceful_shutdown_timeout_s=settings.drain_seconds + GRACE_S, graceful_shutdown_wait_loop_s=0.2,
            max_surge_percent=0 if self._takes_gpus else 1,  # rounded up: one at a time
            max_constructor_retry_count=START_TRIES, logging_config={"enable_access_log": False},
            request_router_config=RequestRouterConfig(
                request_router_class=self._router,
                request_router_kwargs={"fleet": self._name, "max_num_seqs": seqs},
            ),
            **count,
        )  # fmt: skip


def _scaling(settings: ServeSettings) -> AutoscalingConfig:
    kwargs = {"scale_queue_s": settings.scale_queue_s, "max_num_seqs": settings.engine.max_num_seqs}
    policy = AutoscalingPolicy(policy_function=ByQueueAge, policy_kwargs=kwargs)
    return AutoscalingConfig(
        min_replicas=settings.replicas or 1, max_replicas=settings.max_replicas, policy=policy,
        upscale_delay_s=settings.scale_queue_s, look_back_period_s=max(LOOK_BACK_S, settings.scale_queue_s),
    )  # fmt: skip


def _resources(settings: ServeSettings) -> dict[str, Any]:
    """What Ray has to find for a replica: GPUs where it may run on them, as many as the model is split over."""
    device, gpus = settings.engine.device, settings.engine.tensor_parallel_size
    has_gpus = ray.is_initialized() and ray.cluster_resources().get("GPU", 0) > 0
    if device.startswith("cuda") or (device == "auto" and has_gpus):
        return {"num_cpus": 1, "num_gpus": gpus}
    return {"num_cpus": 0.1}


def make_app() -> Any:
    """The application that the environment describes (NANOLENS_MODEL, NANOLENS_REPLICAS, ...).

    Raises:
        InvalidConfig: what can't work.
    """
    settings = load_settings({})
    if settings.replicas is None:
        settings = load_settings({"replicas": 1})
    return Fleet(settings, settings.keys()).application()


def __getattr__(name: str) -> Any:
    """`app`, made when Ray asks for it: whoever imports this for something else needs no settings."""
    if name == "app":
        return make_app()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
