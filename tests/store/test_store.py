"""The store: what is written is all there or not at all, and nothing in use goes."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.stores import add_model, blob_names, names

from tampu.errors import ModelNotFoundError, StoreError
from tampu.store import Descriptor, Digest, Manifest, Media, ModelName, Store
from tampu.store.manifests import CONFIG_TYPE, encode_manifest


def parse(text: str) -> ModelName:
    return ModelName.parse(text)


def test_a_missing_store_is_empty(store: Store) -> None:
    assert store.listing().models == []
    with pytest.raises(ModelNotFoundError, match="model 'm:latest' not found"):
        store.model(parse("m"))
    assert not store.root.exists()


def test_the_layout_is_ollamas(store: Store) -> None:
    model = add_model(store, "m:1b")
    path = store.root / "manifests" / "registry.ollama.ai" / "library" / "m" / "1b"
    assert Digest.of(path.read_bytes()) == model.digest
    assert {f"sha256-{blob.digest.hex}" for blob in model.manifest.blobs()} == set(
        blob_names(store)
    )
    assert store.model(parse("M:1B")).name.short == "m:1b"


def test_manifest_bytes_are_kept_unchanged(store: Store) -> None:
    model = add_model(store, "a")
    content = b"\n " + encode_manifest(model.manifest) + b"\n"
    copy = store.write(parse("b"), content)
    assert copy.digest == Digest.of(content)
    assert store.model(parse("b")).digest == copy.digest


def test_an_existing_spelling_is_kept(store: Store) -> None:
    add_model(store, "Runa/Model:Q4")
    add_model(store, "runa/MODEL:q4", model=b"newer")
    assert names(store) == ["Runa/Model:Q4"]
    assert store.find(parse("RUNA/model:Q4")).short == "Runa/Model:Q4"


def test_the_list_is_sorted_by_time(store: Store) -> None:
    for age, name in ((300, "old"), (100, "new"), (200, "middle")):
        add_model(store, name)
        os.utime(store.layout.manifest(parse(name)), (1000 - age, 1000 - age))
    assert [model.name.model for model in store.listing().models] == ["new", "middle", "old"]


def test_a_damaged_entry_never_hides_the_others(store: Store) -> None:
    add_model(store, "good")
    folder = store.layout.manifest(parse("good")).parent.parent
    for name, content in (("empty", b""), ("half", b'{"schemaVersion":2'), ("list", b"[]")):
        (folder / name).mkdir()
        (folder / name / "latest").write_bytes(content)
    (folder / "good" / "folder").mkdir()
    (folder / "good" / "dangling").symlink_to("nowhere")
    (folder / "good" / "bad name").write_bytes(b"{}")
    (folder / "good" / ".DS_Store").write_bytes(b"\0")
    listing = store.listing()
    assert [model.name.model for model in listing.models] == ["good"]
    assert sorted(entry.path.split("/", 3)[3] for entry in listing.damaged) == [
        "empty/latest", "good/bad name", "good/dangling", "good/folder", "half/latest",
        "list/latest",
    ]  # fmt: skip
    with pytest.raises(StoreError, match=r"^half:latest: the manifest is damaged: .*again$"):
        store.model(parse("half"))


def test_newer_ollamas_folder_is_read_too(store: Store) -> None:
    model = add_model(store, "m")
    content = encode_manifest(model.manifest)
    blob = store.layout.blob(Digest.of(content))
    blob.write_bytes(content)
    path = store.root / "manifest-v2" / "ollama.com" / "library" / "newer" / "latest"
    path.parent.mkdir(parents=True)
    path.symlink_to(blob)
    os.utime(blob, (1, 1))
    assert names(store) == ["m:latest", "newer:latest"]
    assert store.model(parse("newer")).manifest == model.manifest
    store.delete(parse("m"))
    assert store.collect_garbage() == []
    assert store.model(parse("newer")).model_path.is_file()


def test_a_copy_shares_its_blobs(store: Store) -> None:
    model = add_model(store, "a")
    before = blob_names(store)
    copy = store.copy(parse("a"), parse("runa/b:x"))
    assert (copy.digest, copy.name.short) == (model.digest, "runa/b:x")
    assert blob_names(store) == before
    store.delete(parse("a"))
    assert blob_names(store) == before
    assert names(store) == ["runa/b:x"]


def test_deleting_a_model_removes_only_its_own_blobs(store: Store) -> None:
    add_model(store, "a", model=b"shared", license=b"of a")
    kept = add_model(store, "b", model=b"shared")
    store.delete(parse("A"))
    assert set(blob_names(store)) == {blob.digest.file_name for blob in kept.manifest.blobs()}
    assert not (store.layout.manifests / "registry.ollama.ai" / "library" / "a").exists()
    with pytest.raises(ModelNotFoundError):
        store.delete(parse("a"))


def test_replacing_a_model_removes_its_own_blobs(store: Store) -> None:
    add_model(store, "m", model=b"old")
    new = add_model(store, "m", model=b"new")
    assert set(blob_names(store)) == {blob.digest.file_name for blob in new.manifest.blobs()}


def test_leased_blobs_are_kept(store: Store) -> None:
    model = add_model(store, "m")
    with store.lease() as lease:
        lease.add(blob.digest for blob in model.manifest.blobs())
        store.delete(parse("m"))
        assert len(blob_names(store)) == 2
        assert store.collect_garbage(0) == []
    assert len(store.collect_garbage(0)) == 2
    assert blob_names(store) == []


def test_new_blobs_and_other_files_are_kept(store: Store) -> None:
    with store.lease() as lease:
        store.blobs.put(b"young", lease)
        old = store.blobs.put(b"old", lease)
    os.utime(store.blobs.path(old), (1, 1))
    other = store.layout.blobs / f"{old.file_name}-partial"
    other.write_bytes(b"Ollama's")
    os.utime(other, (1, 1))
    assert store.collect_garbage() == [old]
    assert blob_names(store) == sorted([Digest.of(b"young").file_name, other.name])


def test_with_a_damaged_manifest_no_blob_is_removed(store: Store) -> None:
    add_model(store, "a")
    add_model(store, "b")
    store.layout.manifest(parse("b")).write_bytes(b"")
    store.delete(parse("a"))
    assert len(blob_names(store)) == 3
    assert store.collect_garbage(0) == []
    store.delete(parse("b"))
    assert len(store.collect_garbage(0)) == 3


def test_files_of_dead_processes_are_removed(store: Store) -> None:
    with store.lease() as lease:
        alive = store.blobs.writer(lease)
        store.layout.incoming.joinpath("tmp-dead").write_bytes(b"x")
        for name in ("tmp-dead", *(p.name for p in store.layout.incoming.iterdir())):
            os.utime(store.layout.incoming / name, (1, 1))
        store.layout.incoming.joinpath("sha256-abandoned").write_bytes(b"x")
        os.utime(store.layout.incoming / "sha256-abandoned", (1, 1))
        store.layout.incoming.joinpath("sha256-resumable").write_bytes(b"x")
        store.collect_garbage()
        left = {path.name for path in store.layout.incoming.iterdir()}
        assert "tmp-dead" not in left
        assert "sha256-abandoned" not in left
        assert len(left) == 2
        alive.close()


@pytest.mark.parametrize("size", [6, None])
def test_a_manifest_with_missing_blobs_is_refused(store: Store, size: int | None) -> None:
    with store.lease() as lease:
        digest = store.blobs.put(b"12345", lease)
    wanted = Digest.of(b"x") if size is None else digest
    layer = Descriptor(Media.MODEL, wanted, size or 5)
    manifest = Manifest(config=Descriptor(CONFIG_TYPE, digest, 5), layers=[layer])
    with pytest.raises(StoreError, match=r"names the missing blob|invalid size"):
        store.write(parse("m"), manifest)
    assert names(store) == []


def test_concurrent_writes_and_deletions_lose_nothing(store: Store) -> None:
    add_model(store, "stays", model=b"shared")

    def work(number: int) -> None:
        for turn in range(10):
            add_model(store, f"m{number}", model=b"shared", license=b"%d" % turn)
            store.copy(parse(f"m{number}"), parse(f"c{number}"))
            store.collect_garbage(0)
            store.delete(parse(f"m{number}"))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert names(store) == ["c0:latest", "c1:latest", "c2:latest", "c3:latest", "stays:latest"]
    for model in store.listing().models:
        assert all(store.blobs.verify(blob.digest) for blob in model.manifest.blobs())
    store.collect_garbage(0)
    assert len(blob_names(store)) == 3
