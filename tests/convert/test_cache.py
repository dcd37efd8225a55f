"""Checkpoints that are loaded as they are: converted once, and again when they change."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support import handmade_checkpoints as handmade
from support.checkpoints import make_checkpoint

from tampu.convert import convert
from tampu.convert.cache import converted_file, is_checkpoint
from tampu.engine.engine import Engine
from tampu.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from tampu.ml.gguf import read_gguf
from tampu.settings.settings import Settings
from tampu.store.catalog import resolve


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return handmade.write(tmp_path / "tiny")


def made(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "converted").iterdir() if path.suffix == ".gguf")


def test_a_checkpoint_is_converted_once(folder: Path, tmp_path: Path) -> None:
    first = converted_file(folder, tmp_path / "cache")
    written = first.stat().st_mtime_ns
    assert converted_file(folder, tmp_path / "cache") == first
    assert first.stat().st_mtime_ns == written


def test_a_changed_checkpoint_replaces_the_old_file(folder: Path, tmp_path: Path) -> None:
    first = converted_file(folder, tmp_path / "cache")
    os.utime(folder / "config.json", ns=(1, 1))
    second = converted_file(folder, tmp_path / "cache")
    assert second != first
    assert made(tmp_path / "cache") == [second.name]


@pytest.mark.parametrize(
    "name", ["1_Pooling/config.json", "additional_chat_templates/tool_use.jinja"]
)
def test_a_file_in_a_folder_below_belongs_to_the_checkpoint(
    folder: Path, tmp_path: Path, name: str
) -> None:
    file = folder / name
    file.parent.mkdir()
    file.write_text('{"pooling_mode_cls_token": true}')
    first = converted_file(folder, tmp_path / "cache")
    os.utime(file, ns=(1, 1))
    assert converted_file(folder, tmp_path / "cache") != first


def test_folders_with_the_same_name_have_separate_files(folder: Path, tmp_path: Path) -> None:
    other = handmade.write(tmp_path / "other" / "tiny")
    assert converted_file(folder, tmp_path) != converted_file(other, tmp_path)
    assert len(made(tmp_path)) == 2


@pytest.mark.parametrize("type_", ["F32", "F16"])
def test_weights_keep_their_type(tmp_path: Path, type_: str) -> None:
    dtype = {"F32": np.float32, "F16": np.float16}[type_]
    tensors = {name: array.astype(dtype) for name, array in handmade.weights().items()}
    folder = handmade.write(tmp_path / "tiny", tensors=tensors)
    path = converted_file(folder, tmp_path / "cache")
    assert read_gguf(path).tensors["blk.0.attn_q.weight"].type.name == type_


def test_experts_in_mxfp4_stay_in_it(tmp_path: Path) -> None:
    """The file has the checkpoint's four-bit values and is a quarter as large as one of floats."""
    folder = make_checkpoint("gptoss", tmp_path / "gptoss")
    file = folder / "model.safetensors"
    tensors = load_file(file)
    random = np.random.default_rng(1)
    for name in [name for name in tensors if name.endswith("_proj") and "experts" in name]:
        experts, inputs, outputs = tensors.pop(name).shape
        blocks = (experts, outputs, inputs // 32, 16)
        tensors[f"{name}_blocks"] = random.integers(0, 256, blocks, np.uint8)
        tensors[f"{name}_scales"] = random.integers(118, 124, blocks[:3], np.uint8)
    save_file(tensors, file)
    exact, kept = tmp_path / "exact.gguf", converted_file(folder, tmp_path / "cache")
    convert(folder, exact, "F32")
    types = {name: info.type.name for name, info in read_gguf(kept).tensors.items()}
    assert {kind for name, kind in types.items() if name.endswith("_exps.weight")} == {"MXFP4"}
    assert {kind for name, kind in types.items() if "attn" in name} == {"F32"}
    loose: dict[str, Any] = {"context": 64, "threads": 1, "cache_type": "f32", "kernels": "off"}
    with Engine.load(exact, **loose) as floats, Engine.load(kept, **loose) as engine:
        found, wanted = engine.logits([20, 21, 22]), floats.logits([20, 21, 22])
    # ggml rounds the inputs of quantized weights to 8 bits.
    assert np.linalg.norm(found - wanted) < 0.1 * np.linalg.norm(wanted)


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    tensors = handmade.weights()
    del tensors["model.norm.weight"]
    folder = handmade.write(tmp_path / "tiny", tensors=tensors)
    with pytest.raises(ModelFileError, match="output_norm"):
        converted_file(folder, tmp_path / "cache")
    assert made(tmp_path / "cache") == []


def test_an_unwritable_cache_is_an_error(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    with pytest.raises(ModelFileError, match="cannot write"):
        converted_file(folder, tmp_path / "cache")


def test_the_engine_loads_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = handmade.CONFIG | {"bos_token_id": 8, "eos_token_id": 9}
    folder = handmade.write(tmp_path / "tiny", config=config)
    monkeypatch.setenv("TAMPU_CACHE", str(tmp_path / "cache"))
    with Engine.load(folder, context=16, threads=1) as engine:
        assert engine.logits([1, 2]).shape == (2, handmade.ROWS)
    assert made(tmp_path / "cache")


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    assert not is_checkpoint(tmp_path)
    with pytest.raises(ModelNotFoundError, match="is a folder without config"):
        resolve(str(tmp_path))


def test_a_folder_with_an_unknown_setting_is_loaded_where_that_is_allowed(tmp_path: Path) -> None:
    settings = Settings(
        cache=tmp_path / "cache", models=tmp_path / "models", state=tmp_path / "state"
    )
    config = handmade.CONFIG | {"invented_scale": 2.0}
    folder = handmade.write(tmp_path / "tiny", config=config)
    with pytest.raises(UnsupportedModelError, match=r"invented_scale is not known.*allow_unknown"):
        Engine.load(folder, settings=settings)
    assert not made(tmp_path / "cache")
    options: dict[str, Any] = {"threads": 1, "gpu_layers": 0, "settings": settings}
    with Engine.load(folder, allow_unknown=True, **options) as engine:
        assert engine.logits([1, 2]).shape == (2, handmade.ROWS)
    with pytest.raises(UnsupportedModelError):  # the file that lacks it is not taken
        Engine.load(folder, settings=settings)
