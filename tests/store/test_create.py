"""Models made of names, files, checkpoints and adapters: what they hold, and what goes wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import handmade_checkpoints as handmade
from support.adapters import write_adapter
from support.full_disk import fail_at_each_write
from support.killing import kill_at_random
from support.stores import files as files_of
from support.tiny_adapter import write_tiny_adapter
from support.tiny_model import Tiny, write_tiny

from tampu.errors import (
    ModelFileError,
    ModelNotFoundError,
    RequestError,
    TampuError,
    UnsupportedModelError,
)
from tampu.ml.gguf import read_gguf
from tampu.store import Digest, Media, ModelName
from tampu.store.create import CreateSpec, Progress, create, creating
from tampu.store.library import Library
from tampu.store.model import StoredModel
from tampu.store.modelfile import modelfile_of, parse_modelfile
from tampu.store.verify import verify_store

WIDE = Tiny(embedding=256, feed_forward=512, head_dim=64, layers=2)
NAME = ModelName.parse("mine")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a Modelfile's files."""
    folder = tmp_path / "work"
    folder.mkdir()
    write_tiny(folder / "m.gguf", WIDE, template="{{ messages }}")
    return folder


def made(
    library: Library, text: str, folder: Path | None = None, name: Any = NAME, **more: Any
) -> tuple[StoredModel, list[Progress]]:
    steps: list[Progress] = []
    spec = CreateSpec(modelfile=parse_modelfile(text), folder=folder, **more)
    model = create(library, name, spec, steps.append)
    return model, steps


def test_a_model_is_created_from_a_file_with_all_instructions(
    library: Library, folder: Path
) -> None:
    text = (
        'FROM m.gguf\nTEMPLATE {{ .Prompt }}\nSYSTEM Be brief.\nPARAMETER stop "<x>"\n'
        "PARAMETER num_ctx 64\nLICENSE MIT\nMESSAGE user Hi\nMESSAGE assistant Hello\n"
        "RENDERER qwen3\nPARSER qwen3\nREQUIRES 0.14.0\n"
    )
    model, steps = made(library, text, folder)
    assert model.model_path.read_bytes() == (folder / "m.gguf").read_bytes()
    assert model.template == "{{ .Prompt }}"
    assert model.system == "Be brief."
    assert model.parameters == {"stop": ["<x>"], "num_ctx": 64}
    assert model.licenses == ["MIT"]
    assert [(one.role, one.content) for one in model.messages] == [
        ("user", "Hi"),
        ("assistant", "Hello"),
    ]
    config = model.config
    assert (config.model_family, config.file_type, config.model_format) == ("llama", "F32", "gguf")
    assert (config.renderer, config.parser, config.requires) == ("qwen3", "qwen3", "0.14.0")
    assert config.context_length == WIDE.context
    assert [steps[-3].status, steps[-1].status] == ["writing manifest", "success"]
    copied = [step for step in steps if step.status == "copying m.gguf"]
    assert copied[-1].completed == copied[-1].total == (folder / "m.gguf").stat().st_size


def test_a_derived_model_shares_blobs_and_overrides_settings(
    library: Library, folder: Path
) -> None:
    made(library, "FROM m.gguf\nSYSTEM a\nPARAMETER seed 1\nPARAMETER top_k 2\nLICENSE MIT", folder)
    child = ModelName.parse("child")
    model, steps = made(
        library, "FROM mine\nPARAMETER top_k 3\nTEMPLATE {{ .Prompt }}\nLICENSE Apache", name=child
    )
    assert model.parameters == {"seed": 1, "top_k": 3}
    assert (model.system, model.template) == ("a", "{{ .Prompt }}")
    assert model.licenses == ["MIT", "Apache"]
    assert any(step.status.startswith("using existing layer") for step in steps)
    assert len(list(library.store.layout.blobs.glob("*"))) < 12
    assert library.store.model(NAME).parameters == {"seed": 1, "top_k": 2}


def test_a_model_can_be_recreated_from_itself(library: Library, folder: Path) -> None:
    made(library, "FROM m.gguf\nSYSTEM a", folder)
    model, _ = made(library, "FROM mine\nSYSTEM b")
    assert model.system == "b"
    assert library.store.model(NAME).system == "b"


def test_an_empty_text_removes_the_inherited_one(library: Library, folder: Path) -> None:
    made(library, "FROM m.gguf\nSYSTEM a", folder)
    model, _ = made(library, "FROM mine\nSYSTEM")
    assert model.system == ""


def test_a_checkpoint_is_converted(library: Library, tmp_path: Path) -> None:
    handmade.write(tmp_path / "tiny")
    model, steps = made(library, "FROM ./tiny", tmp_path)
    assert read_gguf(model.model_path).metadata.architecture == "llama"
    assert "converting model" in {step.status for step in steps}
    assert model.config.file_type == "F32"


