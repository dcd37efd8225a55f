"""A tiny model with its cache, run batch by batch without a scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from support.tiny_model import Tiny, write_tiny

from tampu.gguf_compat import read_model
from tampu.kvcache import AttentionKind, Cache, CacheSize, Segment
from tampu.ml import Backend, Weights
from tampu.models import bind_model
from tampu.runner.graph_cache import GraphCache
from tampu.runner.step_inputs import StepInputs

Logits = npt.NDArray[np.float32]


class TinyModel:
    """A model file that is loaded; close it."""

    def __init__(
        self,
        backend: Backend,
        path: Path,
        *,
        cells: int = 256,
        cache_type: str = "f32",
        attention: AttentionKind = AttentionKind.FUSED,
        reuse: bool = True,
    ) -> None:
        self.weights = Weights(read_model(path))
        self.model = bind_model(self.weights)
        shapes = self.model.cache_shapes()
        size = CacheSize(slots=1, context=cells, batch=cells)
        self.cache = Cache(backend, shapes, size, key_type=cache_type, attention=attention)
        self.weights.load(backend)
        self.graphs = GraphCache(backend, self.model, self.cache, reuse=reuse)

    def step(
        self, parts: Sequence[tuple[Sequence[int], Sequence[int], int]], *, logits: bool = True
    ) -> list[Logits]:
        """Compute a batch; each part is the sequence's tokens, their cells, and where it goes on.

        Returns:
            For each part, the logits (or hidden states) of all its new tokens.
        """
        tokens = [token for tokens, _, start in parts for token in tokens[start:]]
        positions = [p for tokens, _, start in parts for p in range(start, len(tokens))]
        spaces = len(self.cache.specs)
        segments = [
            Segment(np.array([list(cells)] * spaces, np.int32), start) for _, cells, start in parts
        ]
        inputs = StepInputs(
            np.array(tokens, np.int32),
            np.array(positions, np.int32),
            np.arange(len(tokens), dtype=np.int32),
            segments,
            logits,
        )
        rows = np.asarray(self.graphs.submit(inputs).result().outputs[0], np.float32)
        ends = np.cumsum([len(tokens) - start for tokens, _, start in parts])
        return np.split(rows, ends[:-1])

    def logits(self, tokens: Sequence[int], *, chunk: int = 512) -> Logits:
        """Return the logits (positions, vocabulary) of a text, `chunk` tokens at a time."""
        rows = []
        for start in range(0, len(tokens), chunk):
            end = min(start + chunk, len(tokens))
            rows += self.step([(tokens[:end], range(end), start)])
        return np.concatenate(rows)

    def close(self) -> None:
        self.graphs.close()
        self.cache.close()
        self.weights.close()


def load_tiny(
    backend: Backend, folder: Path, tiny: Tiny | None = None, **options: Any
) -> TinyModel:
    """Write a tiny model and load it."""
    return TinyModel(backend, write_tiny(folder / "tiny.gguf", tiny), **options)


def relative_error(found: npt.NDArray[np.floating], expected: npt.NDArray[np.floating]) -> float:
    """Return ||found - expected|| / ||expected||."""
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
