"""The parts of architectures: declared weights, projections, norms, RoPE, attention."""

from tampu.nn.attention import History, LayerCache, attention
from tampu.nn.linear import Embedding, Linear
from tampu.nn.model import Batch, LayerShape, Model
from tampu.nn.module import Module, bind, gguf
from tampu.nn.norm import RMSNorm
from tampu.nn.options import option, option_from, read_options
from tampu.nn.rope import Rope, read_rope_scaling

__all__ = [
    "Batch",
    "Embedding",
    "History",
    "LayerCache",
    "LayerShape",
    "Linear",
    "Model",
    "Module",
    "RMSNorm",
    "Rope",
    "attention",
    "bind",
    "gguf",
    "option",
    "option_from",
    "read_options",
    "read_rope_scaling",
]