def test_a_checkpoint_with_an_unknown_setting_is_converted_where_that_is_allowed(
    library: Library, tmp_path: Path
) -> None:
    handmade.write(tmp_path / "tiny", config=handmade.CONFIG | {"invented_scale": 2.0})
    with pytest.raises(
        UnsupportedModelError, match=r"invented_scale is not known.*--allow-unknown"
    ):
        made(library, "FROM ./tiny", tmp_path)
    model, _ = made(library, "FROM ./tiny", tmp_path, allow_unknown=True)
    assert read_gguf(model.model_path).metadata.architecture == "llama"


@pytest.mark.parametrize("source", ["FROM m.gguf", "FROM mine"])
def test_weights_are_quantized(library: Library, folder: Path, source: str) -> None:
    made(library, "FROM m.gguf", folder)
    model, steps = made(library, source, folder, quantize="q4_k_m")
    assert read_gguf(model.model_path).tensors["blk.0.attn_q.weight"].type.name == "Q4_K"
    assert model.config.file_type == "Q4_K_M"
    assert "quantizing F32 model to Q4_K_M" in {step.status for step in steps}
    again, _ = made(library, "FROM mine", quantize="Q4_K_M")
    assert again.model_path == model.model_path


def test_adapters_are_added(library: Library, folder: Path) -> None:
    name = "model.layers.0.self_attn.v_proj"
    a, b = np.zeros((2, 256), np.float32), np.zeros((128, 2), np.float32)
    write_adapter(folder / "lora", {name: (a, b)})
    model, steps = made(library, "FROM m.gguf\nADAPTER ./lora", folder)
    (path,) = model.paths(Media.ADAPTER)
    assert read_gguf(path).metadata.string("general.type") == "adapter"
    assert "converting adapter" in {step.status for step in steps}
    (folder / "lora.gguf").write_bytes(path.read_bytes())
    same, _ = made(library, "FROM m.gguf\nADAPTER lora.gguf", folder)
    assert same.paths(Media.ADAPTER) == [path]


def test_a_draft_model_is_added_and_kept_in_derived_models(library: Library, folder: Path) -> None:
    small = write_tiny(folder / "small.gguf", Tiny(layers=1))
    model, _ = made(library, "FROM m.gguf\nDRAFT small.gguf", folder)
    (path,) = model.paths(Media.DRAFT)
    assert path.read_bytes() == small.read_bytes()
    derived, _ = made(library, "FROM mine\nSYSTEM Hi", name=ModelName.parse("derived"))
    assert derived.paths(Media.DRAFT) == [path]
    made(library, "FROM small.gguf", folder, name=ModelName.parse("small"))
    named, _ = made(library, "FROM m.gguf\nDRAFT small", folder)
    assert named.paths(Media.DRAFT) == [path]
    assert modelfile_of(library.find("mine")).draft == str(path)


def test_a_draft_model_can_be_uploaded(library: Library, folder: Path) -> None:
    files = folder / "m.gguf", write_tiny(folder / "small.gguf", Tiny(layers=1))
    with library.store.lease() as lease:
        weights, draft = (library.store.blobs.put(path.read_bytes(), lease) for path in files)
        spec = CreateSpec(files={"m.gguf": weights}, draft_files={"small.gguf": draft})
        model = create(library, NAME, spec)
        (path,) = model.paths(Media.DRAFT)
        assert path.read_bytes() == files[1].read_bytes()
        larger = CreateSpec(files={"m.gguf": draft}, draft_files={"small.gguf": weights})
        with pytest.raises(UnsupportedModelError, match="draft_files: it is not smaller than"):
            create(library, NAME, larger)


def test_a_file_can_be_referenced_in_place(library: Library, folder: Path) -> None:
    model, _ = made(library, "FROM m.gguf", folder, in_place=True)
    assert model.model_path == folder / "m.gguf"
    size = (folder / "m.gguf").stat().st_size
    assert sum(path.stat().st_size for path in library.store.layout.blobs.iterdir()) < size


def test_a_model_from_another_store_is_copied(folder: Path, tmp_path: Path) -> None:
    theirs = Library(tmp_path / "theirs")
    made(theirs, "FROM m.gguf\nSYSTEM a", folder)
    both = Library(tmp_path / "models", ollama=[tmp_path / "theirs"])
    before = files_of(theirs.store)
    model, _ = made(both, "FROM mine", name=ModelName.parse("ours"))
    assert model.system == "a"
    assert model.model_path.is_relative_to(tmp_path / "models")
    assert files_of(theirs.store) == before


# -- over the network ------------------------------------------------------------------------------


def upload(library: Library, lease: Any, path: Path) -> Digest:
    return library.store.blobs.put(path.read_bytes(), lease)


def test_a_model_is_created_from_uploaded_blobs(
    library: Library, folder: Path, tmp_path: Path
) -> None:
    with library.store.lease() as lease:
        digest = upload(library, lease, folder / "m.gguf")
        model = create(library, NAME, CreateSpec(files={"any.gguf": digest}))
    assert model.model_path.name == digest.file_name
    checkpoint = handmade.write(tmp_path / "tiny")
    with library.store.lease() as lease:
        files = {path.name: upload(library, lease, path) for path in checkpoint.iterdir()}
        model = create(library, NAME, CreateSpec(files=files))
    assert read_gguf(model.model_path).metadata.architecture == "llama"


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/b", "", "a\0b", ".hidden", "x" * 300])
def test_names_of_uploaded_files_cannot_be_paths(library: Library, name: str) -> None:
    with pytest.raises(RequestError, match="is not a valid file name"):
        create(library, NAME, CreateSpec(files={name: Digest.of(b"")}))


def test_a_missing_blob_is_an_error_that_names_it(library: Library) -> None:
    with pytest.raises(ModelNotFoundError, match="upload it"):
        create(library, NAME, CreateSpec(files={"m.gguf": Digest.of(b"x")}))


