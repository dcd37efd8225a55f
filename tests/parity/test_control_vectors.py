"""llama.cpp's control vectors do here what they do in llama.cpp, from the same file."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGUFReader
from support.laboratory import Laboratory, relative_error, tokens

from tampu.bench.llama_cpp import LlamaCpp
from tampu.engine.control_vector import ControlVector

pytestmark = pytest.mark.parity

TEXT = tokens(40)


def directions_in(path: Path) -> npt.NDArray[np.float32]:
    """Return the directions of a file, (layers, features) from layer 1 on, by gguf's reader."""
    found = {tensor.name: np.array(tensor.data, np.float32) for tensor in GGUFReader(path).tensors}
    return np.stack([found[f"direction.{layer}"] for layer in range(1, len(found) + 1)])


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_a_control_vector_has_the_effect_that_it_has_in_llama_cpp(
    laboratory: Laboratory, name: str, tmp_path: Path
) -> None:
    """Exactly at the first token, which reads one key; the caches of both are in half precision."""
    path = tmp_path / "vector.gguf"
    with (
        laboratory.engine(name, cache="f16", flash=True) as engine,
        closing(LlamaCpp(laboratory.file(name), threads=1, context=64)) as peer,
    ):
        info = engine.info
        layers, features = info.metadata.integer("block_count"), info.embedding_length
        drawn = np.random.default_rng(0).standard_normal((layers - 1, features))
        ControlVector({i + 1: row for i, row in enumerate(drawn)}, info.architecture).save(path)
        vector, directions = ControlVector.read(path), directions_in(path)
        plain = engine.logits(TEXT)
        for strength, first, last in ((0.3, 1, layers - 1), (-1.0, layers - 1, layers - 1)):
            peer.steer(directions * np.float32(strength), first, last)
            expected = peer.logits(TEXT, len(TEXT))
            ours = engine.logits(TEXT, steering=vector.steering(strength, layers=(first, last)))
            assert relative_error(ours[:1], expected[:1]) < 2e-6
            assert relative_error(ours, expected) < 5e-3
            assert relative_error(plain, expected) > 0.1
