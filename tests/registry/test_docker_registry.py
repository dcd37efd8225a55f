"""Pull and push with the reference registry, through a proxy that does harm, and killed midway."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.local_http import Answer, Request
from support.registries import (
    DockerRegistry,
    FaultyProxy,
)
from support.split_models import split_file
from support.stores import add_model, names
from support.tiny_model import Tiny, write_tiny

from tampu.cli import app
from tampu.engine.engine import Engine
from tampu.errors import RegistryError, StoreError
from tampu.store import Digest, Media, ModelName, Store
from tampu.store.create import CreateSpec, create
from tampu.store.library import Library
from tampu.store.manifests import MANIFEST_TYPE
from tampu.store.modelfile import parse_modelfile
from tampu.store.registry import push as push_module
from tampu.store.registry.options import RemoteOptions
from tampu.store.registry.pull import pull
from tampu.store.registry.push import push
from tampu.store.verify import verify_store

pytestmark = [pytest.mark.registry, pytest.mark.slow]

MB = 1 << 20
SMALL = random.Random(1).randbytes(300_000)
LARGE = random.Random(2).randbytes(40 * MB + 77)
OPTIONS = RemoteOptions(is_insecure=True, retry_delays_s=(0.0, 0.01), read_timeout_s=5.0)
PULL = """
import sys
from pathlib import Path
from tampu.store import ModelName, Store
from tampu.store.registry.options import RemoteOptions
from tampu.store.registry.pull import pull
options = RemoteOptions(is_insecure=True, connections=4)
print("begins", flush=True)
for step in pull(Store(Path(sys.argv[1])), ModelName.parse(sys.argv[2]), options):
    pass
print("done", flush=True)
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def name_at(host: str, repository: str, tag: str = "latest") -> ModelName:
    return ModelName.parse(f"{host}/{repository}:{tag}")


def fetch(store: Store, name: ModelName, options: RemoteOptions = OPTIONS) -> list[Any]:
    return list(pull(store, name, options))


def give(store: Store, name: ModelName, options: RemoteOptions = OPTIONS) -> list[Any]:
    return list(push(store, name, options))


def assert_sound(store: Store) -> None:
    found = verify_store(store)
    assert found.problems == ()


@pytest.fixture(scope="module")
def large(registry: DockerRegistry) -> tuple[str, Any]:
    """A large model at the registry: its repository and manifest."""
    return "runa/large", registry.put_model("runa/large", "latest", LARGE, SMALL)


def test_push_remove_and_pull_give_the_same_model(store: Store, registry: DockerRegistry) -> None:
    name = name_at(registry.host, "runa/round", "1b")
    pushed = add_model(store, str(name), model=LARGE, template=b"{{ .Prompt }}", license=SMALL)
    told = give(store, name)
    assert [told[0].status, told[-2].status, told[-1].status] == [
        "retrieving manifest", "pushing manifest", "success",
    ]  # fmt: skip
    assert any(0 < step.completed < step.total for step in told)
    store.delete(name)
    assert list(store.layout.blobs.iterdir()) == []
    fetch(store, name)
    assert store.model(name).digest == pushed.digest
    assert_sound(store)


def test_an_existing_blob_is_not_pushed_again(store: Store, registry: DockerRegistry) -> None:
    name = name_at(registry.host, "runa/twice")
    add_model(store, str(name), model=SMALL)
    with FaultyProxy(registry.host) as proxy:
        copy = name_at(proxy.host, "runa/twice")
        store.copy(name, copy)
        give(store, copy)
        assert "PATCH" in {request.method for request in proxy.requests}
        proxy.requests.clear()
        give(store, copy)
        assert {request.method for request in proxy.requests} == {"HEAD", "PUT"}


