"""Adapters that are loaded and unloaded while replicas run, on three nodes: `make ray-test`."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from support.ray_cluster import Live, counted, ray_cluster
from support.tiny_adapter import write_tiny_adapter
from support.tiny_model import Tiny, write_tiny
from support.waiting import wait_until

from tampu import Engine
from tampu.cluster.config import APPLICATION, DeployedModel
from tampu.settings.settings import Settings

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
ADAPTERS = ("poet", "clerk", "declared")
# Few tokens: cached rows come from other batches than the engine's, which may round otherwise, and
# a random model often has two tokens that are nearly as likely.
SAID: dict[str, Any] = {"max_tokens": 4, "temperature": 0}


@pytest.fixture(autouse=True)
def no_threads_left() -> None:
    """Ray's threads stay as long as the connection to the cluster."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model, and the folder of its adapters."""
    folder = tmp_path_factory.mktemp("models")
    tiny = write_tiny(folder / "tiny.gguf", template=TEMPLATE)
    other = write_tiny(folder / "other.gguf", Tiny(embedding=64))
    (folder / "adapters").mkdir()
    for seed, name in enumerate(ADAPTERS):
        write_tiny_adapter(folder / "adapters" / f"{name}.gguf", tiny, seed=seed)
    write_tiny_adapter(folder / "adapters" / "foreign.gguf", other)
    (folder / "adapters" / "broken.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    return folder


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Engine]:
    """The model with the adapters, to compare with."""
    with Engine.load(folder / "tiny.gguf", context=512, slots=1) as engine:
        for name in ADAPTERS:
            engine.adapters.load(name, folder / "adapters" / f"{name}.gguf")
        yield engine


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[Live]:
    environment = {
        "HOME": "/nonexistent",
        "TAMPU_NUM_PARALLEL": "2",
        "TAMPU_ADAPTERS": str(folder / "adapters"),
    }
    with ray_cluster([replicas(folder, 2)], Settings.from_environment(environment)) as live:
        yield live


@pytest.fixture
def live(cluster: Live, folder: Path) -> Iterator[Live]:
    """Two replicas, with the adapter that the configuration names, and no other."""
    yield cluster
    for name in served(cluster) - {"declared"}:
        cluster.client.post("/v1/unload_lora_adapter", json={"lora_name": name})
    load(cluster, "declared", load_inplace=True).raise_for_status()
    cluster.deploy(replicas(folder, 2, declared="declared.gguf"))
    wait_until(lambda: len(cluster.loads(cluster.config.models[0].deployment)) == 2, "two replicas")


def replicas(folder: Path, count: int, declared: str = "declared.gguf") -> DeployedModel:
    model = str(folder / "tiny.gguf")
    given = {"declared": declared}
    return DeployedModel(model=model, replicas=count, cpus=0.5, adapters=given)


def served(live: Live) -> set[str]:
    """The names of the adapters."""
    models = live.client.get("/v1/models").raise_for_status().json()["data"]
    return {each["id"] for each in models if "parent" in each}


def load(live: Live, name: str, file: str = "", **fields: Any) -> httpx.Response:
    body = {"lora_name": name, "lora_path": file or f"{name}.gguf", "model": "tiny"} | fields
    return live.client.post("/v1/load_lora_adapter", json=body)


def complete(live: Live, model: str, prompt: str, **fields: Any) -> dict[str, Any]:
    body = {"model": model, "prompt": prompt} | SAID | fields
    return dict(live.client.post("/v1/completions", json=body).raise_for_status().json())


def said(live: Live, model: str, prompt: str, **fields: Any) -> str:
    return str(complete(live, model, prompt, **fields)["choices"][0]["text"])


def check_each(live: Live, engine: Engine, model: str, count: int, adapter: str = "") -> None:
    """Check that each replica answers as the engine does with an adapter."""
    lora = {adapter: 1.0} if adapter else {}
    before = counted(live, "tampu_replica_requests_total")
    missing = {*before}
    assert len(missing) == count
    for number in range(60):  # a new prompt goes to the one that holds the least
        prompt = f"the cat {secrets.token_hex(4)} {number}"
        assert said(live, model, prompt) == engine.generate(prompt, lora=lora, **SAID).text
        after = counted(live, "tampu_replica_requests_total")
        missing -= {each for each in after if after[each] > before.get(each, 0)}
        if not missing:
            return
    pytest.fail(f"{missing} have got no request")


def test_an_adapter_is_loaded_and_unloaded_by_all_replicas(live: Live, engine: Engine) -> None:
    answer = load(live, "late", "poet.gguf")
    assert (answer.status_code, answer.text) == (
        200, "Success: LoRA adapter 'late' added successfully.",
    )  # fmt: skip
    check_each(live, engine, "late", 2, "poet")
    check_each(live, engine, "tiny", 2)
    assert served(live) == {"declared", "late"}
    again = load(live, "late", "clerk.gguf")
    assert (again.status_code, "loaded already" in again.text) == (400, True)
    assert load(live, "late", "clerk.gguf", load_inplace=True).status_code == 200
    check_each(live, engine, "late", 2, "clerk")
    gone = live.client.post("/v1/unload_lora_adapter", json={"lora_name": "late"})
    assert gone.text == "Success: LoRA adapter 'late' removed successfully."
    asked = live.client.post("/v1/completions", json={"model": "late", "prompt": "a"})
    assert asked.status_code == 404
    gone = live.client.post("/v1/unload_lora_adapter", json={"lora_name": "late"})
    assert (gone.status_code, "adapter 'late' not found" in gone.text) == (404, True)


