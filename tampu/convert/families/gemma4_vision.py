"""Gemma 4's vision encoders: the ViT of most models, and the embedding of large patches of 12B.

All tensors and keys have llama.cpp's names, text and vision in one file. A patch's numbers are
reordered from pixel by pixel to color by color, as a convolution has them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from tampu.convert.checkpoint import Stored
from tampu.convert.config import Config
from tampu.convert.family import Parameters
from tampu.convert.keys.image import ImageSteps
from tampu.convert.lazy_tensor import View
from tampu.convert.vision import ATTENTION, tower_keys, tower_names
from tampu.errors import ModelFileError
from tampu.vision import UNIT, Filter

PREFIXES = (
    ("model.language_model.", "model."),
    ("model.vision_tower.", "vision_tower."),
    ("model.vision_embedder.", "vision_embedder."),
    ("model.embed_vision.", "embed_vision."),
    ("model.embed_audio.", "embed_audio."),
    ("model.audio_tower.", "audio_tower."),
)
_LAYER = "vision_tower.encoder.layers.{}"
_CLIPPED = {
    **ATTENTION,
    "self_attn.o_proj": "attn_out",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_BOUNDS = ("input_min", "input_max", "output_min", "output_max")
_NORMS = {
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "ln1",
    "post_attention_layernorm": "attn_post_norm",
    "pre_feedforward_layernorm": "ln2",
    "post_feedforward_layernorm": "ffn_post_norm",
}
_PROJECTION = {"embed_vision.embedding_projection": "mm.input_projection"}
_BOUND_NAMES = tower_names(
    _LAYER,
    {f"{name}.{bound}": f"{ours}.{bound}" for name, ours in _CLIPPED.items() for bound in _BOUNDS},
)
_STANDARD = {"vision_tower.std_bias": "v.std_bias", "vision_tower.std_scale": "v.std_scale"}


@dataclass(frozen=True)
class Encoder:
    """The tensors of one kind of encoder; a checkpoint without it has none.

    Attributes:
        required: checkpoint's name -> GGUF's, as in `Family.names`.
        splits: as in `Family`.
        others: as `required`, which a checkpoint with the encoder may lack.
        modality: whose keys the encoder has.
    """

    required: Mapping[str, str]
    splits: Mapping[str, Mapping[str, View]]
    others: Mapping[str, str] = field(default_factory=dict)
    modality: str = "vision"

    @property
    def names(self) -> Mapping[str, str]:
        """All names for `Family.names`."""
        return {**self.required, **self.others}

    @property
    def targets(self) -> frozenset[str]:
        """GGUF's names."""
        cut = (name for parts in self.splits.values() for name in parts)
        return frozenset({*self.names.values(), *cut})

    def require(self, parameters: Parameters, names: Collection[str]) -> Parameters:
        """Return the keys; require the tensors of a checkpoint with the encoder.

        Raises:
            ModelFileError: naming those that are missing.
        """
        layers = parameters.get(f"{self.modality}.block_count")
        if not isinstance(layers, int):
            return parameters
        stems = [
            stem.format(index)
            for stem in (*self.required, *self.splits)
            for index in range(layers if "{}" in stem else 1)
        ]
        known = {name.removeprefix("model.").removesuffix(".weight") for name in names}
        missing = [stem for stem in stems if stem.removesuffix(".weight") not in known]
        if missing:
            shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
            raise ModelFileError("checkpoint", f"{len(missing)} tensors are missing: {shown}")
        return parameters


