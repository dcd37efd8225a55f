"""Tiny model files with random weights, written in milliseconds.

The vocabulary is SentencePiece's: `<unk>`, `<s>`, `</s>`, the 256 bytes, a space, the letters, and
some words. Every weight matters: norms are not one, biases not zero, and attention is not uniform.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from tampu.ml.quantize import quantize
from tampu.ml.types import GGMLType

Floats = npt.NDArray[np.float32]

UNKNOWN, BOS, EOS, FIRST_BYTE, SPACE = 0, 1, 2, 3, 259
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_WORDS = "th he in er an re on at en nd ti es or te of ed is it al ar st to nt ng se ha as ou io le"
_PIECES = ["▁", *_LETTERS, *_WORDS.split(), "ve", "co", "me", "de"]
VOCABULARY = 3 + 256 + len(_PIECES)


def letter_token(letter: str) -> int:
    """Return the token of a letter."""
    return SPACE + _PIECES.index(letter)


@dataclass(frozen=True, kw_only=True)
class Tiny:
    """What a tiny model is made of; the head size is unlike the embedding divided by the heads."""

    architecture: str = "llama"
    layers: int = 2
    embedding: int = 32
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    feed_forward: int = 64
    vocabulary: int = VOCABULARY
    context: int = 65_536
    epsilon: float = 1e-5
    rope_base: float = 10_000.0
    tied: bool = False
    biases: bool = False
    query_norms: bool = False
    factors: bool = False
    keys: Mapping[str, Any] = field(default_factory=dict)
    """More metadata; None takes a key away."""
    seed: int = 0

    @property
    def is_gemma(self) -> bool:
        return self.architecture == "gemma3"


def tiny_weights(tiny: Tiny) -> dict[str, Floats]:
    """Return the weights by their names in a file, shapes slowest dimension first."""
    random = np.random.default_rng(tiny.seed)

    def matrix(outputs: int, inputs: int, strength: float = 1.0) -> Floats:
        return (random.normal(size=(outputs, inputs)) * strength / inputs**0.5).astype(np.float32)

    def norm(size: int) -> Floats:
        return random.uniform(0.5, 1.5, size).astype(np.float32)

    def bias(size: int) -> Floats:
        return random.normal(size=size).astype(np.float32)

    queries, keys = tiny.heads * tiny.head_dim, tiny.kv_heads * tiny.head_dim
    weights = {
        "token_embd.weight": matrix(tiny.vocabulary, tiny.embedding, tiny.embedding**0.5),
        "output_norm.weight": norm(tiny.embedding),
    }
    if not tiny.tied:
        weights["output.weight"] = matrix(tiny.vocabulary, tiny.embedding, 4.0)
    if tiny.factors:
        weights["rope_freqs.weight"] = random.uniform(1, 8, tiny.head_dim // 2).astype(np.float32)
    for layer in range(tiny.layers):
        parts = {
            "attn_norm.weight": norm(tiny.embedding),
            "attn_q.weight": matrix(queries, tiny.embedding, 2.0),
            "attn_k.weight": matrix(keys, tiny.embedding, 2.0),
            "attn_v.weight": matrix(keys, tiny.embedding),
            "attn_output.weight": matrix(tiny.embedding, queries),
            "ffn_norm.weight": norm(tiny.embedding),
            "ffn_gate.weight": matrix(tiny.feed_forward, tiny.embedding),
            "ffn_up.weight": matrix(tiny.feed_forward, tiny.embedding),
            "ffn_down.weight": matrix(tiny.embedding, tiny.feed_forward),
        }
        if tiny.biases:
            sizes = {"attn_q": queries, "attn_k": keys, "attn_v": keys, "ffn_up": tiny.feed_forward}
            parts |= {f"{name}.bias": bias(size) for name, size in sizes.items()}
        if tiny.query_norms or tiny.is_gemma:
            parts |= {f"attn_{letter}_norm.weight": norm(tiny.head_dim) for letter in "qk"}
        if tiny.is_gemma:
            names = ("post_attention_norm", "post_ffw_norm")
            parts |= {f"{name}.weight": norm(tiny.embedding) for name in names}
        weights |= {f"blk.{layer}.{name}": values for name, values in parts.items()}
    return weights


def tiny_keys(tiny: Tiny) -> dict[str, Any]:
    """Return the metadata under the architecture's prefix."""
    return {
        "block_count": tiny.layers,
        "embedding_length": tiny.embedding,
        "context_length": tiny.context,
        "feed_forward_length": tiny.feed_forward,
        "attention.head_count": tiny.heads,
        "attention.head_count_kv": tiny.kv_heads,
        "attention.key_length": tiny.head_dim,
        "attention.layer_norm_rms_epsilon": tiny.epsilon,
        "rope.freq_base": tiny.rope_base,
        **({"attention.sliding_window": 8} if tiny.is_gemma else {}),
        **tiny.keys,
    }


