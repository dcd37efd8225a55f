"""A tiny model that talks for ever: with greedy sampling its next token depends on the last alone.

Without attention the tokens run into a circle, and for most beginnings it has no end token in it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from tampu.convert import convert

TEMPLATE = (
    "{% for m in messages %}{% if m.content == 'refuse' %}{{ raise_exception('no such words') }}"
    "{% endif %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if tools %}tools{% endif %}"
)


def make_endless_model(folder: Path, destination: Path) -> Path:
    """Write the model as a GGUF file; `folder` is for what it is made from."""
    from support.checkpoints import make_checkpoint  # PyTorch takes seconds to import

    checkpoint = make_checkpoint("llama", folder)
    [weights] = checkpoint.glob("*.safetensors")
    tensors = load_file(weights)
    for name, tensor in tensors.items():
        if name.endswith("self_attn.o_proj.weight"):
            tensors[name] = np.zeros_like(tensor)
    save_file(tensors, weights, metadata={"format": "pt"})
    convert(checkpoint, destination, "F32", metadata={"tokenizer.chat_template": TEMPLATE})
    return destination
