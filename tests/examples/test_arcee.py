"""The example of an architecture in a package of its own is found, bound, converted, and right."""

import json
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import transformers
from safetensors.numpy import load_file, save_file
from support.checkpoints import draw_weights
from support.laboratory import answer, relative_error, tokens
from support.tiny_tokenizers import write_byte_level

import tampu.convert
from tampu import models
from tampu.engine.engine import Engine
from tampu.errors import ModelFileError, UnsupportedModelError

EXAMPLE = Path(__file__).parents[2] / "examples" / "tampu-arcee"


@pytest.fixture(scope="module")
def reference() -> Any:
    config = transformers.ArceeConfig(
        vocab_size=512,
        hidden_size=96,
        intermediate_size=160,
        num_hidden_layers=3,
        num_attention_heads=3,
        num_key_value_heads=1,
        max_position_embeddings=256,
        rope_theta=500_000.0,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=None,
    )
    config._attn_implementation = "eager"
    model = transformers.ArceeForCausalLM(config).float().eval()
    draw_weights(model, 1)
    return model


@pytest.fixture
def checkpoint(reference: Any, tmp_path: Path) -> Path:
    folder = tmp_path / "arcee"
    reference.save_pretrained(folder)
    write_byte_level(folder, "llama3")
    return folder


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the package be there as if it were installed."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    points = [
        EntryPoint(name, value, group)
        for group, named in project["entry-points"].items()
        for name, value in named.items()
    ]

    def of(group: str) -> list[EntryPoint]:
        return [point for point in points if point.group == group]

    for module in (models, tampu.convert):
        monkeypatch.setattr(module, "plug_ins", of)
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "tampu_arcee"]:
        del sys.modules[name]


@pytest.mark.usefixtures("installed")
def test_a_checkpoint_is_converted_and_equals_transformers(
    reference: Any, checkpoint: Path, tmp_path: Path
) -> None:
    text = tokens(60)
    file = tmp_path / "arcee.gguf"
    tampu.convert.convert(checkpoint, file, "F32")
    with Engine.load(file, context=128, threads=1, cache_type="f32") as engine:
        for chunk in (None, 7, 1):
            ours = engine.logits(text, chunk=chunk)
            assert relative_error(ours, answer(reference, text)) < 1e-5


@pytest.mark.usefixtures("installed")
def test_a_checkpoint_without_one_of_its_norms_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    path = checkpoint / "model.safetensors"
    save_file(
        {
            name: values
            for name, values in load_file(path).items()
            if "1.input_layernorm" not in name
        },
        path,
    )
    with pytest.raises(ModelFileError, match=r"missing: blk\.1\.attn_norm\.weight"):
        tampu.convert.convert(checkpoint, tmp_path / "arcee.gguf")


@pytest.mark.usefixtures("installed")
def test_a_setting_that_the_architecture_cannot_do_is_refused(
    checkpoint: Path, tmp_path: Path
) -> None:
    path = checkpoint / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"hidden_act": "gelu"}))
    with pytest.raises(UnsupportedModelError, match="hidden_act"):
        tampu.convert.convert(checkpoint, tmp_path / "arcee.gguf")


def test_without_the_package_neither_is_known(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="'ArceeForCausalLM' is not known"):
        tampu.convert.convert(checkpoint, tmp_path / "arcee.gguf")
    assert "arcee" not in models.architectures()
