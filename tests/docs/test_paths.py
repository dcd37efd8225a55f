"""The files and folders that the documentation names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
FENCE = re.compile(r"^```.*?^```$", re.M | re.S)
PATH = re.compile(r"`([\w./-]+(?:\.(?:py|c|h|sh|toml|yml|lark)|/))`")
# Folders from which pages name files, and folders whose files are named by their names alone.
BASES = [ROOT, ROOT / "tampu", ROOT / "tampu" / "runner", ROOT / "tests"]
CODE = ("tampu", "tests", "tools", "benchmarks", "examples")
NOT_IN_THE_REPOSITORY = {
    "additional_chat_templates/": "of a checkpoint",
    "convert_hf_to_gguf.py": "llama.cpp's",
    "image_transform.py": "Meta's",
    "tampu.libs/": "of a wheel",
    "tampu/ml/bundled/ggml.py": "of a wheel",
    "tampu/ml/bundled/lib/": "of a wheel",
    "tampu/ml/bundled/lib/backends/": "of a wheel",
}


def paths(text: str) -> list[str]:
    return PATH.findall(FENCE.sub("", text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_files_exist(page: Path) -> None:
    names = {path.name for folder in CODE for path in (ROOT / folder).rglob("*")}
    missing = [
        path
        for path in paths(page.read_text(encoding="utf-8"))
        if path not in NOT_IN_THE_REPOSITORY
        and not any((base / path).exists() for base in [*BASES, page.parent])
        and not ("/" not in path.rstrip("/") and path.rstrip("/") in names)
    ]
    assert missing == []
