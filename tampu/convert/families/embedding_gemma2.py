"""EmbeddingGemma 2: `gemma-embedding2`, with Gemma 4's encoders of images and sounds."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from tampu.convert.checkpoint import StoredTensor
from tampu.convert.config import Config, read_rope
from tampu.convert.families.gemma import GEMMA3_NAMES
from tampu.convert.families.gemma4_conformer import (
    CONFORMER,
    SOUND_STEPS,
    conformer_parameters,
    with_softplus,
)
from tampu.convert.families.gemma4_vision import (
    IMAGE_STEPS,
    TOWER,
    image_settings,
    tower_parameters,
)
from tampu.convert.family import Family, Parameters
from tampu.errors import UnsupportedModelError

log = logging.getLogger("tampu")

_LAYER = "model.layers.{}"
_ENCODERS = {
    "vision_config": ("vision_tower.", "embed_vision."),
    "audio_config": ("audio_tower.", "embed_audio."),
}
NAMES = GEMMA3_NAMES | {
    f"{_LAYER}.layer_scalar": "blk.{}.layer_output_scale.weight",
    f"{_LAYER}.ple_block.per_layer_input_gate": "blk.{}.inp_gate",
    f"{_LAYER}.ple_block.per_layer_projection": "blk.{}.proj",
    f"{_LAYER}.ple_block.post_per_layer_input_norm": "blk.{}.post_norm",
    "model.ple.per_layer_model_projection": "per_layer_model_proj",
    "model.ple.per_layer_projection_norm": "per_layer_proj_norm",
    "model.embedding_projection": "output",
}
del NAMES["lm_head"]
_PARTS = ("embed_tokens.", "layers.", "norm.", "ple.", "embedding_projection.")


def parameters(config: Config) -> Parameters:
    """Return the keys of `gemma-embedding2`, with those of its encoders."""
    if "text_config" not in config:
        return _text_parameters(config)
    keys = _text_parameters(config.section("text_config"))
    if config.get("vision_config") is not None:
        keys |= tower_parameters(config)
    if config.get("audio_config") is not None:
        keys |= conformer_parameters(config)
    return keys


def _text_parameters(config: Config) -> Parameters:
    config.require("hidden_activation", ("gelu_pytorch_tanh",), "gelu_pytorch_tanh")
    config.require("attention_bias", (False,), default=False)
    kinds, layers = config.strings("layer_types"), config.layers()
    names = ("full_attention", "sliding_attention")
    kinds = kinds or [names[(index + 1) % 6 > 0] for index in range(layers)]
    if len(kinds) != layers or set(kinds) - set(names):
        raise config.error("layer_types", f"{kinds[:4]} are not {' or '.join(names)}")
    heads, sizes = _by_layer(config, layers)
    has_window = [kind == names[1] for kind in kinds]
    wide = {size for size, windowed in zip(sizes, has_window, strict=True) if not windowed}
    narrow = {size for size, windowed in zip(sizes, has_window, strict=True) if windowed}
    if len(wide) != 1 or len(narrow) > 1:
        raise config.error("per_layer_config", f"head sizes {sizes} differ within a kind of layer")
    head, head_swa = wide.pop(), narrow.pop() if narrow else config.integer("head_dim")
    return {
        "vocab_size": config.integer("vocab_size"),
        "context_length": config.integer("max_position_embeddings"),
        "embedding_length": config.integer("hidden_size"),
        "embedding_length_out": config.integer("embedding_dim"),
        "block_count": layers,
        "feed_forward_length": config.integer("intermediate_size"),
        "attention.head_count": config.integer("num_attention_heads"),
        "attention.head_count_kv": heads,
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.key_length_swa": head_swa,
        "attention.value_length_swa": head_swa,
        "attention.layer_norm_rms_epsilon": config.number("rms_norm_eps", 1e-6),
        "attention.sliding_window": 2 * config.integer("sliding_window"),  # on both sides
        "attention.sliding_window_pattern": has_window,
        "attention.causal": False,
        "embedding_length_per_layer_input": config.integer("hidden_size_per_layer_input"),
        "rope.freq_base": _base(config, names[0]),
        "rope.freq_base_swa": _base(config, names[1]),
        "rope.dimension_count": head,
        "rope.dimension_count_swa": head_swa,
    }


def _base(config: Config, layers: str) -> float:
    rope = read_rope(config, layers=layers)
    if rope.kind != "none":
        raise UnsupportedModelError(
            f"{rope.settings.where}: rope type {rope.kind!r} is not supported"
        )
    return rope.base


def _by_layer(config: Config, layers: int) -> tuple[list[int], list[int]]:
    """Return the key heads of each layer, and the sizes of its heads."""
    heads = [config.integer("num_key_value_heads")] * layers
    sizes = [config.integer("head_dim")] * layers
    if "per_layer_config" in config:
        changes = config.section("per_layer_config")
        for index in range(layers):
            if str(index) in changes:
                own = changes.section(str(index))
                heads[index] = own.integer("num_key_value_heads", heads[index])
                sizes[index] = own.integer("head_dim", sizes[index])
    return heads, sizes


def gather(prefixes: tuple[str, ...], tensors: Iterable[StoredTensor]) -> Iterable[StoredTensor]:
    """Yield the tensors without these prefixes; warn if there are others."""
    left_out = 0
    for tensor in tensors:
        if tensor.name.startswith(prefixes):
            left_out += 1
        else:
            yield tensor
    if left_out:
        what = "%d tensors of encoders that config.json does not have are left out"
        log.warning(what, left_out)


def _without_encoders(config: Config) -> Family | None:
    """Return the family of a checkpoint without one of the encoders; None: it has both."""
    absent = [prefixes for key, prefixes in _ENCODERS.items() if config.get(key) is None]
    if not absent:
        return None
    return replace(EMBEDDING_GEMMA2, gather=partial(gather, sum(absent, ())))


EMBEDDING_GEMMA2 = Family(
    architecture="gemma-embedding2",
    checkpoints=("EmbeddingGemma2TextModel", "EmbeddingGemma2Model"),
    names={**NAMES, **TOWER.names, **CONFORMER.names},
    optional=TOWER.targets | CONFORMER.targets,
    splits={**TOWER.splits, **CONFORMER.splits},
    parameters=parameters,
    transform=with_softplus,
    prefixes=(("language_model.", ""), *((part, f"model.{part}") for part in _PARTS)),
    image_settings=image_settings,
    image_steps=IMAGE_STEPS,
    sound_steps=SOUND_STEPS,
    adapt=lambda keys, names: CONFORMER.require(TOWER.require(keys, names), names),
    variant=_without_encoders,
)
