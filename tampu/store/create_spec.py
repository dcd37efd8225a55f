"""What a model is to be made of: a Modelfile, and where its parts come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tampu.store.modelfile import Modelfile
from tampu.store.names import Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a model is to be made of.

    Attributes:
        modelfile: what it says; sources and adapters are names of models, or paths.
        folder: where relative paths begin; None: paths mean nothing, as for callers from afar.
        files: blobs of the store under the names of files: instead of sources.
        adapter_files: likewise instead of adapters.
        quantize: the type to quantise the weights to; None: as they are.
        in_place: keep GGUF files where they are, and only name them; else they are copied.
    """

    modelfile: Modelfile = field(default_factory=Modelfile)
    folder: Path | None = None
    files: Mapping[str, Digest] = field(default_factory=dict)
    adapter_files: Mapping[str, Digest] = field(default_factory=dict)
    quantize: str | None = None
    in_place: bool = False
