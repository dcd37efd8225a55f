"""What a Python developer sees of the package: its names, its errors, a free import."""

import inspect
import re
import subprocess
import sys
import typing
from collections.abc import Iterator

import tampu
from tampu import Engine, errors


def test_completion_and_help_see_the_public_names() -> None:
    assert set(tampu.__all__) <= set(dir(tampu))


# What callers neither make nor look into: results of `prepare_file`, and what the server uses.
HANDED_ON = {
    "BatchCounts", "Failed", "ForkServerClient", "NumberedMedia", "PreparedMedia", "Result",
    "Running", "Settings",
}  # fmt: skip


def test_classes_in_the_methods_of_the_engine_are_public() -> None:
    found: set[str] = set()
    for name, method in inspect.getmembers(Engine, callable):
        if not name.startswith("_"):
            function = inspect.unwrap(getattr(method, "__func__", method))
            hints = typing.get_type_hints(function, vars(sys.modules[function.__module__]))
            found |= {kind.__name__ for kind in classes_of(tuple(hints.values()))}
    assert found - HANDED_ON <= set(tampu.__all__)
    assert found >= {"Pair", "Completion"}


def classes_of(hint: object) -> Iterator[type]:
    """Yield tampu's classes in a type, or in a list of types."""
    if isinstance(hint, type) and hint.__module__.startswith("tampu."):
        yield hint
    for inner in hint if isinstance(hint, list | tuple) else typing.get_args(hint):
        yield from classes_of(inner)


def test_importing_the_package_loads_nothing_else() -> None:
    code = "import sys, tampu; print(*(name for name in ('numpy', 'ggml') if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_errors_are_drawn_as_they_are() -> None:
    drawn = re.findall(r"^    ([│├└─ ]*)(\w+Error)\b", errors.__doc__, re.MULTILINE)
    parents = {}
    above: list[str] = []
    for lines, name in drawn:
        depth = len(lines) // 4
        above[depth:] = [name]
        parents[name] = above[depth - 1] if depth else "Exception"
    assert parents == {
        name: value.__base__.__name__
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }
