"""A deployment on a Ray cluster: joins the cluster, checks its nodes, starts the application."""

from __future__ import annotations

import hashlib
import re
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import ray
from ray import serve
from ray.exceptions import GetTimeoutError, NodeDiedError, RayError, TaskUnschedulableError
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ApplicationStatus
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tampu.cluster.adapters import adapter_on_node
from tampu.cluster.application import HEAD, ROUTER, Listening, bind
from tampu.cluster.catalog import find_on_node
from tampu.cluster.config import APPLICATION, ClusterConfig, DeployedModel
from tampu.errors import ModelNotFoundError, RunnerDiedError, SettingsError, TampuError
from tampu.server.options import ServerOptions
from tampu.settings.settings import Settings, disable_usage_reports
from tampu.store.registry.options import RemoteOptions
from tampu.version import __version__

LOCAL = "local"
_ERROR = re.compile(r"tampu\.errors\.\w+: (.+)")
_CONNECT_SECONDS = 10.0
_NODE_SECONDS = 300.0  # a node's first task starts a process that imports tampu


def connect(address: str) -> None:
    """Join the cluster at an address; `auto`: the one of this machine, `local`: start one here.

    Raises:
        SettingsError: if there is none, or it has another version of Ray or Python.
    """
    given: dict[str, Any] = {"include_dashboard": False} if address == LOCAL else {}
    disable_usage_reports()
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit() and "/" not in host:
        try:  # Ray itself would try for minutes
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise _refused(address, str(error)) from error
    try:
        ray.init(address, log_to_driver=False, logging_level="ERROR", **given)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise _refused(address, str(error)) from error


def _refused(address: str, told: str) -> SettingsError:
    reason = " ".join(told.split())
    if "Version mismatch" in reason:
        return SettingsError(f"the Ray cluster {address} has other versions: {reason}")
    return SettingsError(
        f"no Ray cluster at {address}: run `ray start --head` on one machine and `ray start "
        f"--address` on the others, or `tampu ray up` without --address ({reason[:200]})"
    )


def deploy(
    config: ClusterConfig, options: ServerOptions, settings: Settings, router: str = ROUTER
) -> ClusterConfig:
    """Start replicas and their ingress on the cluster that was joined, and wait until they serve.

    `router` is as in `bind`.

    Returns:
        The configuration with the CPUs of each replica.

    Raises:
        SettingsError: if the cluster has too few CPUs, or a node has another version of tampu.
        ModelNotFoundError: if a node does not have one of the models or adapters.
        RunnerDiedError: if replicas do not start, with the reason.
    """
    config = config.with_cpus(float(ray.cluster_resources().get("CPU", 0)))
    files = check_nodes(config.models, settings, pull=config.pull)
    serve.start(proxy_location="Disabled")
    before = serve.status().applications.get(APPLICATION)
    parts = (__version__, files, options, settings)
    told = msgspec.json.encode(parts, enc_hook=str, order="sorted")
    if before is not None and before.status != ApplicationStatus.RUNNING:
        told += secrets.token_bytes()  # so that what has failed is tried again
    listening = Listening(may_share=before is not None, version=hashlib.sha256(told).hexdigest())
    try:
        application = bind(config, options, settings, router, listening)
        serve.run(application, name=APPLICATION, route_prefix="/")
    except (RuntimeError, RayError, RayServeException) as error:
        raise RunnerDiedError(f"the replicas do not start: {_reason(error)}") from error
    return config


def stop() -> None:
    """End the application and leave the cluster, which ends if it was started here."""
    serve.shutdown()
    ray.shutdown()


def check_nodes(
    models: Sequence[DeployedModel], settings: Settings, *, pull: bool = False
) -> list[str]:
    """Check that the head and each node that may run replicas has the models, and this tampu.

    With `pull` a node that lacks models pulls them first.

    Returns:
        The files of models and adapters on all nodes, each once: others, if one is not what it
        was.

    Raises:
        SettingsError: if one has another version, or cannot say.
        ModelNotFoundError: if one lacks a model or an adapter.
    """
    nodes = [
        each
        for each in ray.nodes()
        if each["Alive"] and (each["Resources"].get("CPU") or HEAD in each["Resources"])
    ]
    look = ray.remote(num_cpus=0, max_retries=0)(look_for)
    asked = {}
    for node in nodes:
        place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        asked[node["NodeManagerAddress"], node["NodeID"]] = look.options(
            scheduling_strategy=place
        ).remote(models, settings, pull=pull)
    files: set[str] = set()
    for (address, _), answer in asked.items():
        try:
            seconds = None if pull else _NODE_SECONDS
            version, found, lacking = ray.get(answer, timeout=seconds)
        except (NodeDiedError, TaskUnschedulableError):
            continue  # it has died, which Ray tells some seconds later
        except GetTimeoutError as error:
            message = f"node {address} has not answered for {_NODE_SECONDS:g} s"
            raise SettingsError(message) from error
        except RayError as error:
            told = " ".join(str(error).split())[-200:]
            raise SettingsError(
                f"node {address} cannot run tampu: install 'tampu[ray]' there ({told})"
            ) from error
        if version != __version__:
            raise SettingsError(f"node {address} has tampu {version}, and this is {__version__}")
        if lacking:
            raise ModelNotFoundError(f"node {address} {lacking[0]}")
        files.update(found)
    return sorted(files)


def look_for(
    models: Sequence[DeployedModel], settings: Settings, *, pull: bool
) -> tuple[str, list[str], list[str]]:
    """Return this node's version of tampu, the files of models, and what it lacks."""
    remote = RemoteOptions.from_settings(settings) if pull else None
    files, lacking = [], []
    for model in models:
        name = model.model
        try:
            entry = find_on_node(name, settings, remote)
        except TampuError as error:
            lacking.append(
                f"does not have model {name!r}: run `tampu pull {name}` there, let all nodes pull "
                "(--pull, or pull: true), or give them one folder of models, TAMPU_MODELS "
                f"({error})"
            )
            continue
        path = Path(entry.info.path)  # in a store its name has the file's digest
        files.append(path.name if entry.model.stored else _version_of(path))
        try:
            for adapter, file in model.adapters.items():
                files.append(_version_of(adapter_on_node(adapter, file, entry, settings).path))
        except TampuError as error:
            lacking.append(f"lacks an adapter of model {name!r}: {error}")
    return __version__, files, lacking


def _version_of(path: Path) -> str:
    """Return what is another text when a file has changed."""
    found = path.stat()
    return f"{path.name} {found.st_size} {found.st_mtime_ns}"


def _reason(error: Exception) -> str:
    """Return why an application was not started: the replicas' own error, if there is one."""
    found: Any = serve.status().applications.get(APPLICATION)
    messages = [each.message for each in found.deployments.values()] if found else []
    for message in messages:
        if told := _ERROR.findall(message):
            return str(told[-1])
    return " ".join(next(filter(None, messages), str(error)).split())[:500]
