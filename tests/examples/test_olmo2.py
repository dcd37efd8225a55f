"""The example of an architecture in a package of its own is found, bound, and right."""

import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers
from support.checkpoints import draw_weights
from support.laboratory import relative_error, tokens
from support.tiny_model import _add_tokenizer

from tampu import models
from tampu.engine import Engine
from tampu.errors import ModelFileError

EXAMPLE = Path(__file__).parents[2] / "examples" / "tampu-olmo2"
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "post_attention_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_feedforward_layernorm": "post_ffw_norm",
}


@pytest.fixture(scope="module")
def reference():
    config = transformers.Olmo2Config(
        vocab_size=512,
        hidden_size=96,
        intermediate_size=160,
        num_hidden_layers=3,
        num_attention_heads=3,
        num_key_value_heads=1,
        rope_theta=500_000.0,
        pad_token_id=None,
    )
    config._attn_implementation = "eager"
    model = transformers.Olmo2ForCausalLM(config).float().eval()
    draw_weights(model, 1)
    return model


@pytest.fixture
def installed(monkeypatch):
    """Have the package be there as if it were installed."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    named = project["entry-points"]["tampu.models"]
    points = [EntryPoint(name, value, "tampu.models") for name, value in named.items()]
    monkeypatch.setattr(
        models, "entry_points", lambda *, group: points if group == "tampu.models" else []
    )
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield
    sys.modules.pop("tampu_olmo2", None)


def write(path, model, *, without=()):
    writer = gguf.GGUFWriter(path, "olmo2")
    config = model.config
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_context_length(256)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(500_000.0)
    _add_tokenizer(writer, config.vocab_size)
    for name, values in model.state_dict().items():
        stem = name.removesuffix(".weight").removeprefix("model.layers.")
        number, _, part = stem.partition(".")
        stem = f"blk.{number}.{NAMES[part]}" if number.isdigit() else NAMES[stem]
        if stem not in without:
            writer.add_tensor(f"{stem}.weight", values.numpy().astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.usefixtures("installed")
def test_the_plug_in_equals_transformers(reference, tmp_path):
    text = tokens(60)
    with torch.no_grad():
        expected = reference(input_ids=torch.tensor([text])).logits[0].numpy()
    file = write(tmp_path / "olmo2.gguf", reference)
    with Engine.load(file, context=128, threads=1, cache_type="f32") as engine:
        for chunk in (None, 7, 1):
            assert relative_error(engine.logits(text, chunk=chunk), expected) < 1e-5


@pytest.mark.usefixtures("installed")
def test_a_file_without_one_of_its_norms_is_refused(reference, tmp_path):
    file = write(tmp_path / "olmo2.gguf", reference, without={"blk.1.attn_q_norm"})
    with pytest.raises(ModelFileError, match=r"missing from the file: blk\.1\.attn_q_norm\.weight"):
        Engine.load(file, context=128, threads=1)
