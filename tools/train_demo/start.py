"""What a run can take over from a model file of an earlier one: vocabulary and weights.

A draft model has to have the vocabulary of its target, and learns faster from its weights.
"""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer

from tampu.ml.gguf import read_gguf
from tampu.ml.quantize import dequantize
from tools.train_demo import model, tokenizer

_NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}  # fmt: skip


def vocabulary(path: Path) -> Tokenizer:
    """Return the tokenizer of a model file that this script made."""
    return tokenizer.of_pieces([*read_gguf(path).metadata.strings("tokenizer.ggml.tokens")])


def copy_weights(path: Path, text: model.Text) -> None:
    """Start with the file's embeddings, its last norm, and layers at even distances of its own.

    Raises:
        RuntimeError: if the layers of the file have another shape.
    """
    file = read_gguf(path)
    data = path.read_bytes()
    theirs, ours = file.metadata.integer("block_count"), len(text.layers)
    named = {"token_embd": "embed_tokens", "output_norm": "norm"}
    for own in range(ours):
        index = round(own * (theirs - 1) / max(ours - 1, 1))
        for name, attribute in _NAMES.items():
            named[f"blk.{index}.{name}"] = f"layers.{own}.{attribute}"
    state = {}
    for name, attribute in named.items():
        info = file.tensors[f"{name}.weight"]
        stored = data[info.offset : info.offset + info.size_bytes]
        values = torch.from_numpy(dequantize(stored, info.type, info.shape))
        state[f"{attribute}.weight"] = values - 1 if "norm" in name else values  # a gain, in files
    text.load_state_dict(state)
