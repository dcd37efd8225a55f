"""ggml's libraries: the installed ones are loaded, and another ggml's are told from them."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.tiny_model import write_tiny

from tampu.errors import LibraryError
from tampu.ml import linking
from tampu.ml.elf import stub_library
from tampu.ml.library import gg
from tampu.ml.linking import VERSION, check_bindings, find_libraries

LIBRARIES = find_libraries()
BASE = LIBRARIES[0]
NAMES = [file.name for file in LIBRARIES]
linux = pytest.mark.skipif(sys.platform != "linux", reason="the dynamic linker of Linux")

# What another ggml may be: it has the functions, but its operations have other numbers.
OTHER = """
const char * ggml_version(void) {{ return "{version}"; }}
const char * ggml_op_name(int op) {{
    static const char * const names[] = {{ {operations} }};
    return op < (int) (sizeof names / sizeof *names) ? names[op] : 0;
}}
"""
FATAL = "#include <stdlib.h>\n__attribute__((constructor)) static void loaded(void) {{ abort(); }}"

ANSWER = """
from tampu.engine.engine import Engine
with Engine.load("demo", context=256, threads=1) as engine:
    print(engine.chat([{"role": "user", "content": "What is 27 + 58?"}], temperature=0.0).text)
"""
WORKER = """
import asyncio, sys
from pathlib import Path
from tampu.sandbox.client import ForkServerClient
from tampu.worker.start import start_worker
from tampu.engine.load_options import LoadOptions
from tampu.engine.prompts import TokensPrompt
from tampu.engine.requests import Generate
from tampu.runner.generate_options import GenerateOptions

async def main(model, libraries):
    environment = {"LD_LIBRARY_PATH": libraries}
    worker = await start_worker(
        Path(model),
        LoadOptions(),
        name="m",
        environment=environment,
        fork_server=ForkServerClient(),
    )
    options = GenerateOptions(max_tokens=2)
    events = [event async for event in worker.run(Generate(TokensPrompt((1, 2, 3)), options))]
    await worker.close()
    print(events[-1].usage.generated_tokens)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
def other(tmp_path: Path) -> Callable[..., Any]:
    """Compile libraries with the names of ggml's; return their folder."""

    def make(
        source: str,
        version: str = VERSION,
        operations: tuple[str] = ("NONE",),
        flags: list[str] | tuple[()] = (),
        names: list[str] = NAMES,
    ) -> Path:
        quoted = ", ".join(f'"{name}"' for name in operations)
        code = tmp_path / "other.c"
        code.write_text(source.format(version=version, operations=quoted))
        folder = tmp_path / "other"
        folder.mkdir()
        for name in names:
            named = [flag.format(name=name) for flag in flags]
            command = ["cc", "-shared", "-fPIC", *named, str(code), "-o", str(folder / name)]
            subprocess.run(command, check=True, timeout=280)
        return folder

    return make


def python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a Python of its own; return what it printed."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(
        command, env={"PATH": os.defpath} | environment, capture_output=True, text=True, timeout=100
    )


@linux
def test_the_installed_libraries_are_loaded_with_any_library_path(
    other: Callable[..., Any],
) -> None:
    """Those in LD_LIBRARY_PATH end the process as soon as they are loaded."""
    ended = python(ANSWER, LD_LIBRARY_PATH=str(other(FATAL)))
    assert (ended.stdout, ended.returncode) == ("85\n", 0), ended.stderr


@linux
@pytest.mark.server
def test_a_models_process_loads_the_installed_libraries_too(
    other: Callable[..., Any], tmp_path: Path
) -> None:
    model = tmp_path / "model.gguf"
    write_tiny(model)
    ended = python(WORKER, str(model), str(other(FATAL)))
    assert (ended.stdout, ended.returncode) == ("2\n", 0), ended.stderr


@linux
def test_another_ggml_that_was_loaded_before_is_named_with_ours(other: Callable[..., Any]) -> None:
    folder = other(OTHER, flags=["-Wl,-soname,{name}"], names=[BASE.name])
    load = f"import ctypes; ctypes.CDLL({str(folder / BASE.name)!r}); import tampu.ml.library"
    ended = python(load)
    line = ended.stderr.splitlines()[-1]
    assert line.startswith("tampu.errors.LibraryError: ")
    assert str(folder / BASE.name) in line
    assert str(BASE) in line


@linux
def test_a_preloaded_ggml_is_one_line_of_the_command(other: Callable[..., Any]) -> None:
    preloaded = other(OTHER, names=[BASE.name]) / BASE.name
    command = [sys.executable, "-m", "tampu.cli.entry", "devices"]
    environment = {"PATH": os.defpath, "LD_PRELOAD": str(preloaded)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert ended.returncode > 0
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"Error: this process would use {preloaded} instead of {BASE};")


@linux
def test_another_version_is_an_error_with_both_files(other: Callable[..., Any]) -> None:
    file = other(OTHER, version="0.9.4", names=[BASE.name]) / BASE.name
    code = "import sys; from pathlib import Path; from tampu.ml.linking import link; "
    ended = python(code + "link([Path(sys.argv[1])])", str(file))
    line = ended.stderr.splitlines()[-1]
    assert f"LibraryError: {file} is ggml 0.9.4, but {gg.__file__} is for {VERSION};" in line


@linux
@pytest.mark.parametrize(
    ("operations", "told"),
    [
        (["NONE", "DUP"], f"it has 2 operations, not {gg.GGML_OP_COUNT}"),
        (["NONE", "DUP", "SQR"], "its operation 2 is 'SQR', which has another number there"),
        (["NONE", "OF_OUR_OWN"], "its operation 1 is 'OF_OUR_OWN', which has another number there"),
    ],
)
def test_other_operations_are_an_error_with_both_files(
    other: Callable[..., Any], operations: list[str], told: str
) -> None:
    file = other(OTHER, operations=operations) / BASE.name
    with pytest.raises(LibraryError) as raised:
        check_bindings(gg, file)
    assert str(raised.value).startswith(f"{file} does not fit {gg.__file__}: {told};")


def test_another_layout_of_a_type_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gg, "ggml_type_size", lambda _: 20)
    with pytest.raises(LibraryError, match="its blocks of F32 have 1 elements in 20 bytes"):
        check_bindings(gg, BASE)


def test_the_installed_ggml_is_the_one_that_the_bindings_are_for() -> None:
    check_bindings(gg, BASE)


def test_no_library_has_ggmls_rpc_backend() -> None:
    """It runs what its clients send; docs/scale.md claims that it is not there."""
    bound = {name for name in vars(gg) if name.startswith("ggml_backend_rpc_")}
    assert {"ggml_backend_rpc_init", "ggml_backend_rpc_start_server"} <= bound
    names = b"ggml_backend_rpc_"
    assert [file.name for file in LIBRARIES if names in file.read_bytes()] == []
    assert not gg.GGML_USE_RPC


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linking, "find_spec", lambda _: None)
    with pytest.raises(LibraryError, match="ggml-python is not installed"):
        find_libraries()


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(linking, "_bindings", lambda: tmp_path / "ggml.py")
    with pytest.raises(LibraryError, match=r"/lib has no libggml-base\.\w+; reinstall"):
        find_libraries()


def test_files_other_than_64_bit_elf_are_loaded_by_path() -> None:
    assert stub_library(["a"], "/b", b"\xcf\xfa\xed\xfe" + bytes(60)) is None
    assert stub_library(["a"], "/b", b"\x7fELF\x01" + bytes(59)) is None
    assert stub_library(["a"], "/b", b"") is None
