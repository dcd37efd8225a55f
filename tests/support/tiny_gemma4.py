"""A tiny file of `gemma4` with all that its kinds have.

Layer 0 has a sliding window, layer 1 has none, wider heads and values that are its keys; layers 2
and 3 read the keys of these. Every layer has an input of its own, and experts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from support.tiny_model import Floats, Tiny

HEAD, HEAD_SWA, KEY_HEADS, FEATURES, EXPERTS, WIDTH = 32, 16, (2, 1, 2, 1), 8, 4, 24
_KEYS: dict[str, Any] = {
    "attention.head_count_kv": list(KEY_HEADS),
    "attention.key_length": HEAD,
    "attention.key_length_swa": HEAD_SWA,
    "attention.sliding_window": 8,
    "attention.sliding_window_pattern": [True, False, True, False],
    "attention.shared_kv_layers": 2,
    "embedding_length_per_layer_input": FEATURES,
    "expert_count": EXPERTS,
    "expert_used_count": 2,
    "final_logit_softcapping": 10.0,
}


def tiny_gemma4(**keys: Any) -> Tiny:
    """Return what it is made of, with other keys."""
    return Tiny(architecture="gemma4", layers=4, keys=_KEYS | keys)


def gemma4_weights() -> dict[str, Floats]:
    """Return the weights by their names in a file."""
    tiny, random = tiny_gemma4(), np.random.default_rng(0)
    size, hidden = tiny.embedding, tiny.feed_forward

    def drawn(*shape: int) -> Floats:
        return (random.normal(size=shape) / shape[-1] ** 0.5).astype(np.float32)

    def norm(length: int) -> Floats:
        return random.uniform(0.5, 1.5, length).astype(np.float32)

    found = {
        "token_embd.weight": drawn(tiny.vocabulary, size),
        "per_layer_token_embd.weight": drawn(tiny.vocabulary, tiny.layers * FEATURES),
        "per_layer_model_proj.weight": drawn(tiny.layers * FEATURES, size),
        "per_layer_proj_norm.weight": norm(FEATURES),
        "rope_freqs.weight": np.array([1.0] * 4 + [1e30] * 12, np.float32),
        "output_norm.weight": norm(size),
    }
    norms = ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_norm"]
    norms += ["post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2"]
    for layer, heads in enumerate(KEY_HEADS):
        features = HEAD if layer % 2 else HEAD_SWA
        parts = {f"{name}.weight": norm(size) for name in norms} | {
            "attn_q.weight": drawn(tiny.heads * features, size),
            "attn_q_norm.weight": norm(features),
            "attn_output.weight": drawn(size, tiny.heads * features),
            "ffn_gate.weight": drawn(hidden, size),
            "ffn_up.weight": drawn(hidden, size),
            "ffn_down.weight": drawn(size, hidden),
            "inp_gate.weight": drawn(FEATURES, size),
            "proj.weight": drawn(size, FEATURES),
            "layer_output_scale.weight": norm(1),
            "ffn_gate_inp.weight": drawn(EXPERTS, size),
            "ffn_gate_inp.scale": norm(size),
            "ffn_gate_up_exps.weight": drawn(EXPERTS, 2 * WIDTH, size),
            "ffn_down_exps.weight": drawn(EXPERTS, size, WIDTH),
            "ffn_down_exps.scale": norm(EXPERTS),
        }
        if layer < 2:
            parts["attn_k.weight"] = drawn(heads * features, size)
            parts["attn_k_norm.weight"] = norm(features)
        if layer == 0:
            parts["attn_v.weight"] = drawn(heads * features, size)
        found |= {f"blk.{layer}.{name}": values for name, values in parts.items()}
    return found
