"""Masks of tokens, as a grammar gives them: bit i % 32 of word i // 32 is set if i may come."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tampu.sampling.candidates import Candidates
from tampu.sampling.transforms import Floats

Mask = NDArray[np.uint32]

_FEW_WORDS = 256


def few_tokens(mask: Mask) -> NDArray[np.intp] | None:
    """Return the tokens that a mask allows, ascending; None if they are many."""
    words = mask.nonzero()[0]
    if len(words) > _FEW_WORDS:
        return None
    bits = np.unpackbits(mask[words].view(np.uint8), bitorder="little").reshape(-1, 32)
    word, bit = bits.nonzero()
    return words[word] * 32 + bit


def is_allowed(mask: Mask, token: int) -> bool:
    """Return whether a mask allows a token."""
    return bool(mask[token >> 5] >> np.uint32(token & 31) & 1)


def filtered(candidates: Candidates, mask: Mask) -> Candidates:
    """Return those of the candidates that a mask allows."""
    tokens = candidates.tokens
    kept = (mask[tokens >> 5] >> (tokens & 31).astype(np.uint32) & 1).nonzero()[0]
    return Candidates.of(candidates.logits[kept], tokens[kept])


def masked(logits: Floats, mask: Mask, out: Floats) -> Floats:
    """Return the logits with -inf for all tokens that a mask forbids, in `out`."""
    allowed = np.unpackbits(mask.view(np.uint8), count=len(logits), bitorder="little")
    np.copyto(out, -np.inf)
    np.copyto(out, logits, where=allowed.view(np.bool_))
    return out
