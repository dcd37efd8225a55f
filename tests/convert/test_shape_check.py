"""Tensors that do not match config.json are one error before anything is written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import handmade_checkpoints as handmade
from support.checkpoints import make_checkpoint

from tampu.convert import convert, plan_conversion
from tampu.convert.shape_check import check_shapes
from tampu.convert.writer import PlannedFile
from tampu.engine.engine import Engine
from tampu.errors import ModelFileError, TampuError
from tampu.ml.gguf import read_gguf

FAMILIES = ("qwen35", "gptoss", "qwen3vl", "bert")


def integers(values: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the places of positive integers, also inside objects."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from integers(value, (*path, key))
        elif type(value) is int and value > 0 and not key.endswith("token_id"):
            yield (*path, key)


def changed(config: dict[str, Any], path: tuple[str, ...], factor: int) -> dict[str, Any]:
    whole: dict[str, Any] = json.loads(json.dumps(config))
    part = whole
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] *= factor
    return whole


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    return make_checkpoint(request.param, tmp_path_factory.mktemp("made") / request.param)


@pytest.mark.slow
@pytest.mark.parametrize("checkpoint", FAMILIES, indirect=True)
def test_an_integer_that_is_not_the_tensors_is_an_error_or_changes_nothing(
    checkpoint: Path, tmp_path: Path
) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    usual = plan_conversion(checkpoint)
    refused = 0
    for path in integers(config):
        copy = tmp_path / ".".join(path)
        copy.mkdir()
        for file in checkpoint.iterdir():
            if file.name != "config.json":
                (copy / file.name).symlink_to(file)
        (copy / "config.json").write_text(json.dumps(changed(config, path, 2)))
        try:
            plan = plan_conversion(copy)
        except TampuError:
            refused += 1
        else:
            shapes = [(tensor.name, tensor.shape) for tensor in plan.tensors]
            assert shapes == [(tensor.name, tensor.shape) for tensor in usual.tensors]
    assert refused >= 3


@pytest.mark.parametrize("checkpoint", ["qwen35"], indirect=True)
def test_the_error_names_the_tensors(checkpoint: Path, tmp_path: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    for file in checkpoint.iterdir():
        if file.name != "config.json":
            (tmp_path / file.name).symlink_to(file)
    wrong = config | {"linear_num_key_heads": 1}
    (tmp_path / "config.json").write_text(json.dumps(wrong))
    with pytest.raises(ModelFileError, match=r"blk\.\d+\..*weight|linear_num_key_heads|config"):
        convert(tmp_path, tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("model.layers.0.mlp.up_proj.weight", (2 * handmade.INNER, handmade.HIDDEN)),
        ("model.layers.0.mlp.down_proj.weight", (handmade.HIDDEN, 2 * handmade.INNER)),
        ("model.layers.0.self_attn.k_proj.weight", (handmade.HEAD, 2 * handmade.HIDDEN)),
        ("model.layers.0.input_layernorm.weight", (2 * handmade.HIDDEN,)),
        ("model.norm.weight", (1,)),
        ("lm_head.weight", (handmade.ROWS, 2 * handmade.HIDDEN)),
    ],
)
def test_a_tensor_of_another_shape_is_refused(
    tmp_path: Path, name: str, shape: tuple[int, ...]
) -> None:
    tensors = handmade.weights() | {name: np.ones(shape, np.float32)}
    source = handmade.write(tmp_path / "model", tensors=tensors)
    with pytest.raises(ModelFileError, match=r"do not match|but llama\.feed_forward_length"):
        convert(source, tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.head_count", 4),
        ("attention.head_count", 3),
        ("attention.head_count_kv", 2),
        ("attention.key_length", 8),
        ("rope.dimension_count", 64),
    ],
)
def test_a_file_whose_metadata_do_not_match_is_refused_when_it_is_loaded(
    tmp_path: Path, key: str, value: int
) -> None:
    source, file = handmade.write(tmp_path / "model"), tmp_path / "wrong.gguf"
    plan = plan_conversion(source)
    PlannedFile({**plan.metadata, f"llama.{key}": value}, plan.tensors).write(file)
    with pytest.raises(ModelFileError) as caught:
        Engine.load(file, threads=1, gpu_layers=0, context=64)
    assert "\n" not in str(caught.value)
    with pytest.raises(ModelFileError):
        check_shapes(read_gguf(file))


@pytest.mark.parametrize("checkpoint", ["qwen35"], indirect=True)
@pytest.mark.parametrize(
    "key", ["group_count", "time_step_rank", "state_size", "inner_size", "conv_kernel"]
)
def test_states_that_the_tensors_do_not_have_are_refused_when_a_file_is_loaded(
    checkpoint: Path, tmp_path: Path, key: str
) -> None:
    plan, file = plan_conversion(checkpoint), tmp_path / "wrong.gguf"
    stated = plan.metadata[f"qwen35.ssm.{key}"]
    assert isinstance(stated, int)
    wrong = {**plan.metadata, f"qwen35.ssm.{key}": 2 * stated}
    PlannedFile(wrong, plan.tensors).write(file)
    with pytest.raises(ModelFileError):
        Engine.load(file, threads=1, gpu_layers=0, context=64)


@pytest.mark.parametrize(
    ("key", "value"), [("intermediate_size", 2 * handmade.INNER), ("hidden_size", 64)]
)
def test_a_size_that_only_other_readers_compare_is_refused(
    tmp_path: Path, key: str, value: int
) -> None:
    source = handmade.write(tmp_path / "model", config=handmade.CONFIG | {key: value})
    with pytest.raises(ModelFileError, match=r"\.weight.*has .* rows|columns"):
        plan_conversion(source)


def test_a_right_file_passes(tmp_path: Path) -> None:
    file = tmp_path / "right.gguf"
    convert(handmade.write(tmp_path / "model"), file)
    check_shapes(read_gguf(file))
