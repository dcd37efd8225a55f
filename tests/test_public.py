"""What a Python developer sees of the package: its names, its errors, a free import."""

import re
import subprocess
import sys

import tampu
from tampu import errors


def test_completion_and_help_see_the_public_names() -> None:
    assert set(tampu.__all__) <= set(dir(tampu))


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
