"""A GGUF file with metadata and one small tensor: enough to be listed and described, not to run."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

CHAT_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ tools }}"


def write_gguf(
    path: Path,
    *,
    template: str | None = CHAT_TEMPLATE,
    hears: bool = False,
    architecture: str = "llama",
    **values: object,
) -> Path:
    """Write a model with these metadata values ("." in names as "__")."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(2048)
    writer.add_embedding_length(64)
    writer.add_block_count(1)
    writer.add_name("Tiny")
    writer.add_license("apache-2.0")
    writer.add_file_type(15)
    writer.add_token_list([f"t{i}" for i in range(10)])
    if template is not None:
        writer.add_chat_template(template)
    for name, value in values.items():
        key = name.replace("__", ".")
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, str(value))
    writer.add_tensor("token_embd.weight", np.zeros((10, 64), np.float16))
    if hears:
        writer.add_tensor("a.blk.0.norm.weight", np.zeros((8,), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
