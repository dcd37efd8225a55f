"""All places where models are, and which one wins."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.stores import add_model, files

from tampu.errors import ModelNameError, ModelNotFoundError, StoreError
from tampu.settings.settings import Settings
from tampu.store import ModelName, Store
from tampu.store.library import Library
from tampu.store.local_model import Origin


def put(path: Path, content: bytes = b"GGUF") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home folder with models of each program."""
    hub = tmp_path / ".cache/huggingface/hub/models--runa--m-GGUF"
    blob = put(hub / "blobs" / "abc", b"12345")
    snapshot = hub / "snapshots" / "c0ffee"
    snapshot.mkdir(parents=True)
    (snapshot / "m-Q8_0.gguf").symlink_to(blob)
    (snapshot / "gone-Q4_0.gguf").symlink_to(hub / "blobs" / "gone")
    put(snapshot / "mmproj-m-f16.gguf", b"eyes")
    put(hub / "snapshots" / "old" / "m-Q2_K.gguf")
    put(hub / "refs" / "main", b"c0ffee")
    put(tmp_path / ".cache/huggingface/hub/models--bare/snapshots/x/a.gguf")
    put(tmp_path / ".lmstudio/models/runa/big-GGUF/big-Q4_K_M-00001-of-00002.gguf", b"1")
    put(tmp_path / ".lmstudio/models/runa/big-GGUF/big-Q4_K_M-00002-of-00002.gguf", b"22")
    put(tmp_path / ".lmstudio/models/runa/odd name/x.gguf")
    put(tmp_path / ".local/share/tampu/models/single.gguf")
    put(tmp_path / ".local/share/tampu/models/notes.txt")
    add_model(Store(tmp_path / ".local/share/tampu/models"), "ours")
    add_model(Store(tmp_path / ".ollama/models"), "theirs")
    return tmp_path


@pytest.fixture
def library(home: Path) -> Library:
    library = Library.from_settings(Settings.from_environment({"HOME": str(home)}))
    library._ollama = library._ollama[:1]  # not that of a service on this machine
    return library


def test_the_models_of_all_programs_are_listed(library: Library) -> None:
    assert {model.name: model.origin for model in library.listing().models} == {
        "single:latest": Origin.FILE,
        "ours:latest": Origin.STORE,
        "theirs:latest": Origin.OLLAMA,
        "hf.co/runa/m-GGUF:Q8_0": Origin.HUB,
        "lmstudio/runa/big-GGUF:Q4_K_M": Origin.LM_STUDIO,
        "demo:latest": Origin.BUILT_IN,
        "digits:latest": Origin.BUILT_IN,
        "demo-draft:latest": Origin.BUILT_IN,
    }


