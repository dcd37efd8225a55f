"""The rules of the house that a tool does not check already."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.sources import imports, nodes, text, tree

import tampu
from tampu.models import architectures
from tampu.nn import Model, VisionModel

ROOT = Path(tampu.__file__).parent
TESTS = Path(__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
INSIDE = {path.stem for path in ROOT.iterdir()}
# From the bottom up; a module imports from its own package and from the lines below its own.
LAYERS = [
    ("errors", "version"), ("cancellation", "long_json", "text", "threads"),
    ("settings", "sandbox"), ("ml",),
    ("nn", "tokenizer", "sampling", "vision", "audio", "gguf_compat"),
    ("kvcache", "chat"), ("models",), ("runner",), ("convert",), ("store",), ("engine",),
    ("backends",), ("bench",), ("evaluation",), ("worker",), ("server",), ("cluster",), ("cli",),
]  # fmt: skip
# The packages that know least, and all that each may know.
ONLY = {
    "ml": {"errors", "settings", "threads", "version"},
    "gguf_compat": {"errors", "ml"},
    "nn": {"errors", "ml"},
    "models": {"errors", "ml", "nn", "kvcache", "vision", "audio"},
    "audio": {"errors", "sandbox"},
    "tokenizer": {"errors", "cancellation", "ml"},
    "sampling": {"errors", "sandbox", "settings", "threads"},
}
HOLDERS = {
    "ggml": {"ml"},
    "ray": {"cluster"},
    "opentelemetry": {"server"},
    "starlette": {"server", "cluster"},
    "uvicorn": {"server", "cli"},
    "typer": {"cli"},
    "urllib3": {"store"},
    "cryptography": {"store", "kvcache"},
    "rich": {"cli"},
    "markdown_it": {"cli"},
    "prompt_toolkit": {"cli"},
    "tokenizers": {"tokenizer", "convert"},  # a conversion is compared with it
    "llguidance": {"sampling"},
    "jinja2": {"chat"},
    "anyio": {"server"},
    "httpx2": {"server"},
    "mcp": {"server"},
    "mcp_types": {"server"},
    "gguf": set(),
    "PIL": {"vision"},
    "av": {"audio", "vision"},
}
NEVER = {"torch", "transformers", "pickle", "marshal", "shelve", "dill", "imp"}
# Where tests may sleep, and why. To wait there are `support.waiting`, with an end and a message,
# `support.virtual_time`, and clocks that are handed in.
SLEEPS = {
    "conftest.py": "waits for threads to end, with an end and a message",
    "registry/test_docker_registry.py": "kills at random moments: any must be right",
    "runner/test_interleavings.py": "random moments: any order must be right",
    "runner/test_loop.py": "cancels at random moments: any must be right",
    "runner/test_two_steps.py": "a device's pace, and cancels at random moments: any must be right",
    "worker/test_worker_process.py": "asks again now and then; `run` has an end",
    "server/test_faults.py": "how long a process stands still; a look again, with an end",
    "sandbox/test_process.py": "asks at the moments at which a process may end: any must be right",
    "sandbox/test_fork_server.py": "kills at random moments: any must be right",
    "support/fake_model.py": "a model's pace, and one that does not load",
    "support/fake_runner.py": "a model's pace, and one that says nothing",
    "support/sandboxed_work.py": "work that takes its time",
    "support/local_http.py": "a slow server",
    "support/registries.py": "waits for the registry to answer, with an end and a message",
    "support/serving.py": "waits for the server to answer, with an end and a message",
    "support/virtual_time.py": "virtual time",
    "support/waiting.py": "waits with an end and a message",
}
# Where tests may look at the clock, and why. A limit of so many seconds is red on a slow machine:
# costs are compared with others measured beside them (`support.cost`).
CLOCKS = {
    "conftest.py": "waits for threads to end, with an end and a message",
    "clients/test_ollama_client.py": "the time that is told lies between two looks",
    "ml/test_threads.py": "computes for a while; what is measured is compared with it",
    "worker/test_worker_process.py": "compares with a process's start; the least that may pass",
    "sampling/test_sampler.py": "compares with sorting, measured beside it",
    "server/serving/test_crashes.py": "compares with a load; the least that may pass",
    "server/test_faults.py": "a look again, with an end",
    "server/front/test_listening.py": "the least that may pass",
    "server/ollama/test_ollama_lists.py": "the time that is told lies between two looks",
    "store/test_faults.py": "compares with a program's start",
    "store/test_pull.py": "the least that may pass",
    "store/test_rogue_registry.py": "the least that may pass",
}
NAMES_OF_NOTHING = {"utils", "util", "helpers", "common", "misc", "shared"}


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


NAMES = {f"tampu.{dotted(path)}" for path in MODULES}


def package(name: str) -> str:
    return name.partition(".")[0]


def links() -> Iterator[tuple[Any, str]]:
    """Pairs of modules of tampu, where the first imports the second from another package."""
    for path in MODULES:
        name = dotted(path)
        for other in sorted(imports(path)):
            other = other.removeprefix("tampu.")
            if package(other) in INSIDE and package(other) != package(name) and name != "__init__":
                yield name, other


def layer(name: str) -> int:
    """The line of LAYERS for a module's package."""
    return next(number for number, names in enumerate(LAYERS) if package(name) in names)


