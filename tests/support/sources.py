"""Python sources, each read and parsed once for all tests of a process."""

from __future__ import annotations

import ast
import gc
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any


@cache
def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def tree(path: Path) -> ast.Module:
    gc.disable()  # a tree has no garbage, and looking for it takes four times as long as parsing
    try:
        return ast.parse(text(path))
    finally:
        gc.enable()


@cache
def _by_kind(path: Path) -> dict[type[ast.AST], list[ast.AST]]:
    found: dict[type[ast.AST], list[ast.AST]] = defaultdict(list)
    left: list[ast.AST] = [tree(path)]
    for node in left:  # grows while it is walked
        found[type(node)].append(node)
        left += ast.iter_child_nodes(node)
    return found


def nodes(path: Path, *kinds: type[ast.AST]) -> list[Any]:
    """Return a file's nodes of these kinds, each kind in the order of `ast.walk`."""
    index = _by_kind(path)
    return [node for kind in kinds for node in index.get(kind, ())]


def imports(path: Path) -> list[str]:
    """Return the dotted names that a module imports, in functions too; of tampu itself, modules."""
    found = [alias.name for node in nodes(path, ast.Import) for alias in node.names]
    for node in nodes(path, ast.ImportFrom):
        if node.module == "tampu":
            found += [f"tampu.{alias.name}" for alias in node.names]
        elif node.module:
            found.append(node.module)
    return found
