"""A file of text and encoders, divided as llama.cpp wants it: a text model, and its projector.

Both parts are headers over the same file; `tampu.convert.divided` writes them. They have the names
of llama.cpp, and tensors in the types that its converter gives them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from tampu.gguf_compat.layout import by_name
from tampu.gguf_compat.projectors import Projector, projector_of
from tampu.gguf_compat.tensors import to_f32
from tampu.ml.gguf_file import GGUFFile, TensorInfo
from tampu.ml.metadata import Metadata, Value

_OTHERS = ("v.", "a.", "mm.", "mtp.")  # not of the text
_VISION_KEYS = ("vision.", "audio.", "mm.", "sam.")
_IN_F32 = re.compile(r"[va]\.(sam\.)?(patch_embd|position_embd|pos_embd|class_embd)\b.*")


def has_encoder(file: GGUFFile) -> bool:
    """Return whether a model's file has an encoder of images, or a known one of sounds, in it."""
    return file.metadata.architecture != "clip" and (_sees(file) or _hears(file))


def is_divided(file: GGUFFile) -> bool:
    """Return whether a file has nothing but a text model."""
    return not any(name.startswith(_OTHERS) for name in file.tensors)


def text_part(file: GGUFFile) -> GGUFFile:
    """Return the header of the text model; `file` has llama.cpp's names."""
    prefix = file.metadata.architecture + "."
    keys = tuple(prefix + key for key in _VISION_KEYS)
    metadata = {key: value for key, value in file.metadata.items() if not key.startswith(keys)}
    text = (info for info in file.tensors.values() if not info.name.startswith(_OTHERS))
    return replace(file, metadata=Metadata(metadata), tensors=by_name(text))


def projector_part(file: GGUFFile) -> GGUFFile:
    """Return the header of the encoders, as llama.cpp's mmproj file has it.

    Raises:
        UnsupportedModelError: if the architecture's encoder is not known.
        ModelFileError: for keys or tensors that do not fit.
    """
    projector = projector_of(file.metadata) if _sees(file) else None
    hears = _hears(file)
    held = [info for info in file.tensors.values() if _is_encoders(info.name, hears=hears)]
    tensors = by_name(_stored(projector.tensors(file, held) if projector else held))
    metadata = Metadata(_clip_keys(file, projector))
    return replace(file, metadata=metadata, tensors=tensors, kinds={})


def _sees(file: GGUFFile) -> bool:
    return any(name.startswith("v.") for name in file.tensors)


def _hears(file: GGUFFile) -> bool:
    """Return whether the file has an audio encoder of a stated kind; others are left out."""
    return bool(file.metadata.string("audio.projector_type", ""))


def _is_encoders(name: str, *, hears: bool) -> bool:
    if name.startswith(("a.", "mm.a.")):
        return hears
    return name.startswith(("v.", "mm."))


def _stored(tensors: Iterable[TensorInfo]) -> Iterable[TensorInfo]:
    """Yield the tensors, in F32 those that llama.cpp does not multiply with."""
    for info in tensors:
        is_exact = _IN_F32.fullmatch(info.name) or len(info.shape) == 1
        yield to_f32(info) if is_exact and info.computation is None else info


def _clip_keys(file: GGUFFile, projector: Projector | None) -> dict[str, Value]:
    """Return the keys of the projector's file; each of two encoders has its own kind."""
    hears = _hears(file)
    found = _vision_keys(file, projector) if projector else {}
    if hears:
        heard = _own(file, "audio.")
        found |= {**heard, "has_audio_encoder": True}
        if projector:
            found["vision.projector_type"] = found.pop("projector_type")
        else:
            found["projector_type"] = found.pop("audio.projector_type")
    return {
        "general.architecture": "clip",
        "general.type": "mmproj",
        **{f"clip.{key}": value for key, value in found.items() if value is not None},
    }


def _vision_keys(file: GGUFFile, projector: Projector) -> dict[str, Value | None]:
    found: dict[str, Value | None] = {
        "vision.projection_dim": file.metadata.integer("embedding_length"),
        **projector.defaults,
        **_own(file, "vision."),
        "has_vision_encoder": True,
        "projector_type": projector.kind,
        **projector.keys(file),
    }
    found.pop("vision.projector_type", None)
    return found


def _own(file: GGUFFile, group: str) -> dict[str, Value]:
    """Return the keys of one encoder, without the architecture's prefix."""
    prefix = file.metadata.architecture + "."
    return {
        key.removeprefix(prefix): value
        for key, value in file.metadata.items()
        if key.startswith(prefix + group)
    }
