"""Messages and documentation are in plain English: words that readers stumbled over stay out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tampu

PACKAGE = Path(tampu.__file__).parent
ROOT = PACKAGE.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
# What was found, and what a native engineer writes.
WORDS = {
    r"(?<!there )\bis no (?!longer|more\b|such\b)\w+": "is not a (valid) ...",
    r"(?<!there )\bare no (?!longer|more\b|such\b)\w+": "are not ...",
    r"\b(makes|made|gave|gives) no sense": "is invalid, is unexpected",
    r"\bfor ever\b": "forever, without end",
    r"\bnobody\b": "no request, no client",
    r"\bwas told\b|\bis told\b|\bare told\b": "is reported, is logged",
    r"\ba stranger": "untrusted",
    r"\bthe processor\b(?! model)": "the CPU",
    r"\bgone on with\b": "resumed",
    r"\blet go\b": "disconnected",
}


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of a module that are not docstrings, and their lines."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if node not in docstrings:
            yield node.lineno, node.value


def found_in(text: str) -> list[str]:
    return [
        f"{found[0]!r}: {plain}"
        for word, plain in WORDS.items()
        if (found := re.search(word, text, re.I))
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_are_in_plain_words(page: Path) -> None:
    lines = enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
    assert [f"{number}: {word}" for number, line in lines for word in found_in(line)] == []


def test_messages_are_in_plain_words() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line} {word}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, text in messages(path)
        for word in found_in(text)
    ]
    assert found == []
