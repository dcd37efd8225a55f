"""llama.cpp as the engine of a worker, through the `xllamacpp` wheel.

It computes and samples. Tokenizing, prompts, stop strings, structured output and detokenizing are
tampu's own, so that both engines give equal results for equal tokens.
"""

from tampu.backends.llamacpp.loading import load_llamacpp
from tampu.backends.llamacpp.model import LlamaModel
from tampu.backends.llamacpp.request import LlamaRequest

__all__ = ["LlamaModel", "LlamaRequest", "load_llamacpp"]
