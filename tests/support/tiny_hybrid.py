"""A tiny file of `qwen35`: a layer with a gated delta net, and one with gated attention."""

from __future__ import annotations

from typing import Any

import numpy as np
from support.tiny_model import Floats, Tiny, tiny_weights

KEY_HEADS, VALUE_HEADS, FEATURES, KERNEL = 1, 2, 16, 4
_CHANNELS = (2 * KEY_HEADS + VALUE_HEADS) * FEATURES
_KEYS: dict[str, Any] = {
    "ssm.group_count": KEY_HEADS,
    "ssm.time_step_rank": VALUE_HEADS,
    "ssm.state_size": FEATURES,
    "ssm.inner_size": VALUE_HEADS * FEATURES,
    "ssm.conv_kernel": KERNEL,
    "rope.dimension_count": 8,
    "rope.dimension_sections": [2, 1, 1, 0],
}


def tiny_hybrid(**keys: Any) -> Tiny:
    """Return what it is made of, with other keys."""
    return Tiny(architecture="qwen35", layers=2, query_norms=True, keys=_KEYS | keys)


def hybrid_weights() -> dict[str, Floats]:
    """Return the weights by their names in a file."""
    tiny, random = tiny_hybrid(), np.random.default_rng(0)
    inner = VALUE_HEADS * FEATURES

    def drawn(*shape: int) -> Floats:
        return (random.normal(size=shape) / shape[-1] ** 0.5).astype(np.float32)

    delta = {
        "attn_qkv.weight": drawn(_CHANNELS, tiny.embedding),
        "attn_gate.weight": drawn(inner, tiny.embedding),
        "ssm_alpha.weight": drawn(VALUE_HEADS, tiny.embedding),
        "ssm_beta.weight": drawn(VALUE_HEADS, tiny.embedding),
        "ssm_conv1d.weight": drawn(_CHANNELS, KERNEL),
        "ssm_a": -np.exp(drawn(VALUE_HEADS)),
        "ssm_dt.bias": drawn(VALUE_HEADS),
        "ssm_norm.weight": 1 + drawn(FEATURES),
        "ssm_out.weight": drawn(tiny.embedding, inner),
    }
    found = {
        name.replace("ffn_norm", "post_attention_norm"): values
        for name, values in tiny_weights(tiny).items()
        if not name.startswith("blk.0.attn_") or name == "blk.0.attn_norm.weight"
    }
    found |= {f"blk.0.{name}": values for name, values in delta.items()}
    queries = 2 * tiny.heads * tiny.head_dim
    return found | {"blk.1.attn_q.weight": drawn(queries, tiny.embedding)}
