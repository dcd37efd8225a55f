"""Models that are split over several files, as llama.cpp's gguf-split names and marks them.

    model-00001-of-00003.gguf   all metadata, split.no = 0, split.count = 3, split.tensors.count
    model-00002-of-00003.gguf   split.no = 1, ...; its own tensors
    model-00003-of-00003.gguf

The parts are read as one file: the first part's metadata, the tensors of all, and offsets as if
each part followed the one before it at the next page boundary.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from tampu.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from tampu.ml.gguf_file import GGUFFile, TensorInfo
from tampu.ml.metadata import Metadata
from tampu.ml.split_names import part_name, read_part_name

PREFIX = "split."
MAX_PARTS = 1024


def part_count(metadata: Metadata) -> int:
    """Return over how many files a model is split; 1 if it is not.

    Raises:
        ModelFileError: if the number is out of range.
    """
    count = metadata.integer("split.count", default=1)
    if not 0 <= count <= MAX_PARTS:
        raise ModelFileError("key 'split.count'", f"{count} is not from 0 to {MAX_PARTS}")
    return max(count, 1)


def join_parts(first: GGUFFile, read_part: Callable[[Path], GGUFFile]) -> GGUFFile:
    """Return a split model as one file; the other parts are in the folder of the first.

    Args:
        first: the part that was opened.
        read_part: reads another.

    Raises:
        ModelNotFoundError: naming a missing part.
        ModelFileError: if a part does not match its name, or belongs to another model.
        UnsupportedModelError: if `first` is not the first part.
    """
    count = part_count(first.metadata)
    paths = _paths(first.path, count, first.metadata.integer("split.no", default=0))
    parts = [first, *(_read(path, read_part) for path in paths[1:])]
    for index, part in enumerate(parts):
        _check(part, index, count, first.metadata.architecture)
    joined = list(_placed(parts))
    tensors = {info.name: info for _, infos in joined for info in infos}
    _check_tensors(first.metadata, parts, len(tensors))
    return replace(
        first,
        tensors=tensors,
        size_bytes=sum(part.size_bytes for part in parts),
        parts=tuple(
            replace(part.parts[0], start=start)
            for part, (start, _) in zip(parts, joined, strict=True)
        ),
    )


def _paths(path: Path, count: int, number: int) -> list[Path]:
    stem, named, named_count = read_part_name(path.name)
    if number != 0:
        right = part_name(stem, 1, count) if named_count > 1 else "the first"
        raise UnsupportedModelError(
            f"{path.name} is part {number + 1} of a model in {count} files: load {right}"
        )
    if (named, named_count) != (1, count):
        raise ModelFileError(
            "file name",
            f"{path.name} is part 1 of {count}, but not named {part_name('NAME', 1, count)}, so "
            "the other parts cannot be found",
        )
    return [path.with_name(part_name(stem, index, count)) for index in range(1, count + 1)]


def _read(path: Path, read_part: Callable[[Path], GGUFFile]) -> GGUFFile:
    try:
        return read_part(path)
    except ModelNotFoundError as error:
        raise ModelNotFoundError(f"a part of the model is missing: {path.name}") from error
    except ModelFileError as error:
        raise ModelFileError(f"{path.name}: {error.field}", error.reason) from error


def _check(part: GGUFFile, index: int, count: int, architecture: str) -> None:
    stated = part.metadata.integer("split.no", default=-1 if count > 1 else 0)
    if (stated, part_count(part.metadata)) != (index, count):
        raise ModelFileError(
            f"{part.path.name}: key 'split.no'",
            f"says part {stated + 1} of {part_count(part.metadata)}, not {index + 1} of {count}",
        )
    own = part.metadata.string("general.architecture", default=architecture)
    if own != architecture:
        raise ModelFileError(
            f"{part.path.name}: key 'general.architecture'",
            f"is {own!r}, not {architecture!r}: it is a part of another model",
        )


def _check_tensors(metadata: Metadata, parts: list[GGUFFile], distinct: int) -> None:
    owners: dict[str, Path] = {}
    for part in parts:
        for name in part.tensors:
            if name in owners:
                raise ModelFileError(
                    f"{part.path.name}: tensor {name}", f"is in {owners[name].name}, too"
                )
            owners[name] = part.path
    stated = metadata.integer("split.tensors.count", default=distinct)
    if stated != distinct:
        raise ModelFileError(
            "key 'split.tensors.count'",
            f"is {stated}, but the parts have {distinct} tensors: are they all of this model?",
        )


def _placed(parts: list[GGUFFile]) -> Iterator[tuple[int, list[TensorInfo]]]:
    """Yield where each part starts, and its tensors with offsets from there."""
    start = 0
    for part in parts:
        infos = part.tensors.values()
        yield start, [replace(info, offset=info.offset + start) for info in infos]
        start += -(-part.size_bytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