def test_the_built_in_models_are_listed_in_their_order(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.gguf" for name in ("b", "a")]
    for time, path in enumerate(paths):
        path.write_bytes(b"x")
        os.utime(path, (time, time))
    listed = Library(built_in=paths).listing().models
    assert [model.name for model in listed] == ["b:latest", "a:latest"]


def test_listing_changes_nothing(library: Library, home: Path) -> None:
    theirs = Store(home / ".ollama/models")
    before = files(theirs)
    library.listing()
    library.find("theirs")
    assert files(theirs) == before


def test_external_models_are_found_by_name(library: Library) -> None:
    model = library.find("HF.co/runa/M-gguf:q8_0")
    assert (model.path.read_bytes(), model.size_bytes) == (b"12345", 9)
    assert [path.read_bytes() for path in model.projector_paths] == [b"eyes"]
    parts = library.find("lmstudio/runa/big-GGUF:Q4_K_M")
    assert [path.read_bytes() for path in parts.files] == [b"1", b"22"]


def test_an_unknown_name_is_an_error_that_lists_the_models(library: Library) -> None:
    with pytest.raises(
        ModelNotFoundError, match=r"there are: demo, demo-draft, digits, hf\.co/runa/m-GGUF:Q8_0"
    ):
        library.find("nothing")
    with pytest.raises(ModelNotFoundError, match="must not contain spaces: 'no name at all'"):
        library.find("no name at all")


def test_the_first_place_wins(library: Library, home: Path) -> None:
    add_model(library.store, "theirs", model=b"ours now")
    assert library.find("theirs").origin is Origin.STORE
    put(home / ".local/share/tampu/models/theirs.gguf")
    assert library.find("theirs").origin is Origin.FILE
    given = put(home / "theirs.gguf")
    assert Library(files=[given]).find("theirs").path == given


def test_a_new_model_does_not_get_the_name_of_a_file_that_would_hide_it(library: Library) -> None:
    files = [model for model in library.listing().models if model.origin is Origin.FILE]
    assert files
    with pytest.raises(ModelNameError, match="comes before models of the store"):
        library.check_new(ModelName.parse(files[0].name.upper()))
    library.check_new(ModelName.parse("unheard-of"))


def test_ollamas_store_is_writable_if_configured(home: Path) -> None:
    settings = Settings.from_environment(
        {"HOME": str(home), "TAMPU_MODELS": str(home / ".ollama/models")}
    )
    library = Library.from_settings(settings)
    assert library.find("theirs").origin is Origin.STORE
    library.store.delete(ModelName.parse("theirs"))


def test_a_damaged_entry_is_reported_and_hides_no_other(library: Library) -> None:
    library.store.layout.manifest(ModelName.parse("ours")).write_bytes(b"{}")
    listing = library.listing()
    assert len(listing.models) == 7
    assert [entry.path for entry in listing.damaged] == [
        "manifests/registry.ollama.ai/library/ours/latest"
    ]
    with pytest.raises(StoreError, match="ours:latest: the manifest is damaged"):
        library.find("ours")


def test_the_id_of_a_file_changes_with_it(library: Library, home: Path) -> None:
    path = home / ".local/share/tampu/models/single.gguf"
    before = library.find("single").id
    assert library.find("single").id == before
    os.utime(path, (1, 1))
    assert library.find("single").id != before


def test_a_library_without_places_is_empty(tmp_path: Path) -> None:
    empty = Library(tmp_path / "a", [tmp_path / "x.gguf"], ollama=[tmp_path / "b"])
    assert empty.listing().models == []
    with pytest.raises(ModelNotFoundError, match=r"\(there are: none\)"):
        empty.find("m")


# Root may read everything, unless these capabilities are dropped; for others it does nothing.
CLOSED = """
import ctypes, os, sys
for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    ctypes.CDLL(None).prctl(24, capability)  # PR_CAPBSET_DROP
os.execv(sys.executable, [sys.executable, "-c", *sys.argv[1:]])
"""
LISTING = """
import sys
from pathlib import Path
from tampu.errors import ModelNotFoundError
from tampu.store.library import Library
top = Path(sys.argv[1])
library = Library(top / "ours", ollama=[top / "closed/models", top / "half"],
                  hub_cache=top / "closed/hub", lm_studio=top / "closed/hub")
print(*sorted(model.name for model in library.listing().models))
try:
    library.find("nothing")
except ModelNotFoundError as error:
    print(error)
"""


def test_a_folder_that_is_closed_to_this_user_stops_nothing(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    put(tmp_path / "ours/m.gguf")
    (tmp_path / "ours/link.gguf").symlink_to(closed / "x.gguf")
    add_model(Store(closed / "models"), "theirs")
    add_model(Store(tmp_path / "half"), "seen")
    put(closed / "hub/models--a--b/snapshots/c/d.gguf")
    inside = tmp_path / "half/manifests/registry.ollama.ai/closed"
    inside.mkdir(mode=0)
    closed.chmod(0)
    command = [sys.executable, "-c", CLOSED, LISTING, str(tmp_path)]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        closed.chmod(0o700)
        inside.chmod(0o700)
    assert (said.stdout, said.stderr) == (
        "m:latest seen:latest\nmodel 'nothing' not found (there are: m, seen)\n",
        "",
    )
