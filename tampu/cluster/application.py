"""The application for Ray Serve: an ingress, and a deployment of replicas for each model."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import msgspec
from ray import serve
from ray.serve.config import AutoscalingConfig, RequestRouterConfig

from tampu.cluster.config import INGRESS, ClusterConfig, DeployedModel
from tampu.cluster.ingress import Ingress
from tampu.cluster.replica import Replica
from tampu.engine.load_options import LoadOptions
from tampu.server.app import ServerOptions
from tampu.settings.settings import Settings

ROUTER = "tampu.cluster.router.PrefixRouter"

# Requests that a replica holds for each slot: those behind the first wait at the ingress, from
# which any replica may take them.
_HELD_PER_SLOT = 4
_LEAST_HELD = 16
_HEALTH_SECONDS = 2.0
_PUBLISH_SECONDS = 1.0
# Neither the ingress nor a replica computes in its own process, so that Ray's requests need no
# other thread than theirs: each event would change threads twice.
_ONE_THREAD = {
    "env_vars": {
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
        "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
    }
}
_HEAD = "node:__internal_head__"


def bind(
    config: ClusterConfig, options: ServerOptions, settings: Settings, router: str = ROUTER
) -> serve.Application:
    """Return the application of a configuration.

    Args:
        config: has the CPUs of each replica.
        options: of the ingress; its `model` says how models are loaded.
        settings: for the processes of models, and for where each node has models.
        router: the class that chooses among replicas, a `RequestRouter` of Ray.
    """
    load = msgspec.structs.replace(
        options.model,
        context=config.context or options.model.context,
        slots=config.slots or options.model.slots,
    )
    handles = {each.model: _replicas(each, load, settings, router) for each in config.models}
    on_head = {_HEAD: 0.001}  # all streams end with its node, and Ray needs the head in any case
    ingress = serve.deployment(
        Ingress,
        name=INGRESS,
        num_replicas=config.ingresses,
        max_ongoing_requests=options.max_queue + _LEAST_HELD,
        ray_actor_options={
            "num_cpus": 0,
            "resources": on_head if config.ingresses == 1 else {},
            "runtime_env": _ONE_THREAD,
        },
        health_check_period_s=_HEALTH_SECONDS,
        graceful_shutdown_timeout_s=options.drain_s,
    )
    return ingress.bind(replace(options, model=load), settings, handles)


def _replicas(
    model: DeployedModel, load: LoadOptions, settings: Settings, router: str
) -> serve.Application:
    held = max(_HELD_PER_SLOT * load.slots, _LEAST_HELD)
    cpus = 1.0 if model.cpus is None else model.cpus
    load = msgspec.structs.replace(load, threads=max(math.floor(cpus), 1))
    scale: dict[str, Any] = {"num_replicas": model.replicas}
    if model.most > model.replicas:
        scale = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=model.replicas,
                max_replicas=model.most,
                target_ongoing_requests=load.slots,
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
            "runtime_env": _ONE_THREAD,
        },
        health_check_period_s=_HEALTH_SECONDS,
        graceful_shutdown_timeout_s=settings.drain_s,
        **scale,
    )
    return deployment.bind(model.model, load, settings)
