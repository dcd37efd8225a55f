"""The parts of architectures: declared weights, projections, norms, RoPE, attention."""

from tampu.nn.attention import History, LayerCache, attention
from tampu.nn.image import Picture, Placeholders, PreparedImage, Vision
from tampu.nn.linear import Embedding, Linear
from tampu.nn.model import Batch, Crossed, LayerShape, Model
from tampu.nn.module import Module, bind, gguf
from tampu.nn.norm import RMSNorm
from tampu.nn.options import option, option_from, read_options
from tampu.nn.rope import Rope, read_rope_scaling

__all__ = [
    "Batch",
    "Crossed",
    "Embedding",
    "History",
    "LayerCache",
    "LayerShape",
    "Linear",
    "Model",
    "Module",
    "Picture",
    "Placeholders",
    "PreparedImage",
    "RMSNorm",
    "Rope",
    "Vision",
    "attention",
    "bind",
    "gguf",
    "option",
    "option_from",
    "read_options",
    "read_rope_scaling",
]