def test_every_module_has_its_place() -> None:
    placed = {name for names in LAYERS for name in names}
    assert {package(dotted(path)) for path in MODULES} - {"__init__"} <= placed


def test_imports_point_downward() -> None:
    assert [(name, other) for name, other in links() if layer(other) >= layer(name)] == []


def imported_modules(path: Path) -> set[str]:
    """The modules of tampu that a module imports; of a package's names, those that are modules."""
    found = {alias.name for node in nodes(path, ast.Import) for alias in node.names}
    for node in nodes(path, ast.ImportFrom):
        if owner := node.module:
            parts = (f"{owner}.{alias.name}" for alias in node.names)
            found |= {part if part in NAMES else owner for part in parts}
    return {name.removeprefix("tampu.") for name in found & NAMES} - {dotted(path)}


def test_no_package_has_a_circle_of_imports_inside() -> None:
    """Imports for annotations alone count too: files of a circle are understood only together."""
    left = {dotted(path): imported_modules(path) for path in MODULES}
    while left:  # take away what imports nothing that is left, and what nothing left imports
        wanted = set().union(*left.values())
        ends = {name for name, others in left.items() if not others & left.keys()}
        ends |= left.keys() - wanted
        if not ends:
            break
        left = {name: others for name, others in left.items() if name not in ends}
    assert sorted(left) == []


def test_the_lower_packages_know_only_what_they_need() -> None:
    strays = [
        (name, other)
        for name, other in links()
        if package(other) not in ONLY.get(package(name), {package(other)})
    ]
    assert strays == []


def test_each_library_is_used_where_it_belongs() -> None:
    strays = [
        (dotted(path), name)
        for path in MODULES
        for name in sorted(imports(path))
        if package(name) in NEVER
        or package(dotted(path)) not in HOLDERS.get(package(name), {package(dotted(path))})
    ]
    assert strays == []


def test_nothing_evaluates_text() -> None:
    calls = [
        (dotted(path), node.func.id)
        for path in MODULES
        for node in nodes(path, ast.Call)
        if isinstance(node.func, ast.Name)
    ]
    assert [call for call in calls if call[1] in {"eval", "exec", "compile", "__import__"}] == []


def test_only_the_settings_read_the_environment() -> None:
    read = [
        (dotted(path), node.attr)
        for path in MODULES
        for node in nodes(path, ast.Attribute)
        if isinstance(node.value, ast.Name)
        and node.value.id == "os"
        and node.attr in {"environ", "environb", "getenv", "putenv"}
    ]
    assert {name for name, _ in read} == {"settings.settings"}


def test_only_commands_and_library_entry_points_read_the_settings() -> None:
    readers = {
        str(path.relative_to(ROOT))
        for path in MODULES
        for node in nodes(path, ast.Attribute)
        if node.attr == "from_environment"
    }
    assert {name for name in readers if not re.fullmatch(r"cli/\w+\.py", name)} == {
        "cluster/app.py",
        "store/catalog.py",
    }


