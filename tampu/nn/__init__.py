"""The parts of architectures: declared weights, projections, norms, RoPE, attention."""

from tampu.nn.attention import attention, soft_cap
from tampu.nn.cache import Advance, History, LayerCache, Tensors
from tampu.nn.decoder import (
    GeluFeedForward,
    Heads,
    SelfAttention,
    SiluFeedForward,
    Temperature,
    only,
    run_layers,
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
from tampu.nn.experts import EachLinear, Experts, Routing, Weighing
from tampu.nn.image import (
    Picture,
    Placeholders,
    PreparedImage,
    Vision,
    VisionModel,
    Words,
    find_tokens,
)
from tampu.nn.linear import Embedding, Linear
from tampu.nn.model import Batch, CacheShape, Crossed, LayerShape, Model, StateShape
from tampu.nn.module import Module, bind, gguf
from tampu.nn.norm import LayerNorm, RMSNorm
from tampu.nn.options import option, option_from, read_options
from tampu.nn.rope import Rope, read_rope_scaling

__all__ = [
    "Advance",
    "AxisRope",
    "Batch",
    "CacheShape",
    "Crossed",
    "EachLinear",
    "Embedding",
    "EncoderAttention",
    "EncoderLayer",
    "Experts",
    "GatedEncoderLayer",
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
    "Picture",
    "Placeholders",
    "PreparedImage",
    "RMSNorm",
    "Rope",
    "Routing",
    "SelfAttention",
    "SiluFeedForward",
    "StateShape",
    "Temperature",
    "Tensors",
    "Vision",
    "VisionModel",
    "Weighing",
    "Words",
    "attend",
    "attention",
    "axis_arrays",
    "bind",
    "find_tokens",
    "gguf",
    "only",
    "option",
    "option_from",
    "project_patches",
    "read_options",
    "read_rope_scaling",
    "run_layers",
    "soft_cap",
]