def write_tiny(
    path: Path,
    tiny: Tiny | None = None,
    *,
    weights: Mapping[str, Floats] | None = None,
    types: Mapping[str, str] | None = None,
    template: str | None = None,
    pooling: int | None = None,
    pieces: Sequence[str] = (),
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Write a model file.

    Args:
        path: of the file.
        tiny: what it is made of.
        weights: instead of `tiny_weights(tiny)`.
        types: the storage type of tensors whose name ends so; the others are F32.
        template: its chat template.
        pooling: `pooling_type` of an embedding model.
        pieces: the last tokens of its vocabulary.
        metadata: more of it, under its whole names.
    """
    tiny = tiny or Tiny()
    writer = gguf.GGUFWriter(path, tiny.architecture)
    keys = {f"{tiny.architecture}.{name}": value for name, value in tiny_keys(tiny).items()}
    if pooling is not None:
        keys[f"{tiny.architecture}.pooling_type"] = pooling
    for name, value in {**keys, **(metadata or {})}.items():
        _add(writer, name, value)
    _add_tokenizer(writer, tiny.vocabulary, pieces)
    if template is not None:
        writer.add_chat_template(template)
    for name, values in (tiny_weights(tiny) if weights is None else weights).items():
        wanted = next((t for end, t in (types or {}).items() if name.endswith(end)), "F32")
        _add_tensor(writer, name, values, wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_mixture(path: Path, layers: int) -> Path:
    """Write a model whose layers have eight experts, of which a token uses two."""
    tiny = Tiny(layers=layers, embedding=64, keys={"expert_count": 8, "expert_used_count": 2})
    random = np.random.default_rng(1)
    weights = {n: w for n, w in tiny_weights(tiny).items() if "ffn_" not in n or "norm" in n}
    for layer in range(layers):
        shapes = {"gate_exps": (8, 64, 64), "up_exps": (8, 64, 64), "down_exps": (8, 64, 64),
                  "gate_inp": (8, 64)}  # fmt: skip
        for name, shape in shapes.items():
            values = random.normal(size=shape).astype(np.float32) / np.float32(8)
            weights[f"blk.{layer}.ffn_{name}.weight"] = values
    return write_tiny(path, tiny, weights=weights)


def _add(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value) if value >= 0 else writer.add_int32(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    elif isinstance(value, str):
        writer.add_string(name, value)
    elif isinstance(value, list):
        writer.add_array(name, value)


def _add_tensor(writer: gguf.GGUFWriter, name: str, values: Floats, wanted: str) -> None:
    kind = gguf.GGMLQuantizationType[wanted]
    if wanted == "I32":
        writer.add_tensor(name, values.astype(np.int32))
    elif wanted.endswith("_K"):
        packed = np.frombuffer(quantize(values, GGMLType[wanted]), np.uint8)
        writer.add_tensor(name, packed.reshape(len(values), -1), raw_dtype=kind)
    else:
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)


def _add_tokenizer(writer: gguf.GGUFWriter, size: int, pieces: Sequence[str]) -> None:
    tokens, scores, types = _vocabulary(size - len(pieces))
    tokens, types = [*tokens, *pieces], [*types, *[1] * len(pieces)]
    scores = [*scores, *[-1000.0] * len(pieces)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_unk_token_id(UNKNOWN)
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)


def _vocabulary(size: int) -> tuple[Sequence[str], Sequence[float], Sequence[int]]:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *_PIECES]
    types = [2, 3, 3, *[6] * 256, *[1] * len(_PIECES)]
    tokens += [f"extra{index}" for index in range(size - len(tokens))]
    types += [1] * (size - len(types))
    scores = [0.0] * 259 + [-float(index) for index in range(size - 259)]
    return tokens[:size], scores[:size], types[:size]
