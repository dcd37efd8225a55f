"""The files that llama.cpp loads: a model's own, or copies in the layout that llama.cpp knows.

llama.cpp refuses a file with text and vision in one, and knows few of the names that other
publishers use. Such a file is copied, as a text model and its mmproj file, for as long as the model
is loaded.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from tampu.convert.divided import plan_part
from tampu.errors import UnsupportedModelError
from tampu.gguf_compat import as_llama_cpp
from tampu.gguf_compat.divide import has_encoder, is_divided, projector_part, text_part
from tampu.ml.gguf import GGUFFile, read_gguf

log = logging.getLogger("tampu")


@dataclass(frozen=True, slots=True)
class LlamaFiles:
    """What llama.cpp is given.

    Attributes:
        text: the file of the text model.
        projector: the mmproj file; None: the model takes no images.
        is_optional: whether the projector was made of the model's file, which works without.
        no_images: why a model with a vision encoder takes no images; empty if it does.
    """

    text: Path
    projector: Path | None
    is_optional: bool = False
    no_images: str = ""


def llama_files(path: Path, projector: Path | None, folder: Path) -> LlamaFiles:
    """Return the files of a model; copies go to `folder`.

    Raises:
        ModelFileError: for a damaged file.
        DiskFullError: if the copies do not fit.
    """
    stored = read_gguf(path)
    file = as_llama_cpp(stored)
    text = path
    if not is_divided(file) or _differs(file, stored):
        text = _copied(text_part(file), folder / "text.gguf")
    if projector is not None:
        held = read_gguf(projector)
        seen = as_llama_cpp(held)
        if _differs(seen, held):
            projector = _copied(seen, folder / "mmproj.gguf")
        return LlamaFiles(text, projector)
    if not has_encoder(file):
        return LlamaFiles(text, None)
    try:
        part = projector_part(file)
    except UnsupportedModelError as error:
        log.warning("%s: %s; loading its text model alone", path.name, error)
        return LlamaFiles(text, None, no_images=str(error))
    return LlamaFiles(text, _copied(part, folder / "mmproj.gguf"), is_optional=True)


def _copied(part: GGUFFile, to: Path) -> Path:
    plan = plan_part(part)
    log.info("copying %d MiB of %s for llama.cpp", plan.size_bytes // 2**20, part.path.name)
    plan.write(to)
    return to


def _differs(one: GGUFFile, other: GGUFFile) -> bool:
    """Return whether a translation has changed anything; what it keeps, it keeps as it is."""
    return (
        one.tensors != other.tensors
        or set(one.metadata) != set(other.metadata)
        or any(one.metadata[key] is not other.metadata[key] for key in one.metadata)
    )
