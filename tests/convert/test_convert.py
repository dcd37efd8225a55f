"""Whole conversions of a checkpoint of a few numbers, and the command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support import handmade_checkpoints as handmade
from support.full_disk import fail_at_each_write
from support.killing import kill_at_random

from tampu.cli.app import run
from tampu.cli.convert import convert_command
from tampu.convert import convert
from tampu.convert.families.llama import interleave
from tampu.convert.quantize import quantize_file
from tampu.convert.storage import storage_type
from tampu.errors import ModelFileError, UnsupportedModelError
from tampu.ml.gguf import GGMLType, read_gguf
from tampu.ml.quantize import dequantize


def values(path: Path, name: str) -> npt.NDArray[np.float32]:
    info = read_gguf(path).tensors[name]
    data = path.read_bytes()[info.offset : info.offset + info.size_bytes]
    return dequantize(data, info.type, info.shape)


def converted(folder: Path, type_: str = "F32", **files: Any) -> Path:
    source = handmade.write(folder / "tiny", **files)
    convert(source, folder / "out.gguf", type_)
    return folder / "out.gguf"


def test_the_file_contains_the_weights_by_their_gguf_names(tmp_path: Path) -> None:
    path = converted(tmp_path)
    weights = handmade.weights()
    np.testing.assert_array_equal(
        values(path, "token_embd.weight"), weights["model.embed_tokens.weight"]
    )
    np.testing.assert_array_equal(
        values(path, "blk.0.attn_q.weight"),
        interleave(weights["model.layers.0.self_attn.q_proj.weight"], handmade.HEADS),
    )
    assert len(read_gguf(path).tensors) == len(weights)


def test_the_file_has_the_metadata(tmp_path: Path) -> None:
    metadata = read_gguf(converted(tmp_path, "F16")).metadata
    assert metadata.architecture == "llama"
    assert metadata.string("general.name") == "tiny"
    assert metadata.integer("general.file_type") == 1
    assert metadata.integer("general.quantization_version") == 2
    assert metadata.integer("block_count") == 1
    assert metadata.integer("attention.head_count_kv") == handmade.KV_HEADS
    assert metadata.number("rope.freq_base") == 10_000.0
    assert list(metadata.strings("tokenizer.ggml.tokens"))[:2] == ["a", "b"]


@pytest.mark.parametrize("type_", ["F32", "F16", "BF16", "Q8_0"])
def test_matrices_get_the_requested_type_and_vectors_stay_f32(tmp_path: Path, type_: str) -> None:
    path = converted(tmp_path, type_)
    for name, info in read_gguf(path).tensors.items():
        assert info.type.name == ("F32" if len(info.shape) == 1 else type_), name
    weight = handmade.weights()["model.layers.0.mlp.up_proj.weight"]
    error = np.abs(values(path, "blk.0.ffn_up.weight") - weight).max()
    assert error <= {"F32": 0, "F16": 2e-3, "BF16": 2e-2, "Q8_0": 2e-2}[type_]
    assert error > 0 or type_ == "F32"


def test_a_checkpoint_in_float64_becomes_f32(tmp_path: Path) -> None:
    doubles = {name: value.astype(np.float64) for name, value in handmade.weights().items()}
    convert(handmade.write(tmp_path / "model", tensors=doubles), tmp_path / "out.gguf")
    weight = handmade.weights()["model.layers.0.mlp.up_proj.weight"]
    np.testing.assert_array_equal(values(tmp_path / "out.gguf", "blk.0.ffn_up.weight"), weight)


STORAGE = [
    ("blk.0.attn_q.weight", (64, 64), "BF16", "BF16"),
    ("v.patch_embedding.weight", (64, 3, 14, 14), "F16", "F16"),
    ("v.patch_embedding.weight", (64, 3, 16, 32), "Q8_0", "F16"),
    ("v.patch_embedding.weight", (64, 3, 14, 14), "F32", "F32"),
    ("v.blk.0.attn_q.weight", (64, 64), "BF16", "F16"),
    ("v.blk.0.attn_q.weight", (64, 64), "Q8_0", "F16"),
    ("mm.mm_input_projection.weight", (64, 128), "Q8_0", "F16"),
    ("v.position_embedding.weight", (64, 64), "Q8_0", "F32"),
    ("output_norm.weight", (64,), "Q8_0", "F32"),
]


@pytest.mark.parametrize(("name", "shape", "wanted", "expected"), STORAGE)
def test_exceptions_to_the_requested_type(
    name: str, shape: tuple[int, ...], wanted: str, expected: str
) -> None:
    assert storage_type(name, shape, GGMLType[wanted]).name == expected


def test_a_value_out_of_range_for_f16_is_an_error(tmp_path: Path) -> None:
    tensors = handmade.weights()
    tensors["lm_head.weight"][0, 0] = 1e5
    with pytest.raises(ModelFileError, match=r"output\.weight: 100000 is out of range"):
        converted(tmp_path, "F16", tensors=tensors)
    assert converted(tmp_path, "BF16", tensors=tensors).exists()


def test_a_nan_in_a_quantized_tensor_is_an_error(tmp_path: Path) -> None:
    tensors = handmade.weights()
    tensors["lm_head.weight"][0, 0] = np.nan
    with pytest.raises(ModelFileError, match=r"output\.weight: .*NaN"):
        converted(tmp_path, "Q8_0", tensors=tensors)


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    tensors = handmade.weights()
    tensors["lm_head.weight"][0, 0] = 1e5  # noticed while writing: it is the last tensor
    out = tmp_path / "out.gguf"
    out.write_bytes(b"old")
    with pytest.raises(ModelFileError):
        converted(tmp_path, "F16", tensors=tensors)
    assert out.read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.gguf", "tiny"]


def test_an_unwritable_destination_is_an_error(tmp_path: Path) -> None:
    source = handmade.write(tmp_path / "tiny")
    with pytest.raises(ModelFileError, match="cannot write"):
        convert(source, tmp_path / "nowhere" / "out.gguf")


@pytest.mark.slow
@pytest.mark.parametrize("type_", ["F16", "F32"])
def test_a_full_disk_at_any_write_leaves_the_old_file(tmp_path: Path, type_: str) -> None:
    source = handmade.write(tmp_path / "tiny")
    out, whole = tmp_path / "out.gguf", tmp_path / "whole"
    out.write_bytes(b"old")
    convert(source, whole, type_)

    def check() -> None:
        assert out.read_bytes() in (b"old", whole.read_bytes())
        assert {path.name for path in tmp_path.iterdir()} == {"tiny", "out.gguf", "whole"}

    writes = fail_at_each_write(lambda: convert(source, out, type_, threads=1), check)
    assert writes > len(read_gguf(whole).tensors)
    assert out.read_bytes() == whole.read_bytes()


def test_training_metadata_is_copied(tmp_path: Path) -> None:
    training = {"seed": 7, "commit": "abc", "loss": 0.5, "log": [1, 2]}
    metadata = read_gguf(converted(tmp_path, training=training)).metadata
    assert metadata["tampu.training.seed"] == 7
    assert metadata["tampu.training.commit"] == "abc"
    assert metadata["tampu.training.loss"] == 0.5
    assert "tampu.training.log" not in metadata


def test_given_metadata_overrides(tmp_path: Path) -> None:
    source = handmade.write(tmp_path / "tiny")
    given: dict[str, str | int] = {
        "general.name": "other", "general.license": "mit", "x.big": 2**40, "x.low": -1,
    }  # fmt: skip
    convert(source, tmp_path / "out.gguf", metadata=given)
    metadata = read_gguf(tmp_path / "out.gguf").metadata
    assert metadata.string("general.name") == "other"
    assert metadata.string("general.license") == "mit"
    assert metadata["x.big"] == 2**40
    assert metadata["x.low"] == -1


@pytest.mark.parametrize("names", [["NoneSuchForCausalLM"], [], None, 5, "LlamaForCausalLM"])
def test_an_unknown_architecture_is_an_error(tmp_path: Path, names: Any) -> None:
    config = handmade.CONFIG | {"architectures": names}
    with pytest.raises(UnsupportedModelError, match=r"not known; docs/models.md lists"):
        converted(tmp_path, config=config)


def test_an_unknown_type_is_an_error_that_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="known: F32, F16, BF16, Q8_0"):
        converted(tmp_path, "Q9_0")


@pytest.mark.parametrize("type_", ["Q4_0", "Q4_K_M"])
def test_quantizing_during_conversion_equals_quantizing_the_f32_file(
    tmp_path: Path, type_: str
) -> None:
    direct = converted(tmp_path, type_).read_bytes()
    quantize_file(converted(tmp_path, "F32"), tmp_path / "twice.gguf", type_)
    assert (tmp_path / "twice.gguf").read_bytes() == direct


def test_unchanged_tensors_are_copied(tmp_path: Path) -> None:
    tensors = {name: array.astype(np.float16) for name, array in handmade.weights().items()}
    path = converted(tmp_path, "F16", tensors=tensors)
    np.testing.assert_array_equal(
        values(path, "blk.0.ffn_up.weight"), tensors["model.layers.0.mlp.up_proj.weight"]
    )
    np.testing.assert_array_equal(
        values(path, "blk.0.attn_q.weight"),
        interleave(tensors["model.layers.0.self_attn.q_proj.weight"], handmade.HEADS),
    )


def test_code_in_a_repository_is_not_executed(tmp_path: Path) -> None:
    config = handmade.CONFIG | {"auto_map": {"AutoModel": "modeling.Evil"}}
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "modeling.py").write_text("raise SystemExit('executed')")
    assert converted(tmp_path, config=config).exists()


def test_the_command_writes_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convert_command(handmade.write(tmp_path / "tiny"), tmp_path / "out.gguf", "Q8_0")
    assert read_gguf(tmp_path / "out.gguf").metadata.integer("general.file_type") == 7
    assert "out.gguf" in capsys.readouterr().out


def test_errors_of_the_command_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = handmade.CONFIG | {"architectures": ["NoneSuchForCausalLM"]}
    source = handmade.write(tmp_path / "tiny", config=config)
    assert run(["convert", str(source), "-o", str(tmp_path / "out.gguf")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("Error: architecture 'NoneSuchForCausalLM' is not known")


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_the_old_file_or_the_new(tmp_path: Path) -> None:
    source = handmade.write(tmp_path / "tiny")
    (tmp_path / "made").mkdir()
    made = tmp_path / "made" / "made.gguf"
    kill_at_random(
        f"""
        from pathlib import Path
        from tampu.convert import convert
        import tampu.ml.library
        source, made = Path({str(source)!r}), Path({str(made)!r})
        convert(source, made, "Q8_0", threads=1)
        new = made.read_bytes()
        made.write_bytes(b"old")
        def work():
            convert(source, made, "Q8_0", threads=1)
        def check():
            assert made.read_bytes() in (b"old", new)
            assert len(list(made.parent.iterdir())) <= 2  # and the part of a file, for the next
            made.write_bytes(b"old")
        """,
        times=25,
    )
    assert sorted(path.name for path in made.parent.iterdir()) == ["made.gguf"]


@pytest.mark.parametrize("name", handmade.weights())
@pytest.mark.parametrize("shape", [(), (1,), (3,), (0, 4), (5, 3), (2, 3, 4)])
def test_a_tensor_of_any_shape_is_written_or_refused(
    tmp_path: Path, name: str, shape: tuple[int, ...]
) -> None:
    tensors = handmade.weights() | {name: np.ones(shape, np.float32)}
    refusal, path = "", None
    try:
        path = converted(tmp_path, "F16", tensors=tensors)
    except ModelFileError as error:
        refusal = str(error)
    if path is None:
        assert refusal
        assert "\n" not in refusal
        assert sorted(each.name for each in tmp_path.iterdir()) == ["tiny"]
    else:
        assert 0 not in shape
        read_gguf(path)


@pytest.mark.parametrize("key", ["num_hidden_layers", "head_dim"])
def test_absurd_sizes_are_refused(tmp_path: Path, key: str) -> None:
    config = handmade.CONFIG | {key: 2**31 - 2, "rope_scaling": {"rope_type": "llama3"}}
    with pytest.raises(ModelFileError, match=key):
        converted(tmp_path, config=config, tensors=handmade.weights())
