"""The parts of architectures: declared weights, projections, norms, RoPE, attention."""

from tampu.ml.rotary import Rope
from tampu.nn.attention import AttentionScale, Heads, SelfAttention, attention, soft_cap
from tampu.nn.cache import Advance, History, LayerCache, Tensors
from tampu.nn.decoder import (
    Decoder,
    GeluFeedForward,
    PreNormDecoder,
    PreNormLayer,
    PreNormOptions,
    SandwichNormDecoder,
    SandwichNormLayer,
    SandwichNormOptions,
    SiluFeedForward,
    Step,
    run_layers,
    select_rows,
)
from tampu.nn.encoder import (
    AxisRope,
    EncoderAttention,
    EncoderLayer,
    GatedEncoderLayer,
    PatchEmbedding,
    attend,
    axis_arrays,
    project_patches,
)
from tampu.nn.experts import ExpertLinear, Gating, GatingFunction, SharedExpert, SparseMoE
from tampu.nn.image import (
    Placeholders,
    PreparedImage,
    RGBImage,
    SpecialTokens,
    VisionModel,
    find_special_tokens,
)
from tampu.nn.linear import Embedding, Linear
from tampu.nn.model import Batch, CacheShape, CrossAttentionInputs, LayerShape, Model, StateShape
from tampu.nn.module import Module, bind, gguf
from tampu.nn.norm import LayerNorm, RMSNorm
from tampu.nn.options import option, option_from, read_options
from tampu.nn.rope import read_rope_scaling

__all__ = [
    "Advance",
    "AttentionScale",
    "AxisRope",
    "Batch",
    "CacheShape",
    "CrossAttentionInputs",
    "Decoder",
    "Embedding",
    "EncoderAttention",
    "EncoderLayer",
    "ExpertLinear",
    "GatedEncoderLayer",
    "Gating",
    "GatingFunction",
    "GeluFeedForward",
    "Heads",
    "History",
    "LayerCache",
    "LayerNorm",
    "LayerShape",
    "Linear",
    "Model",
    "Module",
    "PatchEmbedding",
    "Placeholders",
    "PreNormDecoder",
    "PreNormLayer",
    "PreNormOptions",
    "PreparedImage",
    "RGBImage",
    "RMSNorm",
    "Rope",
    "SandwichNormDecoder",
    "SandwichNormLayer",
    "SandwichNormOptions",
    "SelfAttention",
    "SharedExpert",
    "SiluFeedForward",
    "SparseMoE",
    "SpecialTokens",
    "StateShape",
    "Step",
    "Tensors",
    "VisionModel",
    "attend",
    "attention",
    "axis_arrays",
    "bind",
    "find_special_tokens",
    "gguf",
    "option",
    "option_from",
    "project_patches",
    "read_options",
    "read_rope_scaling",
    "run_layers",
    "select_rows",
    "soft_cap",
]
