"""Model files divided over several, by the package that llama.cpp's own converter writes with."""

from __future__ import annotations

from pathlib import Path

import gguf


def split_file(source: Path, target: Path, most: int) -> list[Path]:
    """Divide a file into parts of at most `most` tensors; return them in their order.

    Args:
        source: a whole model.
        target: where a whole one would be written: m.gguf becomes m-00001-of-00003.gguf, ...
        most: tensors in a part.
    """
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture, split_max_tensors=most)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        kind, *item = field.types
        writer.add_key_value(field.name, field.contents(), kind, *item)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(target.parent.glob(f"{target.stem}-*-of-*.gguf"))