def test_remote_clients_cannot_use_paths(library: Library, folder: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        made(library, f"FROM {folder / 'm.gguf'}", None)
    with pytest.raises(ModelNotFoundError):
        made(library, "FROM m.gguf\nADAPTER /etc/passwd", None)


# -- what goes wrong -------------------------------------------------------------------------------


def test_an_adapter_of_another_model_is_refused_and_nothing_kept(
    library: Library, folder: Path
) -> None:
    write_tiny(folder / "other.gguf", Tiny(embedding=64))
    write_tiny_adapter(folder / "foreign.gguf", folder / "other.gguf")
    wide, narrow = np.zeros((2, 64), np.float32), np.zeros((64, 2), np.float32)
    write_adapter(folder / "peft", {"model.layers.0.self_attn.v_proj": (wide, narrow)})
    before = files_of(library.store)
    for adapter in ("foreign.gguf", "./peft"):
        with pytest.raises(ModelFileError, match=r"another model|do not match"):
            made(library, f"FROM m.gguf\nADAPTER {adapter}", folder)
    library.store.collect_garbage(older_than_s=0)
    assert files_of(library.store) == before


BAD = [
    ("FROM nothing", ModelNotFoundError, "'nothing' not found"),
    ("FROM ./nothing", ModelNotFoundError, "no such file"),
    ("FROM nothing.gguf", ModelNotFoundError, "no such file"),
    ("FROM /etc/passwd", ModelFileError, "not a GGUF file"),
    ("FROM /dev/zero", ModelFileError, "not a regular file"),
    ("FROM .", ModelNotFoundError, "is not a checkpoint"),
    ("FROM m.gguf\nFROM m.gguf", RequestError, "more than one source"),
    ("FROM m.gguf\nTEMPLATE {{ if }}", RequestError, "line 1: a value is missing"),
    ("FROM m.gguf\nADAPTER m.gguf", ModelFileError, "is not an adapter"),
    ("FROM m.gguf\nADAPTER nothing", ModelNotFoundError, "no such file"),
    ("FROM m.gguf\nDRAFT m.gguf", UnsupportedModelError, "DRAFT m.gguf: it is not smaller"),
    ("FROM m.gguf\nDRAFT nothing", ModelNotFoundError, "'nothing' not found"),
    ("FROM m.gguf\nDRAFT ./nothing", ModelNotFoundError, "no such file"),
]


@pytest.mark.parametrize(("text", "error", "message"), BAD)
def test_a_failure_leaves_the_store_unchanged(
    library: Library, folder: Path, text: str, error: type[TampuError], message: str
) -> None:
    made(library, "FROM m.gguf\nSYSTEM before", folder)
    before = files_of(library.store)
    with pytest.raises(error, match=message):
        made(library, text, folder)
    library.store.collect_garbage(older_than_s=0)
    assert files_of(library.store) == before


def test_a_missing_adapter_is_found_before_anything_is_read(library: Library, folder: Path) -> None:
    steps: list[Progress] = []
    spec = CreateSpec(modelfile=parse_modelfile("FROM m.gguf\nADAPTER nothing"), folder=folder)
    with pytest.raises(ModelNotFoundError, match="ADAPTER nothing: no such file or folder"):
        create(library, NAME, spec, steps.append)
    assert steps == []


@pytest.mark.parametrize("quantize", ["Q9", "Q4_0"])
def test_impossible_quantizations_are_refused(
    library: Library, folder: Path, quantize: str
) -> None:
    made(library, "FROM m.gguf", folder, quantize="Q8_0")
    with pytest.raises(TampuError, match=r"unknown type|already quantized"):
        made(library, "FROM mine", quantize=quantize)


def test_steps_are_streamed_and_closing_cancels(library: Library, folder: Path) -> None:
    spec = CreateSpec(modelfile=parse_modelfile("FROM m.gguf"), folder=folder)
    assert [step.status for step in creating(library, NAME, spec)][-1] == "success"
    library.store.delete(NAME)
    steps = creating(library, NAME, spec)
    next(steps)
    steps.close()
    bad = CreateSpec(modelfile=parse_modelfile("FROM ./nothing"), folder=folder)
    with pytest.raises(ModelNotFoundError, match="no such file"):
        list(creating(library, NAME, bad))


@pytest.mark.parametrize(
    ("text", "warned"),
    [
        ("PARSER qwen3-coder", []),
        (
            "PARSER ours",
            ["warning: unknown PARSER ours has no effect, the template decides; known: "],
        ),
        ("RENDERER qwen3-coder\nTEMPLATE {{ .Prompt }}", []),
        (
            "RENDERER ours",
            ["warning: RENDERER ours is not known: prompts are made by the"],
        ),
        (
            "RENDERER qwen3-coder\nTEMPLATE <u>{{ .Prompt }}</u>",
            ["warning: RENDERER qwen3-coder is kept, but prompts are made by the TEMPLATE"],
        ),
    ],
)
def test_unknown_renderers_and_parsers_give_warnings(
    library: Library, folder: Path, text: str, warned: list[str]
) -> None:
    _, steps = made(library, f"FROM m.gguf\n{text}", folder)
    found = [step.status for step in steps if step.status.startswith("warning")]
    assert len(found) == len(warned)
    assert all(map(str.startswith, found, warned))


@pytest.mark.slow
@pytest.mark.parametrize("source", ["m.gguf", "checkpoint"])
@pytest.mark.parametrize("quantize", [None, "Q8_0"])
def test_a_full_disk_at_any_write_leaves_the_old_models(
    library: Library, folder: Path, source: str, quantize: str | None
) -> None:
    write_tiny(folder / "m.gguf", Tiny(embedding=32, layers=1))
    handmade.write(folder / "checkpoint")
    store = library.store
    assert store is not None
    made(library, "FROM m.gguf\nSYSTEM other", folder, name=ModelName.parse("other"))
    made(library, "FROM m.gguf\nSYSTEM old", folder)
    text = f"FROM {source}\nSYSTEM new\nLICENSE MIT\nMESSAGE user Hi\nPARAMETER seed 1"

    def check() -> None:
        listing = store.listing()
        assert listing.damaged == []
        assert {model.name.short: model.system for model in listing.models} in (
            {"mine:latest": "old", "other:latest": "other"},
            {"mine:latest": "new", "other:latest": "other"},
        )
        assert verify_store(store).problems == ()
        assert list(store.layout.incoming.iterdir()) == []
        assert list(store.layout.leases.iterdir()) == []
        made(library, "FROM m.gguf\nSYSTEM old", folder)
        store.collect_garbage(0)  # so that the next run writes it all again

    writes = fail_at_each_write(lambda: made(library, text, folder, quantize=quantize), check)
    assert writes > 40
    assert store.model(NAME).system == "new"
    check()


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_a_consistent_store(library: Library, folder: Path) -> None:
    made(library, "FROM m.gguf\nSYSTEM before", folder)
    kill_at_random(
        f"""
        from pathlib import Path
        from tampu.store import ModelName
        from tampu.store.create import CreateSpec, create
        from tampu.store.library import Library
        from tampu.store.modelfile import parse_modelfile
        library = Library(Path({str(library.store.root)!r}))
        name = ModelName.parse("mine")
        spec = CreateSpec(
            modelfile=parse_modelfile("FROM m.gguf\\nSYSTEM after"),
            folder=Path({str(folder)!r}), quantize="Q4_K_M",
        )
        def work():
            create(library, name, spec)
        def check():
            model = library.store.model(name)
            assert model.system in ("before", "after")
            assert model.config.file_type == ("Q4_K_M" if model.system == "after" else "F32")
            for blob in model.manifest.blobs():
                assert library.store.blobs.verify(blob.digest)
            for path in library.store.layout.blobs.iterdir():
                from tampu.store import Digest
                assert library.store.blobs.verify(Digest.parse_file_name(path.name))
            library.store.collect_garbage(older_than_s=0)
        """,
        times=25,
    )
    assert library.store.model(NAME).system == "after"
    assert json.loads(library.store.layout.manifest(NAME).read_text())
