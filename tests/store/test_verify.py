"""Verification finds every byte that changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.stores import add_model, names

from tampu.errors import StoreError
from tampu.store import Descriptor, Digest, Manifest, Media, ModelName, Store
from tampu.store.manifests import FILE_PATH
from tampu.store.verify import remove_damaged, verify_store


def overwrite(path: Path, content: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(content)


def test_an_intact_store_has_no_problems(store: Store) -> None:
    add_model(store, "a", license=b"x")
    add_model(store, "b")
    steps = []
    found = verify_store(store, lambda done, total: steps.append((done, total)))
    assert found.problems == ()
    assert (found.models, found.blobs) == (2, 4)
    assert steps[-1] == (found.size_bytes, found.size_bytes)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.integers(0, 999), st.integers(1, 255))
def test_any_changed_byte_is_found(tmp_path: Path, place: int, change: int) -> None:
    store = Store(tmp_path / "flips")
    model = add_model(store, "m", model=bytes(1000))
    content = bytearray(1000)
    content[place] ^= change
    overwrite(model.model_path, bytes(content))
    (problem,) = verify_store(store).problems
    assert problem.models == ("m:latest",)
    assert "is damaged" in problem.reason


def test_missing_blobs_are_reported_with_their_models(store: Store) -> None:
    add_model(store, "a", model=b"same")
    model = add_model(store, "b", model=b"same")
    model.model_path.unlink()
    (problem,) = verify_store(store).problems
    assert (problem.reason, problem.models) == ("is missing", ("a:latest", "b:latest"))


def test_unused_blobs_and_odd_files_are_verified_too(store: Store) -> None:
    add_model(store, "m")
    folder, pipe = (store.layout.blob(Digest.of(x)) for x in (b"folder", b"pipe"))
    folder.mkdir()
    os.mkfifo(pipe)
    store.layout.blob(Digest.of(b"stray")).write_bytes(b"not that")
    (store.layout.blobs / "sha256-partial").write_bytes(b"")
    reasons = sorted(problem.reason for problem in verify_store(store).problems)
    assert reasons == [
        f"is damaged: its digest is {Digest.of(b'not that').short}",
        "is not a regular file",
        "is not a regular file",
    ]


def test_damaged_manifests_and_external_files_are_reported(store: Store, tmp_path: Path) -> None:
    base = add_model(store, "base")
    file = tmp_path / "weights.gguf"
    file.write_bytes(b"changed")
    layer = Descriptor(Media.MODEL, Digest.of(b"weights"), 7, annotations={FILE_PATH: str(file)})
    store.write(ModelName.parse("m"), Manifest(config=base.manifest.config, layers=[layer]))
    store.layout.manifest(ModelName.parse("base")).write_bytes(b"")
    problems = {problem.what: problem for problem in verify_store(store).problems}
    assert problems.keys() == {"manifests/registry.ollama.ai/library/base/latest", str(file)}
    assert problems[str(file)].models == ("m:latest",)
    assert remove_damaged(store, verify_store(store)) == []
    assert file.is_file()


def test_only_damaged_blobs_are_removed(store: Store) -> None:
    good, bad = add_model(store, "good"), add_model(store, "bad")
    overwrite(bad.model_path, b"x")
    found = verify_store(store)
    assert remove_damaged(store, found) == [bad.manifest.layers[0].digest]
    assert good.model_path.is_file()
    assert names(store) == ["bad:latest", "good:latest"]
    with pytest.raises(StoreError, match="is missing"):
        assert bad.model_path
    add_model(store, "bad")
    assert verify_store(store).problems == ()
