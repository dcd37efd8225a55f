"""Gemma 4: dense, with embeddings of each layer and shared keys, with experts; text and images.

Full layers rotate the first part of a head only: the file has factors that slow the rest to a
standstill (`rope_freqs`), as llama.cpp's converter writes them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tampu.convert.checkpoint import StoredTensor
from tampu.convert.config import MAX_HEAD_SIZE, Config
from tampu.convert.families.gemma import GEMMA3_NAMES
from tampu.convert.families.gemma4_conformer import (
    CONFORMER,
    SOUND_STEPS,
    conformer_parameters,
    with_softplus,
)
from tampu.convert.families.gemma4_vision import (
    EMBEDDER,
    IMAGE_STEPS,
    PREFIXES,
    SOUND_EMBEDDER,
    TOWER,
    embedder_parameters,
    image_settings,
    sound_parameters,
    tower_parameters,
)
from tampu.convert.family import Family, Parameters, no_variant
from tampu.convert.keys.experts import expert_counts

log = logging.getLogger("tampu")

_LAYER = "model.layers.{}."
_AUDIO = ("model.audio_tower.", "model.embed_audio.")
_EXPERTS = {
    f"{_LAYER}router.proj": "blk.{}.ffn_gate_inp",
    f"{_LAYER}router.scale": "blk.{}.ffn_gate_inp.scale",
    f"{_LAYER}router.per_expert_scale": "blk.{}.ffn_down_exps.scale",
    f"{_LAYER}experts.gate_up_proj": "blk.{}.ffn_gate_up_exps.weight",
    f"{_LAYER}experts.down_proj": "blk.{}.ffn_down_exps.weight",
    f"{_LAYER}pre_feedforward_layernorm_2": "blk.{}.pre_ffw_norm_2",
    f"{_LAYER}post_feedforward_layernorm_1": "blk.{}.post_ffw_norm_1",
    f"{_LAYER}post_feedforward_layernorm_2": "blk.{}.post_ffw_norm_2",
}
_OF_EACH_LAYER = {
    "model.embed_tokens_per_layer": "per_layer_token_embd",
    "model.per_layer_model_projection": "per_layer_model_proj",
    "model.per_layer_projection_norm": "per_layer_proj_norm",
    f"{_LAYER}per_layer_input_gate": "blk.{}.inp_gate",
    f"{_LAYER}per_layer_projection": "blk.{}.proj",
    f"{_LAYER}post_per_layer_input_norm": "blk.{}.post_norm",
}
_NAMES = GEMMA3_NAMES | {f"{_LAYER}layer_scalar": "blk.{}.layer_output_scale.weight"}
_OPTIONAL = {"blk.{}.attn_k", "blk.{}.attn_v", "blk.{}.attn_k_norm"}  # of layers that share them
_ROPES: Mapping[str, Mapping[str, object]] = {
    "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1e6},
    "sliding_attention": {"partial_rotary_factor": 1.0, "rope_theta": 1e4},
}
_DEFAULTS = {
    "vocab_size": 262_144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 512,
    "max_position_embeddings": 131_072, "rms_norm_eps": 1e-6,
}  # fmt: skip
_PERIOD = 6  # of the full layers, where config.json does not list the kinds
_NEVER = 1e30  # a frequency divided by this is 0


def parameters(config: Config) -> Parameters:
    """Return the keys of `gemma4`."""
    config = _text(config)
    config.require("hidden_activation", ("gelu_pytorch_tanh",), "gelu_pytorch_tanh")
    config.require("attention_bias", (False,), default=False)
    config.require("use_bidirectional_attention", (None, "vision"), None)
    has_window = layer_kinds(config)
    width, shared = config.integer("intermediate_size"), _count(config, "num_kv_shared_layers")
    doubled = config.flag("use_double_wide_mlp", default=False) and shared > 0
    wide = [width] * (len(has_window) - shared) + [2 * width] * shared
    head, head_swa = _head_size(config), config.head_size()
    keys: Parameters = {
        "vocab_size": config.integer("vocab_size"),
        "context_length": config.integer("max_position_embeddings"),
        "embedding_length": config.integer("hidden_size"),
        "block_count": len(has_window),
        "feed_forward_length": wide if doubled else width,
        "attention.head_count": config.integer("num_attention_heads"),
        "attention.head_count_kv": _key_heads(config, has_window),
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.key_length_swa": head_swa,
        "attention.value_length_swa": head_swa,
        "attention.layer_norm_rms_epsilon": config.number("rms_norm_eps"),
        "attention.sliding_window": config.integer("sliding_window"),
        "attention.sliding_window_pattern": has_window,
        "attention.shared_kv_layers": shared,
        "embedding_length_per_layer_input": _count(config, "hidden_size_per_layer_input", 256),
        "rope.freq_base": _rope(config, "full_attention").number("rope_theta"),
        "rope.freq_base_swa": _rope(config, "sliding_attention").number("rope_theta"),
        "rope.dimension_count": head,
        "rope.dimension_count_swa": head_swa,
    }
    if "final_logit_softcapping" in config:
        keys["final_logit_softcapping"] = config.number("final_logit_softcapping")
    if config.flag("enable_moe_block", default=False):
        keys |= {
            **expert_counts(config, "num_experts", "top_k_experts"),
            "expert_feed_forward_length": config.integer("moe_intermediate_size"),
        }
    return keys


def layer_kinds(config: Config) -> list[bool]:
    """Return whether each layer has a sliding window."""
    layers, names = config.layers(), ("full_attention", "sliding_attention")
    kinds = config.strings("layer_types")
    kinds = kinds or [names[(index + 1) % _PERIOD > 0] for index in range(layers)]
    if len(kinds) != layers or set(kinds) - set(names):
        reason = f"{kinds[:4]} are not {' or '.join(names)} for {layers} layers"
        raise config.error("layer_types", reason)
    return [kind == names[1] for kind in kinds]


def rope_factors(config: Config) -> dict[str, npt.NDArray[np.float32]]:
    """Return the divisors of the full layers' frequencies: 1, or so large that nothing rotates."""
    config = _text(config)
    pairs = _head_size(config) // 2
    rotated = int(_rope(config, "full_attention").number("partial_rotary_factor") * pairs)
    values = np.where(np.arange(pairs) < rotated, 1.0, _NEVER).astype(np.float32)
    return {"rope_freqs.weight": values}


