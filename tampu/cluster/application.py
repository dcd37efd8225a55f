"""The application for Ray Serve: an ingress, and a deployment of replicas for each model."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig

from tampu.cluster.adapter_registry import AdapterRegistry
from tampu.cluster.autoscaling import replicas_by_slots
from tampu.cluster.config import INGRESS, REGISTRY, ClusterConfig, DeployedModel
from tampu.cluster.ingress import Ingress, ListeningIngress
from tampu.cluster.replica import Replica
from tampu.engine.load_options import LoadOptions
from tampu.server.options import ServerOptions
from tampu.settings.settings import Settings
from tampu.version import __version__

ROUTER = "tampu.cluster.router.PrefixRouter"

# Requests that a replica holds for each slot: those behind the first wait at the ingress, from
# which any replica may take them.
_HELD_PER_SLOT = 4
_LEAST_HELD = 16
_HEALTH_SECONDS = 2.0
_PUBLISH_SECONDS = 1.0
# How often replicas report their number of requests, and over how long it is averaged. The delays
# of a model's configuration begin after that.
_COUNT_SECONDS = 2.0
_MEAN_SECONDS = 4.0
# Neither the ingress nor a replica computes in its own process, so that Ray's requests need no
# other thread than theirs: each event would change threads twice. Ray gives actors a lower priority
# (nice 15), with which they get a thirtieth of a processor that something else wants, too.
_ENVIRONMENT = {
    "env_vars": {
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
        "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
        "RAY_worker_niceness": "0",
    }
}
HEAD = "node:__internal_head__"
_ON_HEAD = {HEAD: 0.001}  # all streams end with its node, and Ray needs the head in any case
_CLOSE_SECONDS = 5.0
_FOLLOWERS = 1000
_LOGGING = {"enable_access_log": False}  # the ingress has a line for each request, as any server


@dataclass(frozen=True, slots=True)
class Listening:
    """How ingresses listen themselves.

    Attributes:
        may_share: whether one of this application listens there already.
        version: of all that replicas are started with and that is not in the configuration: while
            it is the same, deploying again leaves them as they are.
    """

    may_share: bool
    version: str


def bind(
    config: ClusterConfig,
    options: ServerOptions,
    settings: Settings,
    router: str = ROUTER,
    listening: Listening | None = None,
) -> serve.Application:
    """Return the application of a configuration.

    Args:
        config: has the CPUs of each replica.
        options: of the ingress; its `model` says how models are loaded.
        settings: for the processes of models, and for where each node has models.
        router: the class that chooses among replicas, a `RequestRouter` of Ray.
        listening: how its ingresses listen themselves; None: they are behind Ray's HTTP proxy.
    """
    load = msgspec.structs.replace(
        options.model,
        context=config.context or options.model.context,
        slots=config.slots or options.model.slots,
    )
    version = None if listening is None else listening.version
    registry = _registry(config, options, version)
    handles = {
        each.model: _replicas(each, load, settings, router, version, registry, pull=config.pull)
        for each in config.models
    }
    given = (replace(options, model=load), settings, handles, registry)
    ingress = serve.deployment(
        Ingress if listening is None else ListeningIngress,
        name=INGRESS,
        num_replicas=config.ingresses,
        max_ongoing_requests=options.max_queue + _LEAST_HELD,
        ray_actor_options={
            "num_cpus": 0,
            "resources": _ON_HEAD if config.ingresses == 1 else {},
            "runtime_env": _ENVIRONMENT,
        },
        logging_config=_LOGGING,
        max_surge_percent=100,  # a new one listens before the old one ends
        health_check_period_s=_HEALTH_SECONDS,
        graceful_shutdown_timeout_s=options.drain_s + _CLOSE_SECONDS,
    )
    if listening is None:
        return ingress.bind(*given)
    if config.ingresses > 1:
        ingress = ingress.options(max_replicas_per_node=1)
    has_registry = registry is not None
    return _versioned(ingress, version, load, options, router, has_registry, [*handles]).bind(
        *given, config.host, config.port, may_share=listening.may_share or config.ingresses > 1
    )


def _versioned(
    deployment: serve.Deployment, version: str | None, *parts: object
) -> serve.Deployment:
    """Return a deployment whose replicas stay when it is deployed again with the same parts.

    Ray has no public option for that: it starts all replicas anew.
    """
    if version is None:
        return deployment
    told = msgspec.json.encode((version, parts), enc_hook=str, order="sorted")
    return deployment.options(version=hashlib.sha256(told).hexdigest(), _internal=True)


def _registry(
    config: ClusterConfig, options: ServerOptions, version: str | None
) -> serve.Application | None:
    """Return the registry of adapters; None if no model can have any.

    It stays when it is deployed again: Ray tells it what the configuration names then.
    """
    declared = {each.model: dict(each.adapters) for each in config.models}
    if options.adapters is None and not any(declared.values()):
        return None
    deployment = serve.deployment(
        AdapterRegistry,
        name=REGISTRY,
        max_ongoing_requests=_FOLLOWERS,
        user_config=declared,
        ray_actor_options={"num_cpus": 0, "resources": _ON_HEAD, "runtime_env": _ENVIRONMENT},
        logging_config=_LOGGING,
        health_check_period_s=_HEALTH_SECONDS,
        graceful_shutdown_timeout_s=0.0,  # those who follow it never end
    )
    if version is not None:
        deployment = deployment.options(version=__version__, _internal=True)
    return deployment.bind()


def _replicas(
    model: DeployedModel,
    load: LoadOptions,
    settings: Settings,
    router: str,
    version: str | None,
    registry: serve.Application | None,
    *,
    pull: bool,
) -> serve.Application:
    held = max(_HELD_PER_SLOT * load.max_slots, _LEAST_HELD)
    cpus = 1.0 if model.cpus is None else model.cpus
    load = msgspec.structs.replace(load, threads=max(math.floor(cpus), 1))
    scale: dict[str, Any] = {"num_replicas": model.replicas}
    if model.most > model.replicas:
        scale = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=model.replicas,
                max_replicas=model.most,
                target_ongoing_requests=load.max_slots,
                policy=AutoscalingPolicy(policy_function=replicas_by_slots),
                upscale_delay_s=model.upscale_delay_s,
                downscale_delay_s=model.downscale_delay_s,
                metrics_interval_s=_COUNT_SECONDS,
                look_back_period_s=_MEAN_SECONDS,
            )
        }
    deployment = serve.deployment(
        Replica,
        name=model.deployment,
        max_ongoing_requests=held,
        request_router_config=RequestRouterConfig(
            request_router_class=router, request_routing_stats_period_s=_PUBLISH_SECONDS
        ),
        ray_actor_options={
            "num_cpus": cpus,
            "num_gpus": model.gpus,
            "runtime_env": _ENVIRONMENT,
        },
        logging_config=_LOGGING,
        health_check_period_s=_HEALTH_SECONDS,
        graceful_shutdown_timeout_s=settings.drain_s,
        **scale,
    )
    has_registry = registry is not None
    return _versioned(deployment, version, load, router, model.adapters, has_registry).bind(
        model.model, load, settings, model.adapters, registry, pull=pull
    )
