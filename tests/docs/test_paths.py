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


def test_the_table_of_the_architecture_has_each_file_in_its_package() -> None:
    """A file in a row is in the row's package, or in a folder that the row names."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("### Where things are")[2].partition("\n## ")[0]
    package, missing, seen = ROOT / "tampu", [], 0
    for line in table.splitlines():
        if not line.startswith("| "):
            continue
        first, *cells = line.split("|")[1:-1]
        if first.strip():
            name = "".join(paths(first))
            package = ROOT / name if name.startswith("tools/") else ROOT / "tampu" / name
        rows = [paths(cell) for cell in cells]
        bases = [package, *(package / path for path in rows[0] if path.endswith("/"))]
        for path in [path for row in rows for path in row]:
            seen += 1
            if not any((base / path).exists() for base in bases):
                missing.append(f"{package.name}: {path}")
    assert missing == []
    assert seen > 50
