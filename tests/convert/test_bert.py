"""Encoders as they were saved over the years: old names, and heads that embeddings do not need."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.checkpoints import make_checkpoint

from tampu.convert import convert, plan_conversion
from tampu.ml.gguf import read_gguf


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("bert", tmp_path_factory.mktemp("bert") / "m")


@pytest.fixture(scope="module")
def roberta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("xlm_roberta", tmp_path_factory.mktemp("roberta") / "m")


def renamed(
    source: Path, folder: Path, architecture: str, name: Callable[[str], str], head: str
) -> Path:
    """Copy a checkpoint with other names, and with tensors of a head."""
    folder.mkdir()
    for file in source.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": [architecture]}))
    tensors = {name(key): values for key, values in load_file(source / "model.safetensors").items()}
    extra = {f"{head}.{leaf}": np.ones(4, np.float32) for leaf in ("bias", "dense.weight")}
    save_file(tensors | extra, folder / "model.safetensors", {"format": "pt"})
    return folder


def old(name: str) -> str:
    """Return a name as the first files of BERT have it."""
    name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
    return f"bert.{name.replace('LayerNorm.bias', 'LayerNorm.beta')}"


@pytest.mark.parametrize(
    ("architecture", "head"),
    [
        ("BertForMaskedLM", "cls.predictions"),
        ("BertForPreTraining", "cls.seq_relationship"),
        ("BertModel", "cls.predictions.transform"),
    ],
)
def test_old_names_and_heads_for_masked_tokens_change_nothing(
    bert: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, architecture: str, head: str
) -> None:
    source = renamed(bert, tmp_path / "m", architecture, old, head)
    with caplog.at_level(logging.WARNING, "tampu"):
        convert(source, tmp_path / "old.gguf")
    assert "2 tensors of a head for masked tokens are left out" in caplog.text
    convert(bert, tmp_path / "new.gguf")
    first, second = read_gguf(tmp_path / "old.gguf"), read_gguf(tmp_path / "new.gguf")
    assert first.tensors.keys() == second.tensors.keys()
    for name, info in first.tensors.items():
        one, other = (tmp_path / f"{stem}.gguf" for stem in ("old", "new"))
        ours = one.read_bytes()[info.offset :][: info.size_bytes]
        theirs = other.read_bytes()[second.tensors[name].offset :][: info.size_bytes]
        assert ours == theirs, name


def test_roberta_for_masked_tokens_is_an_embedder(roberta: Path, tmp_path: Path) -> None:
    source = renamed(
        roberta, tmp_path / "m", "XLMRobertaForMaskedLM", lambda name: f"roberta.{name}", "lm_head"
    )
    found = {tensor.name for tensor in plan_conversion(source).tensors}
    assert found == {tensor.name for tensor in plan_conversion(roberta).tensors}
