"""The built-in model without its eyes, for llama.cpp, which wants those in a file of their own."""

from __future__ import annotations

from pathlib import Path

from gguf import GGUFReader, GGUFValueType, GGUFWriter

from tampu.store.library import built_in_path

EYES = ("v.", "mm.")


def write_text_part(destination: Path) -> Path:
    reader = GGUFReader(built_in_path())
    writer = GGUFWriter(destination, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture" or ".vision." in name:
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, inner)
    for tensor in reader.tensors:
        if not tensor.name.startswith(EYES):
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return destination
