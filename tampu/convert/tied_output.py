"""An output that is the token embedding: one of the two is dropped."""

from __future__ import annotations

import logging

import numpy as np

from tampu.convert.checkpoint import StoredTensor, to_float32

_ROWS = 4096  # compared at once
log = logging.getLogger("tampu")


def drop_tied_output(plan: dict[str, StoredTensor]) -> None:
    """Drop an output that equals the token embedding; as in transformers, another one is used."""
    output = plan.get("output.weight")
    if output is None:
        return
    embedding = plan.setdefault("token_embd.weight", output)
    if embedding is output or _are_equal(embedding, output):
        del plan["output.weight"]
    else:
        log.warning(
            "config.json: tie_word_embeddings is true, but %s differs from %s: both are written",
            output.name,
            embedding.name,
        )


def _are_equal(first: StoredTensor, second: StoredTensor) -> bool:
    if first.shape != second.shape:
        return False
    one, other = first.read(), second.read()
    return all(
        np.array_equal(
            to_float32(one[at : at + _ROWS]), to_float32(other[at : at + _ROWS]), equal_nan=True
        )
        for at in range(0, len(one), _ROWS)
    )