def by_color(values: Stored) -> Stored:
    """Return (outputs, side * side * 3), or one row of it, with the colors slowest."""
    side = math.isqrt(values.shape[-1] // 3)
    rows = values.reshape(-1, side * side, 3).swapaxes(1, 2)
    return rows.reshape(values.shape)


def _kernel(values: Stored) -> Stored:
    """Return a projection of patches as the kernel of a convolution."""
    side = math.isqrt(values.shape[-1] // 3)
    return by_color(values).reshape(-1, 3, side, side)


TOWER = Encoder(
    {
        **tower_names(_LAYER, {f"{name}.linear": ours for name, ours in _CLIPPED.items()} | _NORMS),
        "vision_tower.patch_embedder.position_embedding_table": "v.position_embd.weight",
        **_PROJECTION,
    },
    {"vision_tower.patch_embedder.input_proj.weight": {"v.patch_embd.weight": _kernel}},
    {**_BOUND_NAMES, **_STANDARD},
)
SOUND_EMBEDDER: Mapping[str, str] = {
    "embed_audio.embedding_projection": "mm.a.input_projection",
}
EMBEDDER = Encoder(
    {
        "vision_embedder.patch_ln2": "v.patch_norm.2",
        "vision_embedder.pos_norm": "v.patch_norm.3",
        **_PROJECTION,
    },
    {
        "vision_embedder.patch_ln1.weight": {"v.patch_norm.1.weight": by_color},
        "vision_embedder.patch_ln1.bias": {"v.patch_norm.1.bias": by_color},
        "vision_embedder.patch_dense.weight": {"v.patch_embd.weight": by_color},
        "vision_embedder.patch_dense.bias": {"v.patch_embd.bias": np.asarray},
        "vision_embedder.pos_embedding": {
            "v.position_embd.weight": lambda values: values.swapaxes(0, 1)
        },
    },
)


def tower_parameters(config: Config) -> Parameters:
    """Return the keys of the ViT."""
    vision = config.section("vision_config").with_defaults(_DEFAULTS)
    vision.require("hidden_activation", ("gelu_pytorch_tanh",), "gelu_pytorch_tanh")
    vision.require("attention_bias", (False,), default=False)
    heads = vision.integer("num_attention_heads")
    vision.require("num_key_value_heads", (heads,), heads)
    usual = vision.integer("hidden_size") // heads
    vision.require("head_dim", (usual,), usual)
    patch = vision.integer("patch_size", 16)
    rope = vision.section("rope_parameters") if "rope_parameters" in vision else vision.changed({})
    rope.require("rope_type", ("axial", "default"), "axial")
    return {
        **tower_keys(vision.with_defaults({"image_size": 14 * patch}), image=14 * patch, patch=16),
        "vision.rope.freq_base": rope.number("rope_theta", 100.0),
        **_common(vision, "gemma4v"),
    }


def embedder_parameters(config: Config) -> Parameters:
    """Return the keys of the embedding of large patches, which has no layers."""
    vision = config.section("vision_config")
    width, text = vision.integer("mm_embed_dim", 3840), config.section("text_config")
    return {
        "vision.image_size": 14 * vision.integer("patch_size", 16),
        "vision.patch_size": vision.integer("patch_size", 16),
        "vision.num_channels": 3,
        "vision.block_count": 0,
        "vision.embedding_length": width,
        "vision.feed_forward_length": 0,
        "vision.attention.head_count": 0,
        "vision.projection_dim": text.integer("hidden_size"),
        **_common(vision, "gemma4uv"),
    }


def sound_parameters(config: Config) -> Parameters:
    """Return the keys of the embedding of sound, which has no layers."""
    audio, text = config.section("audio_config"), config.section("text_config")
    frame = audio.integer("audio_embed_dim", 640)
    return {
        "audio.num_mel_bins": frame,  # samples: llama.cpp's key for the features of a frame
        "audio.block_count": 0,
        "audio.embedding_length": frame,
        "audio.feed_forward_length": 0,
        "audio.attention.head_count": 0,
        "audio.attention.layer_norm_epsilon": audio.number("rms_norm_eps", 1e-6),
        "audio.projection_dim": text.integer("hidden_size"),
        "audio.projector_type": "gemma4ua",
    }


def _common(vision: Config, projector: str) -> Parameters:
    return {
        "vision.attention.layer_norm_epsilon": vision.number("rms_norm_eps", 1e-6),
        "vision.projector.scale_factor": vision.integer("pooling_kernel_size", 3),
        "vision.projector_type": projector,
        "vision.image_mean": [0.0, 0.0, 0.0],
        "vision.image_std": [1.0, 1.0, 1.0],
    }


_DEFAULTS = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 16,
    "num_attention_heads": 12,
}  # fmt: skip


# The mean is 0 and the deviation 1, so that `do_normalize` changes nothing.
IMAGE_STEPS = ImageSteps(
    filter=Filter.BICUBIC, normalization=UNIT, others={"do_normalize": (True, False), "size": ()}
)


def image_settings(processor: Config) -> Parameters:
    """Return the key that the image processor's settings state: the most pixels of an image."""
    if "max_soft_tokens" not in processor:
        return {}
    side = processor.integer("patch_size", 16) * processor.integer("pooling_kernel_size", 3)
    return {"vision.max_pixels": processor.integer("max_soft_tokens") * side**2}
