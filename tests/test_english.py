"""Messages, docs and comments are in plain English: words that readers stumbled over stay out."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from support.sources import nodes

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


# And what docstrings and comments had besides.
INSIDE = {
    **WORDS,
    r"(?<!there )\b(is|are|was|were) (?-i:none)\b(?! of)": "is not one, is empty",
    r"\blikewise\b": "the same, as above",
    r"\bwhat is where\b": "which layers are on which device",
    r"\bwhat cannot be\b[.,; ]": "what is impossible",
}


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of a module that are not docstrings, and their lines."""
    documented = {node.value for node in nodes(path, ast.Expr)}
    for node in nodes(path, ast.Constant):
        if isinstance(node.value, str) and node not in documented:
            yield node.lineno, node.value


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """The docstrings of a module, and their lines."""
    for node in nodes(path, ast.Expr):
        match node.value:
            case ast.Constant(value=str(text)):
                yield node.lineno, text


def comments(path: Path) -> Iterator[tuple[int, str]]:
    """The comments of a module, and their lines."""
    with path.open(encoding="utf-8") as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string


def found_in(text: str, words: Mapping[str, str] = WORDS) -> list[str]:
    text = " ".join(text.split())
    if not re.search("|".join(words), text, re.I):  # as of nearly all
        return []
    return [
        f"{found[0]!r}: {plain}"
        for word, plain in words.items()
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


def test_docstrings_and_comments_are_in_plain_words() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line} {word}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, text in (*docstrings(path), *comments(path))
        for word in found_in(text, INSIDE)
    ]
    assert found == []
