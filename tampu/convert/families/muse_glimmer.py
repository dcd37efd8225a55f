"""Muse Glimmer: `muse-glimmer`, its text alone; the factor of queries becomes a norm's weight."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from tampu.convert.checkpoint import Stored, StoredTensor, to_float32
from tampu.convert.config import Config
from tampu.convert.families.llama import NAMES
from tampu.convert.families.llama import transform as interleaved
from tampu.convert.family import Family, Parameters, text_parameters
from tampu.convert.windows import window_flags
from tampu.models.muse_glimmer import POST_NORM_EPSILON

log = logging.getLogger("tampu")

_LAYER = "model.layers.{}."
_NORMS = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
_VISION = ("model.vision_tower.", "model.vision_adapter.", "model.vision_projection.")


def parameters(config: Config) -> Parameters:
    """Return the keys of `muse-glimmer`; of pictures nothing is converted."""
    for key in ("out_hidden_size", "projector_hidden_size", "projector_hidden_act"):
        config.get(key)
    text = config.section("text_config")
    text.require("hidden_activation", ("silu",), "silu")
    text.require("post_norm_eps", (POST_NORM_EPSILON,), POST_NORM_EPSILON)
    keys = text_parameters(text, scalings=("none",))
    layers = text.layers()
    windows = window_flags(text, [(layers - 1 - index) % 4 != 0 for index in range(layers)])
    bases = [keys["rope.freq_base"] if has_window else 0 for has_window in windows]
    if text.get("layer_rope_theta", bases) != bases:
        raise text.error("layer_rope_theta", "only layers with a window rotate, with rope_theta")
    return keys | {
        "attention.sliding_window": text.integer("sliding_window", 2048),
        "attention.sliding_window_pattern": windows,
        "logit_scale": text.number("output_multiplier", 0.19611613513818404),
        "final_logit_softcapping": text.number("final_logit_softcapping", 20.0),
    }


def generated(config: Config) -> dict[str, npt.NDArray[np.float32]]:
    """Return the weights of the norms of queries and keys, which checkpoints do not have."""
    text = config.section("text_config")
    size, factor = text.head_size(), text.number("qk_scale_factor", 3.87)
    return {
        f"blk.{layer}.attn_{part}_norm.weight": np.full(size, value, np.float32)
        for layer in range(text.layers())
        for part, value in (("q", factor), ("k", 1.0))
    }


def transform(name: str, values: Stored, parameters: Parameters) -> Stored:
    """Add 1 to the norms of the layers; reorder the rows of queries and keys."""
    if name.startswith("blk.") and name.split(".")[2] in _NORMS:
        return to_float32(values) + 1
    return interleaved(name, values, parameters)


def without_vision(tensors: Iterable[StoredTensor]) -> Iterable[StoredTensor]:
    """Return the tensors of the text model."""
    every = list(tensors)
    text = [tensor for tensor in every if not tensor.name.startswith(_VISION)]
    if len(text) < len(every):
        log.warning("the encoder of images is left out: tampu has none for Muse Glimmer")
    return text


MUSE_GLIMMER = Family(
    architecture="muse-glimmer",
    checkpoints=("MuseGlimmerForConditionalGeneration",),
    names=NAMES
    | {
        _LAYER + "self_attn.gate_proj": "blk.{}.attn_gate",
        _LAYER + "post_attention_layernorm": "blk.{}.post_attention_norm",
        _LAYER + "pre_feedforward_layernorm": "blk.{}.ffn_norm",
        _LAYER + "post_feedforward_layernorm": "blk.{}.post_ffw_norm",
    },
    parameters=parameters,
    prefixes=(("model.language_model.", "model."),),
    transform=transform,
    generated=generated,
    gather=without_vision,
    defaults={"max_position_embeddings": 131_072, "rms_norm_eps": 1e-5},
)
