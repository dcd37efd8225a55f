"""Nodes of a Ray cluster on this machine, with an application of ours, and a client of it."""

from __future__ import annotations

import json
import random
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest
import ray
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from ray import serve
from ray.cluster_utils import Cluster
from ray.serve.exceptions import DeploymentUnavailableError
from support.traces import Collector, collecting
from support.waiting import wait_until

from tampu.cluster.config import APPLICATION, ClusterConfig, DeployedModel
from tampu.cluster.deploying import connect, deploy, stop
from tampu.server.options import server_options
from tampu.settings.settings import Settings

NODES = 3
SLOTS = 8
STORE_BYTES = 80 * 1024 * 1024
SETTINGS = Settings.from_environment({"HOME": "/nonexistent", "TAMPU_NUM_PARALLEL": f"{SLOTS}"})
SIZE = {"num_cpus": 1, "object_store_memory": STORE_BYTES}
KEY = "k"
FAMILIES = ["/v1/chat/completions", "/api/chat", "/v1/messages"]


@dataclass
class Live:
    """A cluster with an application, and a client of this."""

    cluster: Cluster
    config: ClusterConfig
    client: httpx.Client
    collector: Collector
    nodes: list[Any] = field(default_factory=list)
    settings: Settings = SETTINGS
    pull: bool = False

    def deploy(self, *models: DeployedModel, context: int | None = None) -> None:
        """Change what is deployed."""
        options = server_options(self.settings, [self.config.host])
        options = replace(options, api_keys=(KEY,), otlp_endpoint=self.collector.url)
        self.config = ClusterConfig(
            models=models, port=self.config.port, context=context, pull=self.pull
        )
        deploy(self.config, options, self.settings)

    def loads(self, deployment: str = "demo") -> list[dict[str, Any]]:
        """What each replica that answers tells the router."""
        handle = serve.get_deployment_handle(deployment, APPLICATION)
        try:
            found = handle.broadcast("record_routing_stats").results(return_exceptions=True)
        except DeploymentUnavailableError:  # all have died
            return []
        return [each for each in found if isinstance(each, dict)]

    def running(self, deployment: str = "demo") -> int:
        """How many requests all replicas run."""
        return sum(each["requests"] for each in self.loads(deployment))

    def generated(self) -> str:
        """How many tokens all answers had that have ended."""
        found = re.search(
            r'^tampu_tokens_total\{kind="generated",.*\} (.*)',
            self.client.get("/metrics").text,
            re.M,
        )
        return found[1] if found else "0.0"


@contextmanager
def ray_cluster(
    models: Sequence[DeployedModel],
    settings: Settings = SETTINGS,
    count: int = NODES,
    *,
    pull: bool = False,
) -> Iterator[Live]:
    """Start `count` nodes of one CPU each, and replicas of models on them."""
    with pytest.MonkeyPatch.context() as patch:
        # Ray's limits for its own processes, so that they hold on a machine that does other things.
        patch.setenv("RAY_raylet_start_wait_time_s", "120")
        patch.setenv("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "120")
        patch.setenv("RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S", "120")
        cluster = Cluster(initialize_head=True, head_node_args=SIZE | {"include_dashboard": False})
        nodes = [cluster.add_node(**SIZE) for _ in range(count - 1)]
        config = ClusterConfig(models=(), port=free_port())
        url, headers = f"http://{config.host}:{config.port}", {"authorization": f"Bearer {KEY}"}
        try:
            connect(cluster.address)
            with (
                collecting() as collector,
                httpx.Client(base_url=url, headers=headers, timeout=300) as client,
            ):
                live = Live(cluster, config, client, collector, nodes, settings, pull)
                live.deploy(*models)
                yield live
        finally:
            if ray.is_initialized():
                stop()
            cluster.shutdown()


def counted(live: Live, name: str, **labels: str) -> dict[str, float]:
    """What each replica has counted, by the replicas' names."""

    def rows() -> list[Sample]:
        """Those of all replicas: one that is slow to answer has none."""
        families = text_string_to_metric_families(live.client.get("/metrics").text)
        found = [sample for family in families for sample in family.samples]
        names = {each.labels.get("replica") for each in found} - {None}
        return found if len(names) == sum(each.replicas for each in live.config.models) else []

    return {
        sample.labels["replica"]: sample.value
        for sample in wait_until(rows, "all replicas tell what they count")
        if sample.name == name and labels.items() <= sample.labels.items()
    }


def free_port() -> int:
    """A port that nothing uses, outside of those that the system and Ray take by chance."""
    for port in random.sample(range(20_000, 30_000), 100):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    pytest.fail("no port is free from 20000 to 29999")


def text_of(answer: dict[str, Any]) -> str:
    """The text of an answer of any family."""
    if "choices" in answer:
        return str(answer["choices"][0]["message"]["content"])
    if "content" in answer:
        return str(answer["content"][0]["text"])
    return str(answer["message"]["content"])


def streamed(lines: Iterator[str]) -> tuple[str, list[dict[str, Any]]]:
    """The text of a stream of any family, and its errors."""
    text, errors = "", []
    for line in lines:
        data = line.removeprefix("data: ")
        if not data.startswith("{"):
            continue
        part = json.loads(data)
        if "error" in part:
            errors.append(part)
        elif "choices" in part:
            text += part["choices"][0]["delta"].get("content") or ""
        elif part.get("type") == "content_block_delta":
            text += part["delta"]["text"]
        elif "message" in part and "role" in part["message"]:
            text += part["message"].get("content") or ""
    return text, errors