def test_names_of_modules_say_what_is_inside() -> None:
    assert [path.name for path in MODULES if path.stem in NAMES_OF_NOTHING] == []


def test_each_module_says_what_it_is() -> None:
    assert [dotted(path) for path in MODULES if not ast.get_docstring(tree(path))] == []


def test_the_public_names_are_sorted_and_there() -> None:
    assert list(tampu.__all__) == sorted(tampu.__all__)
    assert [name for name in tampu.__all__ if not hasattr(tampu, name)] == []


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "py.typed").is_file()


def test_the_tests_mirror_the_package() -> None:
    packages = {path.name for path in ROOT.iterdir() if (path / "__init__.py").is_file()}
    folders = {path.name for path in TESTS.iterdir() if any(path.glob("test_*.py"))}
    assert (
        folders
        - {"parity", "benchmarks", "clients", "demo", "docs", "examples", "registry", "tools"}
        <= packages
    )


def calls_of(path: Path, modules: set[Any], functions: set[Any] | set[str]) -> Iterator[int]:
    """The calls of functions of modules, but for `sleep(0)`, which only lets others go on."""
    for node in nodes(path, ast.Call):
        if not isinstance(node.func, ast.Attribute):
            continue
        owner, name = node.func.value, node.func.attr
        is_turn = name == "sleep" and [ast.unparse(value) for value in node.args] == ["0"]
        is_theirs = isinstance(owner, ast.Name) and owner.id in modules and name in functions
        if is_theirs and not is_turn:
            yield node.lineno


def in_tests(modules: set[Any], functions: set[Any] | set[str]) -> dict[str, Any]:
    """The test files that call functions of modules, and the first line of each."""
    found = {}
    for path in sorted(TESTS.rglob("*.py")):
        if not any(f".{name}(" in text(path) for name in functions):
            continue  # need not be parsed
        lines = [*calls_of(path, modules, functions)]
        if lines:
            found[path.relative_to(TESTS).as_posix()] = min(lines)
    return found


def test_no_test_waits_by_sleeping() -> None:
    found = in_tests({"time", "asyncio"}, {"sleep"})
    assert {name: line for name, line in found.items() if name not in SLEEPS} == {}
    assert {*SLEEPS} <= {*found}, "these sleep no more"


def test_no_test_sets_a_limit_by_the_clock() -> None:
    clocks = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns"}
    found = in_tests({"time"}, clocks)
    found = {name: line for name, line in found.items() if not name.startswith("support/")}
    assert {name: line for name, line in found.items() if name not in CLOCKS} == {}
    assert {*CLOCKS} <= {*found}, "these look at no clock any more"


def test_no_test_imports_sleep_or_a_clock_by_its_name() -> None:
    by_name = re.compile(r"^\s*from time import ", re.M)
    assert [path.name for path in sorted(TESTS.rglob("*.py")) if by_name.search(text(path))] == []


@pytest.mark.seed("S21", "S23", "S49", "S63")
def test_the_runner_and_the_cache_know_no_architecture() -> None:
    names = set(architectures()) | {path.stem for path in (ROOT / "models").glob("[a-z]*.py")}
    any_of_them = re.compile(rf"\b({'|'.join(map(re.escape, names))})\b(?!\.cpp)", re.I)
    told = [
        (dotted(path), found[0])
        for folder in ("runner", "kvcache")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "llamacpp" not in path.parts  # the other engine
        for found in any_of_them.finditer(text(path))
    ]
    assert told == []


def test_no_architecture_inherits_from_another() -> None:
    """What architectures share is in `nn`: each file of `models` is understood by itself."""
    names = [f"tampu.{dotted(path)}" for path in (ROOT / "models").glob("[a-z]*.py")]
    modules = {name: importlib.import_module(name) for name in names}
    heirs = [
        (f"{name}.{kind.__name__}", base.__qualname__)
        for name, module in modules.items()
        for kind in vars(module).values()
        if isinstance(kind, type) and kind.__module__ == name
        for base in kind.__mro__[1:]
        if base.__module__.startswith("tampu.models")
        and (base.__module__ != name or issubclass(base, Model | VisionModel))
    ]
    assert heirs == []
