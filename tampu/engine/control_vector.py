"""Control vectors: a direction for each layer, in the GGUF files of llama.cpp's tools.

A file has a tensor `direction.N` for layer N, F32, (features,), which is added to what the layer
returns. Layer 0 has none (source: llama.cpp's docs of cvector-generator, and repeng's exports).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tampu.convert.writer import PlannedFile, TensorToWrite
from tampu.engine.arguments import FilePath, kind_of
from tampu.errors import ModelFileError, RequestError
from tampu.ml.gguf import read_gguf
from tampu.ml.types import GGMLType
from tampu.nn.points import LAYER_OUTPUTS
from tampu.runner.steering_options import Steering, Vector

Layers: TypeAlias = tuple[int, int]
"""The first and the last layer."""

_KIND = "controlvector"
_PREFIX = "direction."
_PATH = kind_of(FilePath)


class ControlVector:
    """A direction for each of some layers.

    Attributes:
        directions: by layer, from 1, F32, (features,) each.
        model_hint: the architecture that it was made for; "": unknown.
    """

    def __init__(self, directions: Mapping[int, Vector], model_hint: str = "") -> None:
        """Take over directions of one length.

        Raises:
            RequestError: if there is none, for several lengths, and for layer 0, which files of
                control vectors cannot have.
        """
        made = {
            layer: Steering.add(f"{LAYER_OUTPUTS}:{layer}", vector).values()
            for layer, vector in sorted(directions.items())
        }
        if not made or len({len(each) for each in made.values()}) > 1 or min(made) < 1:
            raise RequestError("a control vector has directions of one length, of layers from 1 on")
        self.directions: Mapping[int, npt.NDArray[np.float32]] = MappingProxyType(made)
        self.model_hint = model_hint

    @classmethod
    def read(cls, path: FilePath) -> ControlVector:
        """Read a file.

        Raises:
            ModelNotFoundError: if there is none.
            ModelFileError: if it is damaged or has no control vector.
        """
        _PATH.check(path, "path")
        file = read_gguf(Path(path))
        where, found = file.path.name, {}
        with file.path.open("rb") as data:
            for name, info in file.tensors.items():
                layer = name.removeprefix(_PREFIX)
                if layer == name or not layer.isdecimal() or len(layer) > 4 or not int(layer):
                    raise ModelFileError(where, f"has no control vector: tensor {name[:60]}")
                if info.type is not GGMLType.F32 or len(info.shape) != 1:
                    raise ModelFileError(f"tensor {name}", "is not F32 with one dimension")
                data.seek(info.offset)
                found[int(layer)] = np.frombuffer(data.read(info.size_bytes), "<f4")
        if not found or not all(np.isfinite(each).all() for each in found.values()):
            raise ModelFileError(where, "has no control vector, or one with NaN or infinity")
        if len({len(each) for each in found.values()}) > 1:
            raise ModelFileError(where, "has directions of several lengths")
        return cls(found, file.metadata.string("model_hint", default=""))

    def save(self, path: FilePath) -> None:
        """Write it to a file that llama.cpp reads too.

        Raises:
            ModelFileError: if it cannot be written.
            DiskFullError: if the disk has too little space.
        """
        _PATH.check(path, "path")
        metadata = {
            "general.architecture": _KIND,
            f"{_KIND}.model_hint": self.model_hint,
            f"{_KIND}.layer_count": len(self.directions),
        }
        tensors = [
            TensorToWrite(f"{_PREFIX}{layer}", each.shape, GGMLType.F32, partial(_parts, each))
            for layer, each in self.directions.items()
        ]
        PlannedFile(metadata, tensors).write(Path(path))

    def steering(self, strength: float = 1.0, layers: Layers | None = None) -> tuple[Steering, ...]:
        """Return its addition to what layers return.

        Args:
            strength: multiplies all of it.
            layers: the first and the last; None: all that it has.

        Raises:
            RequestError: if it has none of the layers.
        """
        first, last = layers or (min(self.directions), max(self.directions))
        chosen = {n: each for n, each in self.directions.items() if first <= n <= last}
        if not chosen:
            raise RequestError(f"steering: the control vector has no layer of {first} to {last}")
        return tuple(
            Steering.add(f"{LAYER_OUTPUTS}:{layer}", vector, strength)
            for layer, vector in chosen.items()
        )


def _parts(values: npt.NDArray[np.float32]) -> list[partial[npt.NDArray[np.generic]]]:
    return [partial(np.asarray, values)]
