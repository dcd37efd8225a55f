"""The GGUF files of a repository: variants of a model, shards of a variant, projectors.

Repositories on the Hugging Face Hub have one model in several quantizations, named by the end of
the file name: `m-Q4_K_M.gguf`; large ones in shards, `m-Q8_0-00001-of-00003.gguf`, sometimes in a
folder named after the quantization; and `mmproj-*.gguf`, the projector for images.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from tampu.ml.split_names import read_part_name

SUFFIX = ".gguf"
PREFERRED = ("Q4_K_M", "Q4_0", "Q8_0")  # the default variants, best first

_QUANTIZATION = re.compile(
    r"(?:^|[-_.])((?:UD-)?(?:I?Q\d[A-Z0-9_]*|T?Q\d_\d|BF16|F16|FP16|F32|MXFP4(?:_MOE)?)(?:-.+)?)$",
    re.ASCII | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Variant:
    """One model of a repository.

    Attributes:
        tag: its quantization, such as Q4_K_M.
        files: its shards in order; usually one.
    """

    tag: str
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Repository:
    """The variants of a repository's model, and their projectors for images."""

    variants: tuple[Variant, ...]
    projectors: tuple[str, ...]

    def find(self, tag: str) -> Variant | None:
        """Return the variant of a tag, in any case; `latest` is the preferred one."""
        wanted = tag.lower()
        if wanted == "latest":
            tags = [variant.tag.upper() for variant in self.variants]
            best = next((tags.index(name) for name in PREFERRED if name in tags), 0)
            return self.variants[best] if self.variants else None
        for variant in self.variants:
            stems = [PurePosixPath(file).name.lower() for file in variant.files]
            if variant.tag.lower() == wanted or wanted in stems or wanted + SUFFIX in stems:
                return variant
        return None

    @property
    def projector(self) -> str | None:
        """The projector to use: one in 16 bits if there are several."""
        by_width = sorted(self.projectors, key=lambda file: ("f16" not in file.lower(), file))
        return by_width[0] if by_width else None


def read_repository(files: Iterable[str]) -> Repository:
    """Group the GGUF files among a repository's paths; other files are ignored."""
    parts: dict[str, dict[int, str]] = defaultdict(dict)
    counts: dict[str, int] = {}
    projectors = []
    for file in sorted(files):
        path = PurePosixPath(file)
        if path.suffix.lower() != SUFFIX:
            continue
        if "mmproj" in path.name.lower():
            projectors.append(file)
            continue
        stem, number, count = read_part_name(path.name)
        key = str(path.parent / stem)
        parts[key][number] = file
        counts[key] = count
    variants = [
        Variant(_tag(PurePosixPath(key)), tuple(numbered[n] for n in sorted(numbered)))
        for key, numbered in parts.items()
        if sorted(numbered) == list(range(1, counts[key] + 1))
    ]
    return Repository(tuple(variants), tuple(projectors))


def _tag(path: PurePosixPath) -> str:
    """Return the tag of a file: its quantization, else its name."""
    for text in (path.name, path.parent.name):
        if match := _QUANTIZATION.search(text):
            return match[1]
    return path.name
