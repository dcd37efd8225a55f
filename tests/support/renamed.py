"""A model file under the name of another architecture that has the same tensors."""

from __future__ import annotations

from pathlib import Path

from gguf import GGUFReader, GGUFValueType, GGUFWriter


def write_renamed(source: Path, destination: Path, architecture: str) -> Path:
    reader = GGUFReader(source)
    old = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(destination, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == GGUFValueType.ARRAY else None
        prefix, dot, rest = name.partition(".")
        own = f"{architecture}{dot}{rest}" if prefix == old else name
        writer.add_key_value(own, field.contents(), kind, inner)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return destination
