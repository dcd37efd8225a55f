"""What replicas of one node share: a pull, and the pages of the weights. `make ray-test`."""

from __future__ import annotations

import re
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import psutil
import pytest
import ray
from support import local_http
from support.ray_cluster import Live, ray_cluster
from support.registries import RogueRegistry, described, is_blob, manifest
from support.waiting import wait_until

import tampu
from tampu.cluster.config import DeployedModel
from tampu.settings.settings import Settings
from tampu.store.manifests import CONFIG_TYPE

CERTIFICATE = Path(local_http.__file__).with_name("self_signed.pem")
CONFIG = b'{"model_format":"gguf"}'
REPLICAS = 2
DEMO = Path(tampu.__file__).with_name("data") / "demo.gguf"


@pytest.fixture(autouse=True)
def no_threads_left() -> None:
    """Ray's threads stay as long as the connection to the cluster."""


@pytest.fixture(scope="module")
def registry() -> Iterator[RogueRegistry]:
    weights = DEMO.read_bytes()
    told = manifest([described(weights)], described(CONFIG, CONFIG_TYPE))
    registry = RogueRegistry(told, (weights, CONFIG))
    registry.speak_tls(CERTIFICATE)
    with registry:
        yield registry


@pytest.fixture(scope="module")
def live(registry: RogueRegistry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Two replicas on one node, which pulls their model and keeps its packed weights."""
    home = tmp_path_factory.mktemp("home")
    settings = Settings.from_environment(
        {
            "HOME": str(home),
            "TAMPU_MODELS": str(home / "models"),
            "TAMPU_CACHE": str(home / "cache"),
            "TAMPU_REPACK_CACHE": "1GB",
            "TAMPU_REGISTRY": registry.host.replace("127.0.0.1", "localhost"),
        }
    )
    model = DeployedModel(model="m", replicas=REPLICAS, cpus=0.3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
        with ray_cluster([model], settings, 1, pull=True) as live:
            yield live


def ask(live: Live) -> None:
    messages = [{"role": "user", "content": f"{secrets.token_hex(4)}: what is 27 + 58?"}]
    body = {"model": "m", "messages": messages, "max_tokens": 8}
    live.client.post("/v1/chat/completions", json=body).raise_for_status()


def pulled(registry: RogueRegistry) -> list[str]:
    """The blobs that were asked for, as often as they were."""
    return sorted(each.path.rpartition("/")[2] for each in registry.requests if is_blob(each))


def actors() -> set[str]:
    """The names of the replicas' actors."""
    named = ray.util.list_named_actors(all_namespaces=True)
    return {each["name"] for each in named if "#m#" in each["name"]}


def test_replicas_that_start_at_once_pull_a_model_once(live: Live, registry: RogueRegistry) -> None:
    assert pulled(registry) == sorted(registry.blobs)
    shutil.rmtree(live.settings.models)
    registry.requests.clear()
    before = actors()
    for each in before:
        ray.kill(ray.get_actor(each, namespace="serve"))
    wait_until(lambda: len(actors() - before) == REPLICAS, "Ray starts others")
    wait_until(lambda: len(live.loads("m")) == REPLICAS, "both serve")
    assert pulled(registry) == sorted(registry.blobs)
    ask(live)


@dataclass(frozen=True)
class Mapping:
    """A part of a file that a process has mapped; sizes in kB, as the kernel tells them."""

    path: str
    inode: int
    resident: int
    shared: int
    written: int


def mappings(process: psutil.Process, folder: Path) -> list[Mapping]:
    """What a process has mapped of the files of a folder."""
    found = []
    text = Path(f"/proc/{process.pid}/smaps").read_text(encoding="utf-8")
    for part in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", text, flags=re.M)[1:]:
        head, _, rest = part.partition("\n")
        _, _, _, _, inode, *path = head.split(maxsplit=5)
        if path and path[0].startswith(str(folder)):
            told = {name: int(size) for name, size in re.findall(r"^(\w+): +(\d+) kB$", rest, re.M)}
            shared = told["Shared_Clean"] + told["Shared_Dirty"]
            found.append(Mapping(path[0], int(inode), told["Rss"], shared, told["Private_Dirty"]))
    return found


def model_processes() -> list[psutil.Process]:
    """The processes under the replicas."""
    titled = psutil.process_iter(["cmdline"])
    title = re.compile(r"ray::ServeReplica:tampu:m\b")
    of_ray = [each for each in titled if title.match(" ".join(each.info["cmdline"] or []))]
    assert len(of_ray) == REPLICAS
    return [under for each in of_ray for under in each.children(recursive=True)]


@pytest.mark.parametrize("part", ["models", "cache"])
def test_replicas_map_the_same_pages_of_weights(live: Live, part: str) -> None:
    """Those of the model's file and those of its packed weights; none is a copy."""
    for _ in range(2 * REPLICAS):  # new prompts go to each in turn; both read the weights
        ask(live)
    folder = getattr(live.settings, part)
    mapped = [found for each in model_processes() if (found := mappings(each, folder))]
    assert len(mapped) == REPLICAS
    assert len({each.inode for found in mapped for each in found}) == 1
    for each in chain(*mapped):
        assert each.written == 0
        # A page counts as shared only while another process has read it too.
        assert each.shared > each.resident / 2
