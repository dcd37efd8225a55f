"""The heads of BGE-M3 for each token: weights of words, and a vector for each token.

Its checkpoints have them in pickles, which are never read. Saved as safetensors, they become the
tensors `sparse_linear` and `colbert_linear`, which only tampu knows.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from tampu.convert.checkpoint import Checkpoint, StoredTensor, read_safetensors
from tampu.errors import ModelFileError

log = logging.getLogger("tampu")

HEADS = ("sparse_linear", "colbert_linear")


def token_heads(checkpoint: Checkpoint) -> list[StoredTensor]:
    """Return the tensors of the heads that a checkpoint has as safetensors; log the others.

    Raises:
        ModelFileError: if one of their files is damaged.
    """
    found: list[StoredTensor] = []
    for head in HEADS:
        path = checkpoint.folder / f"{head}.safetensors"
        if path.exists():
            for tensor in read_safetensors(path):
                if tensor.name not in ("weight", "bias"):
                    raise ModelFileError(path.name, f"{tensor.name} is neither weight nor bias")
                found.append(replace(tensor, name=f"{head}.{tensor.name}"))
        elif (checkpoint.folder / f"{head}.pt").exists():
            log.warning(
                "%s.pt is a pickle, which is not read: the file will have no such output. Save its "
                "weight and bias as %s.safetensors to convert it too",
                head, head,
            )  # fmt: skip
    if found:
        log.warning("llama.cpp and Ollama refuse files with %s", " and ".join(HEADS))
    return found
