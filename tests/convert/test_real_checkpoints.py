"""Checkpoints as people save and change them: what transformers reads, the file has too."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support import handmade_checkpoints as handmade
from support.checkpoints import make_checkpoint

from tampu.cli.app import run
from tampu.convert import convert, plan_conversion
from tampu.convert.quantize import quantize_file
from tampu.engine.engine import Engine
from tampu.errors import ModelFileError, RequestError, UnsupportedModelError
from tampu.ml.gguf import read_gguf

TOKENS = [9, 40, 77, 300, 12, 410, 33, 200, 51, 101] * 8


def change(folder: Path, **values: Any) -> None:
    config = json.loads((folder / "config.json").read_text()) | values
    (folder / "config.json").write_text(json.dumps(config))


def change_tensors(folder: Path, edit: Callable[[handmade.Arrays], handmade.Arrays]) -> None:
    path = folder / "model.safetensors"
    tensors = {name: values.copy() for name, values in load_file(path).items()}
    save_file(edit(tensors), path, {"format": "pt"})


def is_equal_to_transformers(folder: Path, architecture: str) -> bool:
    """Return whether the logits of a converted checkpoint are those of transformers."""
    import torch
    import transformers

    reference = getattr(transformers, architecture).from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        expected = reference(torch.tensor([TOKENS])).logits[0].numpy()
    out = folder.parent / f"{folder.name}.gguf"
    convert(folder, out, "F32")
    with Engine.load(out, context=256, threads=1, cache_type="f32") as engine:
        ours = engine.logits(TOKENS)
    return bool(np.linalg.norm(ours - expected) < 1e-3 * np.linalg.norm(expected))


LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
CONFIGS: dict[str, dict[str, Any]] = {
    "both keys: rope_scaling counts": {
        "rope_scaling": LINEAR,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
    },
    "both keys, a base in each place": {
        "rope_scaling": LINEAR | {"rope_theta": 500.0},
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
        "rope_theta": 2000.0,
    },
    "an empty rope_scaling": {
        "rope_scaling": {},
        "rope_parameters": LINEAR | {"rope_theta": 1000.0},
    },
    "a base within rope_scaling only": {
        "rope_parameters": None,
        "rope_scaling": LINEAR | {"rope_theta": 1000.0},
    },
    "a base beside rope_parameters": {"rope_theta": 1000.0, "rope_parameters": LINEAR},
    "YaRN without its original length": {
        "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1000.0},
        "max_position_embeddings": 96,
    },
    "llama3 without its original length": {
        "rope_parameters": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "rope_theta": 1000.0,
        },
        "max_position_embeddings": 96,
    },
    "no architectures": {"architectures": None},
    "no max_position_embeddings": {"max_position_embeddings": None},
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llama", tmp_path_factory.mktemp("llama") / "m")


def copied(source: Path, target: Path) -> Path:
    target.mkdir()
    for path in source.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target


@pytest.mark.parametrize("case", CONFIGS)
def test_settings_mean_what_they_mean_to_transformers(
    llama: Path, tmp_path: Path, case: str
) -> None:
    folder = copied(llama, tmp_path / "m")
    change(folder, **CONFIGS[case])
    if CONFIGS[case].get("max_position_embeddings", 0) is None:
        config = json.loads((folder / "config.json").read_text())
        del config["max_position_embeddings"]
        (folder / "config.json").write_text(json.dumps(config))
    assert is_equal_to_transformers(folder, "LlamaForCausalLM")


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("qwen3vl", "Qwen3VLForConditionalGeneration"),
        ("qwen25vl", "Qwen2_5_VLForConditionalGeneration"),
    ],
)
def test_yarn_beside_positions_of_several_numbers(
    tmp_path: Path, name: str, architecture: str
) -> None:
    folder = make_checkpoint(name, tmp_path / "m")
    text = json.loads((folder / "config.json").read_text())["text_config"]
    change(folder, text_config=text | {"rope_parameters": text["rope_parameters"] | YARN})
    assert is_equal_to_transformers(folder, architecture)


def test_an_output_that_differs_from_a_tied_embedding_is_kept(
    llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = copied(llama, tmp_path / "m")
    change(folder, tie_word_embeddings=True)
    with caplog.at_level(logging.WARNING, "tampu"):
        assert is_equal_to_transformers(folder, "LlamaForCausalLM")
    assert "lm_head.weight differs from model.embed_tokens.weight" in caplog.text
    assert "output.weight" in read_gguf(tmp_path / "m.gguf").tensors


@pytest.mark.parametrize("case", ["equal", "only the output", "only the embedding"])
def test_a_tied_output_is_written_once(llama: Path, tmp_path: Path, case: str) -> None:
    folder = copied(llama, tmp_path / "m")
    change(folder, tie_word_embeddings=True)

    def edit(tensors: handmade.Arrays) -> handmade.Arrays:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
        if case != "equal":
            left_out = "lm_head" if case == "only the embedding" else "model.embed_tokens"
            del tensors[f"{left_out}.weight"]
        return tensors

    change_tensors(folder, edit)
    assert is_equal_to_transformers(folder, "LlamaForCausalLM")
    assert "output.weight" not in read_gguf(tmp_path / "m.gguf").tensors


def without_prefix(tensors: handmade.Arrays) -> handmade.Arrays:
    return {name.removeprefix("model."): values for name, values in tensors.items()}


@pytest.mark.parametrize("is_tied", [True, False])
def test_an_embedder_may_lack_the_prefix_and_the_output(
    llama: Path, tmp_path: Path, *, is_tied: bool
) -> None:
    whole, bare = copied(llama, tmp_path / "whole"), copied(llama, tmp_path / "bare")
    change(bare, tie_word_embeddings=is_tied)
    change_tensors(bare, lambda tensors: without_prefix(tensors | {}))
    change_tensors(bare, lambda tensors: {k: v for k, v in tensors.items() if "lm_head" not in k})
    (bare / "1_Pooling").mkdir()
    (bare / "1_Pooling/config.json").write_text('{"pooling_mode_lasttoken": true}')
    for folder in (whole, bare):
        convert(folder, tmp_path / f"{folder.name}.gguf", "F32")
    found = read_gguf(tmp_path / "bare.gguf")
    assert set(found.tensors) == set(read_gguf(tmp_path / "whole.gguf").tensors) - {"output.weight"}
    assert found.metadata.integer("pooling_type") == 3


def test_the_text_model_of_gemma_3_alone_is_an_embedder(tmp_path: Path) -> None:
    folder = make_checkpoint("gemma3_text", tmp_path / "m")
    whole = {tensor.name for tensor in plan_conversion(folder).tensors}
    change(folder, architectures=["Gemma3TextModel"])
    change_tensors(folder, without_prefix)
    assert {tensor.name for tensor in plan_conversion(folder).tensors} == whole


def test_weights_in_double_precision_are_read(llama: Path, tmp_path: Path) -> None:
    folder = copied(llama, tmp_path / "m")
    change_tensors(folder, lambda tensors: {k: v.astype(np.float64) for k, v in tensors.items()})
    assert is_equal_to_transformers(folder, "LlamaForCausalLM")


def test_a_single_file_counts_before_an_index(tmp_path: Path) -> None:
    folder = handmade.write(tmp_path / "m")
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"x": "model-00001-of-00002.safetensors"}})
    )
    convert(folder, tmp_path / "out.gguf")


def test_templates_in_files_of_their_own_are_kept_by_name(tmp_path: Path) -> None:
    folder = handmade.write(tmp_path / "m")
    (folder / "chat_template.jinja").write_text("A")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates/tool_use.jinja").write_text("B")
    (folder / "additional_chat_templates/rag.jinja").write_text("C")
    convert(folder, tmp_path / "out.gguf")
    keys = read_gguf(tmp_path / "out.gguf").metadata
    assert keys["tokenizer.chat_template"] == "A"
    assert keys.strings("tokenizer.chat_templates") == ["rag", "tool_use"]
    assert keys["tokenizer.chat_template.tool_use"] == "B"
    (folder / "additional_chat_templates/not-a-name.jinja").write_text("D")
    with pytest.raises(ModelFileError, match=r"additional_chat_templates/not-a-name\.jinja"):
        convert(folder, tmp_path / "out.gguf")


@pytest.mark.parametrize(
    ("modules", "settings", "expected"),
    [
        (["Transformer", "Pooling", "Normalize"], {"pooling_mode_cls_token": True}, 2),
        (["Transformer", "Pooling"], {"pooling_mode": "lasttoken", "include_prompt": True}, 3),
        (["Transformer", "Pooling", "Dense"], {"pooling_mode_mean_tokens": True}, "Dense"),
        (["Transformer", "Pooling"], {"pooling_mode": "max"}, "max"),
        (["Transformer", "WordWeights"], {"pooling_mode_mean_tokens": True}, "WordWeights"),
        (
            ["Transformer", "Pooling"],
            {"pooling_mode_mean_tokens": True, "include_prompt": False},
            "include_prompt",
        ),
    ],
)
def test_modules_of_sentence_transformers_are_carried_or_refused_by_name(
    tmp_path: Path, modules: list[str], settings: dict[str, Any], expected: int | str
) -> None:
    folder = handmade.write(tmp_path / "m")
    listed = [
        {"type": f"sentence_transformers.models.{kind}", "path": f"{index}_{kind}" if index else ""}
        for index, kind in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps(settings))
    if isinstance(expected, str):
        with pytest.raises(UnsupportedModelError, match=expected):
            convert(folder, tmp_path / "out.gguf")
    else:
        convert(folder, tmp_path / "out.gguf")
        assert read_gguf(tmp_path / "out.gguf").metadata.integer("pooling_type") == expected


def test_a_pattern_of_types_that_matches_nothing_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, plain, out = handmade.write(tmp_path / "m"), tmp_path / "f.gguf", tmp_path / "q.gguf"
    convert(folder, plain, "F32")
    arguments = ["quantize", str(plain), str(out), "Q8_0", "--tensor-type"]
    assert run([*arguments, "fnf_down=F16"]) != 0
    assert "'fnf_down' matches no matrix of the model; similar names: ffn_down" in (
        capsys.readouterr().err
    )
    assert not out.exists()
    assert run([*arguments, "ffn_down=Q6_K"]) == 0
    assert "blk.0.ffn_down.weight is Q8_0, not Q6_K: its rows have 64 values" in (
        capsys.readouterr().out
    )
    assert read_gguf(out).tensors["blk.0.ffn_down.weight"].type.name == "Q8_0"


def test_an_allowed_unknown_key_is_an_option_of_the_command(tmp_path: Path) -> None:
    folder = handmade.write(tmp_path / "m", config=handmade.CONFIG | {"invented": 1})
    arguments = ["convert", str(folder), "-o", str(tmp_path / "out.gguf")]
    assert run(arguments) != 0
    assert not (tmp_path / "out.gguf").exists()
    assert run([*arguments, "--allow-unknown"]) == 0
    with pytest.raises(RequestError):
        quantize_file(tmp_path / "out.gguf", tmp_path / "out.gguf", "F16")