@pytest.mark.parametrize("fault", ["lost answer", "refused chunk", "forgotten", "busy"])
def test_a_broken_upload_is_resumed(
    store: Store, registry: DockerRegistry, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    for size in ("_FIRST_CHUNK_BYTES", "_MIN_CHUNK_BYTES", "_MAX_CHUNK_BYTES"):
        monkeypatch.setattr(push_module, size, MB)
    content = random.Random(fault).randbytes(9 * MB + 5)
    faults = [1, 2, 3]

    def harm(request: Request, answer: Answer) -> Answer:
        if request.method == "PATCH" and faults:
            faults.pop()
            if fault == "lost answer":
                return Answer(answer.status, answer.headers, b"x" * 10, drop_after=0, length=10)
            if fault == "busy":
                return Answer(503)
            if fault == "refused chunk":
                return Answer(500)
            return Answer(504, body=b"forgotten")
        if fault == "forgotten" and request.method == "GET" and "/uploads/" in request.path:
            return Answer(404)
        return answer

    with FaultyProxy(registry.host, harm) as proxy:
        name = name_at(proxy.host, f"runa/broken-{fault.replace(' ', '-')}")
        add_model(store, str(name), model=content)
        give(store, name)
        store.delete(name)
        fetch(store, name)
        assert store.model(name).model_path.read_bytes() == content


def test_a_damaged_blob_is_not_pushed(store: Store, registry: DockerRegistry) -> None:
    name = name_at(registry.host, "runa/damaged")
    model = add_model(store, str(name), model=SMALL)
    path = model.model_path
    path.chmod(0o644)
    path.write_bytes(bytes(len(SMALL)))
    with pytest.raises(StoreError, match="is damaged"):
        give(store, name)
    assert registry.request("GET", "/v2/runa/damaged/manifests/latest")[0] == 404


def _changed(answer: Answer, **changes: int) -> Answer:
    for name, value in changes.items():
        setattr(answer, name, value)
    return answer


def test_a_kill_during_a_pull_loses_nothing(
    store: Store, registry: DockerRegistry, large: tuple[str, Any]
) -> None:
    """Kill -9 at random moments: no blob with a wrong hash, no lost model, the next pull ends."""
    add_model(store, "old")
    times = int(os.environ.get("KILLS", "12"))  # noqa: TID251
    name = name_at(registry.host, large[0])
    chance = random.Random(11)
    finished = 0
    for turn in range(times):
        program = [sys.executable, "-c", PULL, str(store.root), str(name)]
        with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "begins\n"
            time.sleep(chance.random() * 0.25)
            process.send_signal(signal.SIGKILL)
            process.wait(30)
            finished += process.stdout.readline() == "done\n"
        listing = store.listing()
        assert listing.damaged == []
        assert "old:latest" in names(store)
        assert_sound(store)
        if len(listing.models) == 2:
            store.delete(name)
        if turn % 5 == 4:
            store.collect_garbage(0)
    fetch(store, name)
    assert store.model(name).model_path.read_bytes() == LARGE
    assert_sound(store)
    store.delete(name)
    store.collect_garbage(0)
    assert len(list(store.layout.blobs.iterdir())) == 2
    assert list(store.layout.leases.iterdir()) == []


def test_two_concurrent_pulls_download_once(
    store: Store, registry: DockerRegistry, large: tuple[str, Any]
) -> None:
    with FaultyProxy(registry.host, lambda _, a: _changed(a, bytes_per_second=50 * MB)) as proxy:
        name = name_at(proxy.host, large[0])
        program = [sys.executable, "-c", PULL, str(store.root), str(name)]
        processes = [subprocess.Popen(program, stdout=subprocess.DEVNULL) for _ in range(3)]
        assert [process.wait(120) for process in processes] == [0, 0, 0]
        assert proxy.sent <= 1.1 * (len(LARGE) + len(SMALL)) + MB
    assert_sound(store)


def test_the_pull_and_push_commands(
    registry: DockerRegistry,
    large: tuple[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TAMPU_HOST", "127.0.0.1:1")
    name = f"{registry.host}/{large[0]}"
    assert app.run(["pull", "--insecure", name]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "pulling manifest"
    assert lines[1] == f"pulling {Digest.of(LARGE).short} (42 MB)"
    assert lines[-1] == "success"
    assert app.run(["cp", name, f"{registry.host}/runa/copy:x"]) == 0
    assert app.run(["push", "--insecure", f"{registry.host}/runa/copy:x"]) == 0
    accept = {"Accept": MANIFEST_TYPE}
    assert registry.request("GET", "/v2/runa/copy/manifests/x", headers=accept)[2] == large[1]
    assert app.run(["rm", name]) == 0
    capsys.readouterr()
    assert app.run(["run", "--insecure", name, "hi"]) == 2  # it is pulled, but is not a model
    err = capsys.readouterr().err.splitlines()
    assert (err[0], err[-2]) == ("pulling manifest", "success")
    assert "GGUF" in err[-1]
    assert app.run(["pull", name]) == 2
    assert "--insecure" in capsys.readouterr().err
    assert app.run(["pull", "--limit-rate", "soon", name]) == 2


def test_a_registry_with_passwords(store: Store, tmp_path: Path) -> None:
    line = "runa:$2b$05$CCCCCCCCCCCCCCCCCCCCC.Vw2l/jU4jKgSLY12IXi/ZhxzSU8WB8W\n"  # bcrypt
    with closing(DockerRegistry(tmp_path / "registry", line)) as registry:
        name = name_at(registry.host, "runa/private")
        pushed = add_model(store, str(name), model=LARGE)
        with pytest.raises(RegistryError, match="set TAMPU_LOGINS="):
            give(store, name)
        options = replace(OPTIONS, logins=((registry.host, "runa:a, pass:word"),))
        give(store, name, options)
        store.delete(name)
        with pytest.raises(RegistryError, match="refused"):
            fetch(store, name, replace(OPTIONS, logins=((registry.host, "runa:x"),)))
        fetch(store, name, options)
    assert store.model(name).digest == pushed.digest
    assert_sound(store)


def test_a_split_model_is_pushed_pulled_and_runs(
    store: Store, registry: DockerRegistry, tmp_path: Path
) -> None:
    whole = write_tiny(tmp_path / "whole.gguf", Tiny())
    parts = split_file(whole, tmp_path / "m.gguf", 8)
    name = name_at(registry.host, "runa/split")
    spec = CreateSpec(modelfile=parse_modelfile(f"FROM {parts[0].name}"), folder=tmp_path)
    create(Library(store.root), name, spec)
    give(store, name)
    store.delete(name)
    assert list(store.layout.blobs.iterdir()) == []
    fetch(store, name)
    assert_sound(store)
    model = store.model(name)
    assert len(model.manifest.of_kind(Media.MODEL)) == len(parts) > 1
    answers = []
    for path in (model.model_path, whole):
        with Engine.load(path, context=64, threads=1) as engine:
            answers.append(engine.logits([5, 9, 3, 7, 11]))
    np.testing.assert_array_equal(answers[0], answers[1])