def without_audio(tensors: Iterable[StoredTensor]) -> Iterable[StoredTensor]:
    """Yield the tensors of text and vision; warn if there are others."""
    has_audio = False
    for tensor in tensors:
        if tensor.name.startswith(_AUDIO):
            has_audio = True
        else:
            yield tensor
    if has_audio:
        log.warning("the encoder of audio is not converted: the file does not take any")


def vision_parameters(config: Config) -> Parameters:
    """Return the keys of `gemma4` with the vision encoder of most models."""
    return parameters(config) | _seeing(config, tower_parameters)


def hearing_parameters(config: Config) -> Parameters:
    """Return the keys of `gemma4` with the encoders of E2B and E4B."""
    return vision_parameters(config) | conformer_parameters(config)


def _hearing(config: Config) -> Family | None:
    """Return the family of a checkpoint with an encoder of sounds; None: it has none."""
    return None if config.get("audio_config") is None else GEMMA4_HEARING


def unified_parameters(config: Config) -> Parameters:
    """Return the keys of `gemma4` with 12B's embeddings of images and sounds."""
    sound = {} if config.get("audio_config") is None else sound_parameters(config)
    return parameters(config) | _seeing(config, embedder_parameters) | sound


def _seeing(config: Config, keys: Callable[[Config], Parameters]) -> Parameters:
    """Return the keys of vision; none for a model whose vision was taken out."""
    if config.get("vision_config") is None:
        return {}
    text = _text(config)
    has_inputs = _count(text, "hidden_size_per_layer_input", 256) > 0
    # Files do not state it: readers know the small models by their inputs of each layer.
    text.require("use_bidirectional_attention", (None if has_inputs else "vision",), None)
    return keys(config)


def _text(config: Config) -> Config:
    text = config.section("text_config") if "text_config" in config else config
    return text.with_defaults(_DEFAULTS)


