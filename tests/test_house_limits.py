"""Limits of size and shape: what is over one is in its table of exceptions, with the reason."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.sources import imports, nodes, text

import tampu

ROOT = Path(tampu.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
LONGEST_FILE, LONGEST_FUNCTION, MOST_METHODS = 400, 60, 20
# What puts the application together, `tampu serve`'s options, and `tampu run` without one.
KNOWING_FEATURES = {"cli/private_api.py", "server/feature_list.py", "server/options.py"}
TOP_LEVEL = {
    "__init__.py", "cancellation.py", "errors.py", "long_json.py", "text.py", "threads.py",
    "version.py",
}  # fmt: skip
# Functions with more lines, and why.
LONG_FUNCTIONS = {
    "cli/bench.py: bench_command": "its parameters are the command's options with their help",
    "cli/convert.py: convert_command": "its parameters are the command's options with their help",
    "cli/run.py: run_command": "its parameters are the command's options with their help",
    "cli/serve.py: serve_command": "its parameters are the command's options with their help",
}  # fmt: skip
# Classes with more methods, and why.
LARGE_CLASSES = {
    "chat/gotemplate/parsing.py: _Parser": "a method for each rule of the grammar",
    "chat/taint.py: TaintedStr": "the methods of str",
    "ml/context.py: Context": "the graph's nodes: a method for each thing that is made in it",
    "ml/metadata.py: Metadata": "a typed getter for each type of value",
    "ml/tensor.py: Tensor": "the operations, one method each",
    "server/features/responses/output.py: ResponseWriter": "a method for each event",
    "tokenizer/tokenizer.py: Tokenizer": "what a tokenizer is asked for, one method each",
}  # fmt: skip
# Where attributes are looked up by a name in the code, and why.
PROBES = {
    "ml/devices.py": "`async` is a keyword of Python",
    "server/front/state.py": "only errors of SQLite itself have a code",
}
MOST_PROBES = 2
MOST_BROAD = 15  # handlers of every exception that never raise; ruff wants the reason of each


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def found(*kinds: type[ast.AST]) -> Iterator[tuple[str, Any]]:
    """The nodes of these kinds in all modules, each with its file's name."""
    for path in MODULES:
        yield from ((named(path), node) for node in nodes(path, *kinds))


def test_files_are_short() -> None:
    lines = {named(path): len(text(path).splitlines()) for path in MODULES}
    assert {name: count for name, count in lines.items() if count > LONGEST_FILE} == {}


def test_functions_fit_a_screen() -> None:
    long = {
        f"{name}: {node.name}"
        for name, node in found(ast.FunctionDef, ast.AsyncFunctionDef)
        if (node.end_lineno or 0) - node.lineno + 1 > LONGEST_FUNCTION
    }
    assert long == set(LONG_FUNCTIONS)


def test_classes_have_few_methods() -> None:
    large = {
        f"{name}: {node.name}"
        for name, node in found(ast.ClassDef)
        if sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)
        > MOST_METHODS
    }
    assert large == set(LARGE_CLASSES)


def test_attributes_are_declared_not_probed_for() -> None:
    probes = Counter(
        name
        for name, node in found(ast.Call)
        if isinstance(node.func, ast.Name)
        and node.func.id in {"getattr", "hasattr"}
        and isinstance(node.args[1], ast.Constant)
    )
    assert set(probes) == set(PROBES)
    assert probes.total() <= MOST_PROBES


def test_few_places_catch_every_exception_and_continue() -> None:
    broad = [
        f"{name}:{node.lineno}"
        for name, node in found(ast.ExceptHandler)
        if isinstance(node, ast.ExceptHandler)
        if not {"Exception", "BaseException"}.isdisjoint(caught(node))
        if not any(isinstance(each, ast.Raise) for each in ast.walk(node))
    ]
    assert len(broad) <= MOST_BROAD, broad
    marks = re.compile(r"noqa: BLE001(?! - \w)")
    assert [named(path) for path in MODULES if marks.search(text(path))] == []


def caught(handler: ast.ExceptHandler) -> set[str]:
    """The names of the classes that a handler catches."""
    if handler.type is None:
        return {"BaseException"}
    return {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}


def test_features_are_known_to_the_application_alone() -> None:
    """A feature imports the core of the server; the core imports no feature, no feature another."""
    strays = [
        (named(path), name)
        for path in MODULES
        for name in sorted({*imports(path)})
        if (feature := feature_of(name.replace(".", "/")))
        and feature != feature_of(f"tampu/{named(path)}")
        and named(path) not in KNOWING_FEATURES
    ]
    assert strays == []


def feature_of(path: str) -> str:
    """The name of the feature whose folder a path is in; empty if it is in none."""
    match = re.match(r"tampu/server/features/(\w+)", path)
    return match[1] if match else ""


def test_the_top_level_has_packages_and_few_modules() -> None:
    assert {path.name for path in ROOT.glob("*.py")} == TOP_LEVEL
