"""The model of `benchmarks.copying`: which position its attention finds in quantized weights."""

from __future__ import annotations

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from benchmarks.copying import CODE, CONSTANT, COPIED, PERIOD, attention
from benchmarks.models import DECODER, rope_factors
from tampu.ml.quantize import quantize
from tampu.ml.types import GGMLType

Floats = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def quantized() -> dict[str, Floats]:
    """The layer's matrices as they are read from a Q4_K_M file."""
    raw = gguf.GGMLQuantizationType.Q4_K
    return {
        name: gguf.dequantize(quantize(values, GGMLType.Q4_K, threads=1), raw).reshape(values.shape)
        for name, values in attention().items()
    }


def normalized(tokens: int) -> Floats:
    """Return normalized embeddings of random tokens: F32, (tokens, hidden)."""
    embedded = np.zeros((tokens, DECODER.hidden), np.float32)
    embedded[:, CONSTANT] = 1
    signs = np.random.default_rng(0).integers(0, 2, (tokens, CODE.stop - CODE.start))
    embedded[:, CODE] = 2 * signs - 1
    result: Floats = embedded / np.sqrt(np.mean(embedded**2, axis=1, keepdims=True))
    return result


def test_each_token_attends_to_the_one_after_its_last_occurrence(
    quantized: dict[str, Floats],
) -> None:
    """Its last occurrence is one period before; all else has less than e^-15 of the weight."""
    tokens, size = PERIOD + 300, DECODER.head_size
    rows = normalized(tokens)
    turns = DECODER.rope_base ** (-np.arange(0, size, 2) / size) / rope_factors()
    rotation = np.exp(1j * np.outer(np.arange(tokens), turns))
    queries, keys = (
        (heads[:, 0::2] + 1j * heads[:, 1::2]) * rotation
        for heads in (rows @ quantized[name][:size].T for name in ("attn_q", "attn_k"))
    )
    scores = np.real(queries[PERIOD:] @ keys.conj().T) / np.sqrt(size)
    for place, row in enumerate(scores):
        found = row[: PERIOD + place + 1]
        best, after = int(np.argmax(found)), place + 1
        assert best == after
        assert found[best] - np.partition(found, -2)[-2] > 15


def test_the_codes_of_attended_tokens_are_copied(quantized: dict[str, Floats]) -> None:
    """Values and output together move the code to other features, and nothing else."""
    rows = normalized(3)
    values = rows @ quantized["attn_v"].T
    group = DECODER.heads // DECODER.kv_heads
    heads = np.repeat(values.reshape(3, DECODER.kv_heads, 1, -1), group, axis=2).reshape(3, -1)
    output = heads @ quantized["attn_output"].T
    np.testing.assert_allclose(output[:, COPIED], rows[:, CODE], rtol=0.01)
    output[:, COPIED] = 0
    assert not output.any()
