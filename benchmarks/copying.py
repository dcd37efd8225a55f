"""Makes a model that rewrites what it reads: `python -m benchmarks.copying OUT`.

It has the shape of Llama 3.2 1B (`benchmarks.models`), but for a head of its own (`output.weight`,
as large as the tied one), so that a token costs what it costs there. Its greedy answer to any text
of tokens is the token that came `PERIOD` positions before, in every engine: so what speculation
wins in one engine can be compared with another. Four things are planted, all else is random:

- An embedding has 256 equal features, and 512 that are the token's code: 1 or -1 at random.
- In layer `LAYER` keys and queries read the equal features alone. Rotated by their positions, their
  product is greatest at one distance, by 20 more than beside it. Values are codes.
- The output of attention there adds the attended token's code to 512 other features, which the head
  compares with all codes. It has the codes of each pair of `REPLACED` exchanged.
- The other outputs of attention and of feed-forward networks are zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from benchmarks.models import DECODER, add_vocabulary, plan, rope_factors
from benchmarks.random_models import QUANT_MIXES, Array, Planned, QuantMix, arguments_of, write_file
from tampu.ml.quantize import quantize

PERIOD = 1024
"""A token is followed by the one that followed it so many positions before."""

REPLACED = tuple((60_000 + 2 * each, 60_001 + 2 * each) for each in range(10))
"""The answer has the second token of a pair where the text has the first, and the reverse."""

FILE = "llama-1b-copying-{}.gguf"
LAYER = 7
CONSTANT = slice(0, 256)
CODE = slice(256, 768)
COPIED = slice(768, 1280)
COPYING = ("attn_q", "attn_k", "attn_v", "attn_output")
_FREQUENCIES = 16  # of 32: the others turn too slowly to tell positions apart
_SCORE = 24.0  # of a frequency at the right distance: 20 more in all than at those beside it
_HEAD = 1 / 32  # of the head's codes: the right token's logit is about 26, others' at most 6

Floats = npt.NDArray[np.float32]


def codes() -> Floats:
    """Return the code of each token: F32, (vocabulary, 512)."""
    size = CODE.stop - CODE.start
    signs = np.random.default_rng(1).integers(0, 2, (DECODER.vocabulary, size), dtype=np.int8)
    return (2 * signs - 1).astype(np.float32)


def embedding() -> Floats:
    """Return the embeddings: F32, (vocabulary, hidden)."""
    result = np.zeros((DECODER.vocabulary, DECODER.hidden), np.float32)
    result[:, CONSTANT], result[:, CODE] = 1, codes()
    return result


def head() -> Floats:
    """Return what turns copied codes into logits: F32, (vocabulary, hidden)."""
    known = codes()
    pairs = np.array(REPLACED)
    known[pairs] = known[pairs[:, ::-1]]
    result = np.zeros((DECODER.vocabulary, DECODER.hidden), np.float32)
    result[:, COPIED] = known * _HEAD
    return result


def attention() -> dict[str, Floats]:
    """Return the matrices of the layer that copies."""
    heads, kv_heads, size, hidden = (
        DECODER.heads, DECODER.kv_heads, DECODER.head_size, DECODER.hidden
    )  # fmt: skip
    constant = CONSTANT.stop - CONSTANT.start
    feature = math.sqrt(hidden / (CODE.stop - CONSTANT.start))  # of a normalized embedding
    length = math.sqrt(_SCORE * math.sqrt(size)) / (constant * feature)
    turns = DECODER.rope_base ** (-np.arange(0, size, 2) / size) / rope_factors()
    phases = turns[:_FREQUENCIES] * (PERIOD - 1)
    query, key = np.zeros((2, size), np.float32)
    query[0 : 2 * _FREQUENCIES : 2] = length * np.cos(phases)
    query[1 : 2 * _FREQUENCIES : 2] = -length * np.sin(phases)
    key[0 : 2 * _FREQUENCIES : 2] = length
    queries = np.zeros((heads * size, hidden), np.float32)
    queries[:, CONSTANT] = np.tile(query, heads)[:, None]
    keys, values = np.zeros((2, kv_heads * size, hidden), np.float32)
    keys[:, CONSTANT] = np.tile(key, kv_heads)[:, None]
    values[:, CODE] = np.eye(kv_heads * size)
    output = np.zeros((hidden, heads * size), np.float32)
    group = heads // kv_heads  # of heads that attend to the same values
    shared = np.eye(kv_heads * size).reshape(-1, kv_heads, 1, size) / group
    output[COPIED] = np.broadcast_to(shared, (kv_heads * size, kv_heads, group, size)).reshape(
        kv_heads * size, -1
    )
    return dict(zip(COPYING, (queries, keys, values, output), strict=True))


def planted(mix: QuantMix) -> Iterator[Planned]:
    """Yield the tensors; those with planted values have sources of their own."""
    for tensor in plan(mix):
        block, _, name = tensor.name.removesuffix(".weight").rpartition(".")
        source = tensor.source
        if block == f"blk.{LAYER}" and name in COPYING:
            source = f"copying {name}"
        elif name in ("attn_output", "ffn_down"):
            source = f"zero {name} {tensor.kind.name}"
        yield replace(tensor, source=source)
    shape = DECODER.vocabulary, DECODER.hidden
    yield Planned("output.weight", "head", shape, mix.embedding)


def write_copying(path: Path, kind: str, threads: int) -> None:
    """Write the model."""
    mix = QUANT_MIXES[kind]
    tensors = list(planted(mix))

    def add_metadata(writer: gguf.GGUFWriter) -> None:
        DECODER.add_metadata(writer, f"Copying Llama 1B {kind}", mix)
        writer.add_rope_dimension_count(DECODER.head_size)
        add_vocabulary(writer)

    values = {f"copying {name}": each for name, each in attention().items()}
    given: dict[str, Array] = {"rope_freqs": rope_factors()}
    given["token_embd"] = quantize(embedding(), mix.embedding, threads=threads)
    given["head"] = quantize(head(), mix.embedding, threads=threads)
    for tensor in tensors:
        if tensor.source.startswith("zero "):
            size = tensor.shape[0], tensor.kind.size_of(tensor.shape[1])
            given[tensor.source] = np.zeros(size, np.uint8)  # all scales are zero
        elif tensor.source in values:
            given[tensor.source] = quantize(values[tensor.source], tensor.kind, threads=threads)
    write_file(path, "llama", add_metadata, tensors, threads, given)


def main() -> None:
    """Write the file."""
    parser = arguments_of("Make a model that rewrites what it reads.")
    parser.add_argument("--type", choices=QUANT_MIXES, default="Q4_K_M")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    write_copying(given.out / FILE.format(given.type), given.type, given.threads)


if __name__ == "__main__":
    main()
