"""A model as one file: it comes back the same, and a file that lies is refused."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.stores import add_model, blob_names, names

from tampu.cli import app
from tampu.errors import ModelNameError, ModelNotFoundError, StoreError, TampuError
from tampu.store import Descriptor, Digest, Manifest, Media, ModelName, Store
from tampu.store.archive import NAME, export_model, import_model
from tampu.store.manifests import FILE_PATH
from tampu.store.verify import verify_store

M = ModelName.parse("runa/m:1b")


@pytest.fixture
def other(tmp_path: Path) -> Store:
    return Store(tmp_path / "other")


@pytest.fixture
def exported(store: Store, tmp_path: Path) -> Path:
    add_model(store, "runa/m:1b", model=b"weights" * 1000, license=b"MIT")
    path = tmp_path / "m.tar"
    export_model(store, M, path)
    return path


def repack(path: Path, change: Callable[[Any], Any]) -> None:
    """Write a tar anew with its members as `change` says: a dictionary of name and content."""
    with tarfile.open(path) as archive:
        members = {member.name: archive.extractfile(member).read() for member in archive}
    change(members)
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            header = tarfile.TarInfo(name)
            header.size = len(content)
            archive.addfile(header, io.BytesIO(content))


def test_export_and_import_restore_the_model(store: Store, other: Store, exported: Path) -> None:
    steps = []
    model = import_model(other, exported, progress=lambda done, total: steps.append((done, total)))
    assert model.name.short == "runa/m:1b"
    assert model.digest == store.model(M).digest
    assert verify_store(other).problems == ()
    assert steps[-1] == (model.size_bytes, model.size_bytes)
    assert blob_names(other) == blob_names(store)


def test_an_imported_model_can_be_renamed(other: Store, exported: Path) -> None:
    assert import_model(other, exported, ModelName.parse("n")).name.short == "n:latest"


def test_existing_blobs_are_kept_and_damaged_ones_replaced(store: Store, exported: Path) -> None:
    path = store.model(M).model_path
    path.chmod(0o644)
    path.write_bytes(bytes(7000))
    import_model(store, exported)
    assert verify_store(store).problems == ()


def test_the_archive_is_an_oci_layout(exported: Path) -> None:
    with tarfile.open(exported) as archive:
        index = json.load(archive.extractfile("index.json"))
        assert json.load(archive.extractfile("oci-layout")) == {"imageLayoutVersion": "1.0.0"}
        (entry,) = index["manifests"]
        content = archive.extractfile("blobs/sha256/" + entry["digest"][7:]).read()
    assert entry["annotations"] == {NAME: "registry.ollama.ai/runa/m:1b"}
    assert (str(Digest.of(content)), len(content)) == (entry["digest"], entry["size"])


def test_a_file_outside_the_store_is_exported_without_its_path(
    store: Store, other: Store, tmp_path: Path
) -> None:
    base = add_model(store, "base")
    file = tmp_path / "weights.gguf"
    file.write_bytes(b"elsewhere")
    layer = Descriptor(Media.MODEL, Digest.of(b"elsewhere"), 9, annotations={FILE_PATH: str(file)})
    store.write(M, Manifest(config=base.manifest.config, layers=[layer]))
    export_model(store, M, tmp_path / "m.tar")
    assert str(tmp_path).encode() not in (tmp_path / "m.tar").read_bytes()
    model = import_model(other, tmp_path / "m.tar")
    assert model.model_path.read_bytes() == b"elsewhere"
    assert model.model_path.is_relative_to(other.root)


def test_a_damaged_model_is_not_exported_and_the_old_file_stays(
    store: Store, exported: Path, tmp_path: Path
) -> None:
    before = exported.read_bytes()
    path = store.model(M).model_path
    path.chmod(0o644)
    path.write_bytes(bytes(7000))
    with pytest.raises(StoreError, match="is damaged"):
        export_model(store, M, exported)
    assert exported.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
    with pytest.raises(ModelNotFoundError):
        export_model(store, ModelName.parse("nothing"), exported)
    with pytest.raises(StoreError, match="cannot write"):
        export_model(store, M, tmp_path / "nowhere" / "m.tar")


def weights_of(members: Any) -> Any:
    return next(name for name, content in members.items() if content.startswith(b"weights"))


def entry_of(members: Any) -> Any:
    return json.loads(members["index.json"])["manifests"][0]


def replace_entry(members: Any, **changes: Any) -> None:
    index = json.loads(members["index.json"])
    index["manifests"][0] |= changes
    members["index.json"] = json.dumps(index).encode()


LIES = {
    "no index": lambda m: m.pop("index.json"),
    "index is no JSON": lambda m: m.update({"index.json": b"<"}),
    "index is huge": lambda m: m.update({"index.json": b" " * (2 << 20)}),
    "no models": lambda m: m.update({"index.json": b'{"manifests":[]}'}),
    "no manifest": lambda m: m.pop("blobs/sha256/" + entry_of(m)["digest"][7:]),
    "another manifest": lambda m: m.update({"blobs/sha256/" + entry_of(m)["digest"][7:]: b"{}"}),
    "digest up the tree": lambda m: replace_entry(m, digest="sha256:../../x"),
    "no blob": lambda m: m.pop(weights_of(m)),
    "changed blob": lambda m: m.update({weights_of(m): b"w" * 7000}),
    "cut blob": lambda m: m.update({weights_of(m): b"weights"}),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_inconsistent_archive_is_refused(other: Store, exported: Path, lie: str) -> None:
    add_model(other, "old")
    repack(exported, LIES[lie])
    with pytest.raises((StoreError, ModelNameError)):
        import_model(other, exported)
    assert names(other) == ["old:latest"]
    assert verify_store(other).problems == ()


def test_a_name_is_required_if_the_archive_has_no_valid_one(other: Store, exported: Path) -> None:
    repack(exported, lambda members: replace_entry(members, annotations={NAME: "../x"}))
    with pytest.raises(ModelNameError):
        import_model(other, exported)
    repack(exported, lambda members: replace_entry(members, annotations={}))
    with pytest.raises(ModelNameError, match="contains no model name"):
        import_model(other, exported)
    assert import_model(other, exported, M).name == M


def test_links_and_paths_in_an_archive_are_not_followed(
    other: Store, exported: Path, tmp_path: Path
) -> None:
    repack(exported, lambda members: members.update({"../../escaped": b"x", "/escaped": b"x"}))
    with tarfile.open(exported, "a") as archive:
        link = tarfile.TarInfo("blobs/sha256/" + "a" * 64)
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    import_model(other, exported)
    assert not list(tmp_path.rglob("escaped"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.data())
def test_changed_or_truncated_archives_are_refused_or_import_correctly(
    other: Store, exported: Path, data: st.DataObject
) -> None:
    content = bytearray(exported.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[place] ^= data.draw(st.integers(1, 255))
    else:
        del content[place:]
    changed = exported.with_name("changed.tar")
    changed.write_bytes(content)
    with suppress(TampuError):
        import_model(other, changed)
    assert verify_store(other).problems == ()


def test_the_export_and_import_commands(
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TAMPU_MODELS", str(store.root))
    monkeypatch.chdir(tmp_path)
    add_model(store, "m:1b")
    assert app.run(["export", "m:1b"]) == 0
    assert (tmp_path / "m-1b.tar").is_file()
    assert app.run(["rm", "m:1b"]) == 0
    assert app.run(["import", "m-1b.tar"]) == 0
    assert app.run(["import", "m-1b.tar", "--name", "n"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "imported 'n:latest'"
    assert names(store) == ["m:1b", "n:latest"]
    assert app.run(["import", "nothing.tar"]) == 2