def test_replicas_that_start_later_have_it(live: Live, engine: Engine, folder: Path) -> None:
    load(live, "late", "poet.gguf").raise_for_status()
    live.client.post("/v1/unload_lora_adapter", json={"lora_name": "declared"}).raise_for_status()
    live.deploy(replicas(folder, 3))
    check_each(live, engine, "late", 3, "poet")
    assert served(live) == {"late"}  # what was changed stays, as the configuration is the same
    names = {*counted(live, "tampu_replica_slots")}
    for each in actor_processes(live.config.models[0].deployment):
        each.kill()
    wait_until(
        lambda: not names & {*counted(live, "tampu_replica_slots")}, "there are three others"
    )
    check_each(live, engine, "late", 3, "poet")
    live.deploy(replicas(folder, 2, declared="clerk.gguf"))
    wait_until(lambda: served(live) == {"late", "declared"}, "the ingress knows what is declared")
    check_each(live, engine, "declared", 2, "clerk")
    check_each(live, engine, "late", 2, "poet")


def test_the_list_outlives_the_process_that_has_it(live: Live, engine: Engine) -> None:
    load(live, "late", "poet.gguf").raise_for_status()
    [registry] = actor_processes("adapters")
    registry.kill()
    wait_until(lambda: load(live, "more", "clerk.gguf").status_code == 200, "it is back")
    assert served(live) == {"declared", "late", "more"}
    check_each(live, engine, "late", 2, "poet")
    check_each(live, engine, "more", 2, "clerk")


def test_the_strength_for_requests_that_choose_none_is_that_of_all_replicas(
    live: Live, engine: Engine
) -> None:
    load(live, "late", "poet.gguf").raise_for_status()
    listed = live.client.get("/lora-adapters", params={"model": "tiny"}).json()
    numbers = {each["name"]: each["id"] for each in listed}
    given = [{"id": numbers["late"], "scale": 1.0}]
    told = live.client.post("/lora-adapters?model=tiny", json=given).raise_for_status().json()
    assert {each["name"]: each["scale"] for each in told} == {"declared": 0.0, "late": 1.0}
    check_each(live, engine, "tiny", 2, "poet")
    live.client.post("/lora-adapters?model=tiny", json=[]).raise_for_status()
    check_each(live, engine, "tiny", 2)


def test_prompts_with_an_adapter_go_where_they_were_with_the_same_one(live: Live) -> None:
    """And share nothing with the same prompts without."""
    load(live, "late", "poet.gguf").raise_for_status()
    prompt = f"{secrets.token_hex(4)} {'the cat is on the list and ' * 8}"

    def cached(model: str) -> tuple[set[str], int]:
        before = counted(live, "tampu_replica_requests_total")
        usage = complete(live, model, prompt)["usage"]
        after = counted(live, "tampu_replica_requests_total")
        where = {each for each in after if after[each] > before[each]}
        return where, usage["prompt_tokens_details"]["cached_tokens"]

    first = {model: cached(model) for model in ("tiny", "late", "declared")}
    assert max(tokens for _, tokens in first.values()) < 5  # a beginning that is alike by chance
    again = {model: cached(model) for model in first}
    assert {name: where for name, (where, _) in again.items()} == {
        name: where for name, (where, _) in first.items()
    }
    assert min(tokens for _, tokens in again.values()) > 20


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"lora_path": "none.gguf"}, 404, "none.gguf: no such adapter"),
        ({"lora_path": "../tiny.gguf"}, 400, "outside of the server's folder"),
        ({"lora_path": "foreign.gguf"}, 400, "do not fit blk.0"),
        ({"lora_path": "broken.gguf"}, 400, "broken.gguf"),
        ({"lora_name": "a b"}, 400, "lora_name must be"),
        ({"model": "other"}, 404, "model 'other' not found"),
    ],
)
def test_what_a_replica_cannot_load_none_has(
    live: Live, engine: Engine, body: dict[str, Any], status: int, message: str
) -> None:
    given = {"lora_name": "mine", "lora_path": "poet.gguf", "model": "tiny"} | body
    answer = live.client.post("/v1/load_lora_adapter", json=given)
    assert (answer.status_code, message in answer.text) == (status, True), answer.text
    assert served(live) == {"declared"}
    check_each(live, engine, "declared", 2, "declared")


def actor_processes(deployment: str) -> list[psutil.Process]:
    """The processes of a deployment's replicas."""
    name = f"ray::ServeReplica:{APPLICATION}:{deployment}"
    found = psutil.process_iter(["cmdline"])
    return [each for each in found if (each.info["cmdline"] or [""])[0].startswith(name)]
