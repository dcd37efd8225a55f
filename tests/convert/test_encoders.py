"""Checkpoints of encoders whose published form differs from what transformers saves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.checkpoints import make_checkpoint

from tampu.convert import convert, plan_conversion
from tampu.errors import ModelFileError, UnsupportedModelError
from tampu.ml.gguf import read_gguf

_TASKS = ["retrieval.query", "separation"]


def values(path: Path) -> dict[str, bytes]:
    data, tensors = path.read_bytes(), read_gguf(path).tensors
    return {
        name: data[info.offset : info.offset + info.size_bytes] for name, info in tensors.items()
    }


def change(folder: Path, **settings: object) -> None:
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | settings))


def test_jinas_first_checkpoint_gives_the_same_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_checkpoint("jina_v3", tmp_path / "jina_v3")
    convert(folder, tmp_path / "new.gguf", "F32")
    tensors = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        stem, _, leaf = f"roberta.{name}".rpartition(".")
        if tensor.ndim == 2:
            for side, shape in (("A", (4, tensor.shape[1])), ("B", (tensor.shape[0], 4))):
                pair = torch.zeros(len(_TASKS), *shape)
                tensors[f"{stem}.parametrizations.{leaf}.0.lora_{side}"] = pair
            tensors[f"{stem}.parametrizations.{leaf}.original"] = tensor
        else:
            tensors[f"{stem}.{leaf}"] = tensor
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    change(folder, architectures=["XLMRobertaModel"], lora_adaptations=_TASKS, lora_rank=4,
           rotary_emb_base=700.0, rope_parameters=None, position_embedding_type="rotary",
           model_type="xlm-roberta")  # fmt: skip
    convert(folder, tmp_path / "old.gguf", "F32")
    assert "the adapters for retrieval.query, separation are left out" in caplog.text
    new, old = (read_gguf(tmp_path / f"{name}.gguf").metadata for name in ("new", "old"))
    assert dict(new.items()).keys() == dict(old.items()).keys()
    assert new.number("rope.freq_base") == old.number("rope.freq_base") == 700.0
    assert values(tmp_path / "new.gguf") == values(tmp_path / "old.gguf")


def test_a_missing_norm_of_modern_bert_is_an_error(tmp_path: Path) -> None:
    folder = make_checkpoint("modern_bert", tmp_path / "modern_bert")
    tensors = load_file(folder / "model.safetensors")
    del tensors["layers.2.attn_norm.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelFileError, match="2 norms before attention in 4 layers"):
        plan_conversion(folder)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("modern_bert", {"norm_bias": True}, "norm_bias is True"),
        ("modern_bert", {"hidden_activation": "relu"}, "hidden_activation is 'relu'"),
        ("modern_bert", {"layer_types": ["sliding_attention"] * 4}, "no regular pattern"),
        ("nomic_bert", {"prenorm": True}, "prenorm is True"),
        ("nomic_bert", {"rotary_scaling_factor": 2}, "rotary_scaling_factor is 2"),
        ("nomic_bert_moe", {"num_shared_experts": 1}, "num_shared_experts is 1"),
        ("jina_v2", {"feed_forward_type": "reglu"}, "feed_forward_type is 'reglu'"),
        ("jina_v2", {"position_embedding_type": "absolute"}, "position_embedding_type is"),
        ("neo_bert", {"rope": False}, "rope is False"),
        ("eurobert", {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ("distilbert", {"activation": "relu"}, "activation is 'relu'"),
    ],
)
def test_a_setting_that_changes_the_numbers_is_refused(
    tmp_path: Path, name: str, settings: dict[str, object], message: str
) -> None:
    folder = make_checkpoint(name, tmp_path / name)
    change(folder, **settings)
    with pytest.raises(UnsupportedModelError, match=message):
        plan_conversion(folder)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ("pickle", ModelFileError, "2_Dense/model.safetensors: is missing; pickles are not read"),
        (
            "tanh",
            UnsupportedModelError,
            "activation_function is 'torch.nn.modules.activation.Tanh'",
        ),
        ("third", UnsupportedModelError, "3 dense layers, 2 are supported"),
        ("other", ModelFileError, "2_Dense/model.safetensors: scale is not known"),
    ],
)
def test_a_dense_layer_that_cannot_be_carried_is_an_error(
    tmp_path: Path, change: str, error: type[Exception], message: str
) -> None:
    folder = make_checkpoint("embedding_gemma", tmp_path / "embedding_gemma")
    part = folder / "2_Dense"
    if change == "pickle":
        (part / "model.safetensors").rename(part / "pytorch_model.bin")
    elif change == "tanh":
        (part / "config.json").write_text(json.dumps({"in_features": 128, "out_features": 192}))
    elif change == "third":
        modules = json.loads((folder / "modules.json").read_text())
        (folder / "modules.json").write_text(json.dumps([*modules, modules[2]]))
    else:
        save_file({"scale": torch.ones(1)}, part / "model.safetensors")
    with pytest.raises(error, match=message):
        plan_conversion(folder)
