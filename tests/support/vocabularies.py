"""Small vocabularies written by hand, as metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tampu.ml.gguf import Metadata

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
BYTES = [f"<0x{value:02X}>" for value in range(256)]


def alphabet() -> list[str]:
    """Return the 256 characters in which byte-level BPE writes bytes, in the order of the bytes."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in visible]
    return [chr(b) if b in visible else chr(0x100 + others.index(b)) for b in range(256)]


def changed(metadata: Metadata, **changes: Any) -> Metadata:
    """Return metadata with other values of `tokenizer.ggml.*`; a value of None removes the key."""
    values = dict(metadata) | {f"tokenizer.ggml.{name}": changes[name] for name in changes}
    return Metadata({key: value for key, value in values.items() if value is not None})


def byte_level(
    *more: str, merges: object = (), types: Mapping[str, int] | None = None, **changes: Any
) -> Metadata:
    """Return a byte-level BPE: ids 0 to 255 are the bytes, `more` comes after them."""
    tokens = [*alphabet(), *more]
    kinds = [(types or {}).get(token, NORMAL) for token in tokens]
    metadata = Metadata(
        {
            "general.architecture": "llama",
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": np.array(kinds, dtype=np.int32),
        }
    )
    return changed(metadata, merges=merges, **changes)


def sentence_piece(
    *pieces: tuple[str, float], types: Mapping[str, int] | None = None, **changes: Any
) -> Metadata:
    """Return a SentencePiece BPE: <unk>, <s>, </s>, the 256 bytes, then `pieces` from id 259 on."""
    tokens = ["<unk>", "<s>", "</s>", *BYTES, *(text for text, _ in pieces)]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256]
    kinds += [(types or {}).get(text, NORMAL) for text, _ in pieces]
    scores = [0.0] * 259 + [score for _, score in pieces]
    metadata = Metadata(
        {
            "general.architecture": "llama",
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": np.array(kinds, dtype=np.int32),
            "tokenizer.ggml.scores": np.array(scores, dtype=np.float32),
        }
    )
    return changed(metadata, **changes)
