"""llama.cpp as the engine of a model's process, through the `xllamacpp` wheel.

It computes and samples; tokens, prompts, stop strings, the forms of answers and their text are
tampu's own, so that an answer means the same whichever engine gave it.
"""

from tampu.backends.llamacpp.loading import load_llamacpp
from tampu.backends.llamacpp.model import LlamaModel
from tampu.backends.llamacpp.request import LlamaRequest

__all__ = ["LlamaModel", "LlamaRequest", "load_llamacpp"]
