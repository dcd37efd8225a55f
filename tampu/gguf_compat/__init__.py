"""How publishers name what a model file holds, translated to the names of llama.cpp.

Ollama's published files have text, vision and multi-token prediction in one file, under other names
than llama.cpp's converter writes. `ollama.py` describes the differences, one entry for each
architecture; `projectors.py` says how a vision encoder is taken out of a file, `fused.py` and
`latent.py` how fused tensors are divided. The models in `tampu/models` know llama.cpp's names.
"""

from __future__ import annotations

from pathlib import Path

from tampu.gguf_compat.fused import split_fused
from tampu.gguf_compat.latent import split_latent
from tampu.gguf_compat.layout import translate
from tampu.gguf_compat.ollama import LAYOUTS
from tampu.ml.gguf import GGUFFile, read_gguf

__all__ = ["architecture_of", "as_llama_cpp", "as_model", "read_model"]


def read_model(path: str | Path) -> GGUFFile:
    """Read the header of a model file, of any layout, for tampu's own engine.

    Raises:
        ModelNotFoundError: if the file does not exist.
        ModelFileError: if it is not a valid model file.
    """
    return as_model(read_gguf(path))


def as_model(file: GGUFFile) -> GGUFFile:
    """Return a file's header of any layout, as tampu's own engine reads it."""
    return split_latent(split_fused(as_llama_cpp(file)))


def as_llama_cpp(file: GGUFFile) -> GGUFFile:
    """Return a file's header with llama.cpp's names, keys and shapes.

    A vision encoder remains in the file, its keys under the architecture's prefix.

    Raises:
        ModelFileError: naming a key or a tensor from which the translation cannot be made.
    """
    return translate(file, LAYOUTS)


def architecture_of(file: GGUFFile) -> str:
    """Return llama.cpp's name of a file's architecture."""
    stated = file.metadata.architecture
    found = next((each for each in LAYOUTS if each.applies(file)), None)
    return found.becomes(file) or stated if found else stated