def _count(config: Config, key: str, default: int = 0) -> int:
    """Return a number that may be zero."""
    return 0 if config.get(key, default) in (0, None) else config.integer(key, default)


def _rope(config: Config, kind: str) -> Config:
    """Return the settings of one kind of layer."""
    key = "rope_parameters"
    settings = config.section(key) if key in config else config.changed({})
    settings = settings.section(kind) if kind in settings else settings.changed({})
    usual = "default" if kind == "sliding_attention" else "proportional"
    settings.require("rope_type", (usual,), usual)
    settings.require("factor", (1.0, None), None)
    settings = settings.with_defaults(_ROPES[kind])
    if kind == "sliding_attention":
        settings.require("partial_rotary_factor", (1.0,), 1.0)
    return settings


def _full_layer(config: Config) -> Config:
    """Return what the full layers have of their own, in the form of transformers 5.23."""
    key = "per_layer_config"
    layers = config.section(key) if config.get(key) else config.changed({})
    first = layer_kinds(config).index(False) if False in layer_kinds(config) else 0
    own = [str(index) for index, has_window in enumerate(layer_kinds(config)) if not has_window]
    for index in own:
        layers.require(index, (None, layers.get(str(first))), None)
    return layers.section(str(first)) if str(first) in layers else layers.changed({})


def _head_size(config: Config) -> int:
    usual = _full_layer(config).integer("head_dim", 512)
    return config.integer("global_head_dim", usual, maximum=MAX_HEAD_SIZE)


def _key_heads(config: Config, has_window: list[bool]) -> int | list[int]:
    """Return the key heads, of each layer if they differ."""
    heads, window = config.integer("num_attention_heads"), config.integer("num_key_value_heads")
    own = window
    if config.flag("attention_k_eq_v", default=False):
        usual = _full_layer(config).integer("num_key_value_heads", window)
        own = config.integer("num_global_key_value_heads", usual)
    if heads % window or heads % own:
        reason = f"{heads} heads are not a multiple of {window} and {own}"
        raise config.error("num_key_value_heads", reason)
    return window if own == window else [window if kind else own for kind in has_window]


GEMMA4 = Family(
    architecture="gemma4",
    checkpoints=("Gemma4ForCausalLM",),
    names=_NAMES | _OF_EACH_LAYER | _EXPERTS,
    optional=frozenset({*_OPTIONAL, *_OF_EACH_LAYER.values(), *_EXPERTS.values()}),
    parameters=parameters,
    tied=True,
    generated=rope_factors,
    gather=without_audio,
    prefixes=PREFIXES,
)
GEMMA4_VISION = replace(
    GEMMA4,
    checkpoints=("Gemma4ForConditionalGeneration",),
    names={**GEMMA4.names, **TOWER.names},
    optional=GEMMA4.optional | TOWER.targets,
    splits=TOWER.splits,
    parameters=vision_parameters,
    image_settings=image_settings,
    image_steps=IMAGE_STEPS,
    adapt=TOWER.require,
    variant=_hearing,
)
GEMMA4_HEARING: Family = replace(
    GEMMA4_VISION,
    checkpoints=(),
    names={**GEMMA4_VISION.names, **CONFORMER.names},
    optional=GEMMA4_VISION.optional | CONFORMER.targets,
    gather=iter,
    splits={**TOWER.splits, **CONFORMER.splits},
    parameters=hearing_parameters,
    transform=with_softplus,
    adapt=lambda keys, names: CONFORMER.require(TOWER.require(keys, names), names),
    sound_steps=SOUND_STEPS,
    variant=no_variant,
)
GEMMA4_UNIFIED = replace(
    GEMMA4,
    checkpoints=("Gemma4UnifiedForConditionalGeneration",),
    names={**GEMMA4.names, **EMBEDDER.names, **SOUND_EMBEDDER},
    optional=GEMMA4.optional | EMBEDDER.targets | frozenset(SOUND_EMBEDDER.values()),
    gather=iter,  # undoes GEMMA4's `without_audio`: 12B's embedding of sound is converted
    splits=EMBEDDER.splits,
    parameters=unified_parameters,
    image_settings=image_settings,
    image_steps=IMAGE_STEPS,
    adapt=EMBEDDER.require,
)
