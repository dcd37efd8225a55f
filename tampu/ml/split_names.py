"""File names of models that are split over several files, as llama.cpp gives them."""

from __future__ import annotations

import re

_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.ASCII | re.IGNORECASE | re.DOTALL)


def part_name(stem: str, number: int, count: int) -> str:
    """Return the file name of part `number`, from 1 on, of `count`."""
    return f"{stem}-{number:05}-of-{count:05}.gguf"


def read_part_name(name: str) -> tuple[str, int, int]:
    """Return stem, number and count of a GGUF file's name; a whole model's is part 1 of 1."""
    match = _NAME.fullmatch(name)
    return (match[1], int(match[2]), int(match[3])) if match else (name[: -len(".gguf")], 1, 1)
