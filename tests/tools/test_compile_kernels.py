"""The kernels are compiled again only if something that they are made from has changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tools.setup import compile_kernels

# A compiler that logs its calls and copies its last source to the output.
COMPILER = """#!/bin/sh
case $1 in
    -dumpmachine) echo riscv64-linux-gnu; exit ;;
    --version) echo "{version}"; exit ;;
esac
echo "$*" >> "{log}"
while [ "$1" != -o ]; do shift; done
echo object > "$2"
"""


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Compile in a folder; return the number of calls of the compiler."""
    sources, folder, log = tmp_path / "source", tmp_path / "out", tmp_path / "log"
    sources.mkdir()
    folder.mkdir()
    (sources / "pack.c").write_text("int one;")
    monkeypatch.setattr(compile_kernels, "SOURCES", sources)
    compiler = tmp_path / "cc"
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.delenv("CFLAGS", raising=False)

    def compile_once(*flags: str, version: str = "cc 12") -> int:
        compiler.write_text(COMPILER.format(version=version, log=log))
        compiler.chmod(0o755)
        log.write_text("")
        library = compile_kernels.compile_kernels(folder, flags)
        assert library == folder / "libtampu_kernels.so"
        assert library.is_file()
        return len(log.read_text().splitlines())

    return compile_once


def test_an_unchanged_library_is_not_compiled_again(compiled: Callable[..., int]) -> None:
    assert compiled() > 0
    assert compiled() == 0


def test_a_changed_source_is_compiled(compiled: Callable[..., int], tmp_path: Path) -> None:
    compiled()
    (tmp_path / "source" / "pack.c").write_text("int two;")
    assert compiled() > 0
    (tmp_path / "source" / "new.h").write_text("")
    assert compiled() > 0
    assert compiled() == 0


def test_another_compiler_or_other_flags_compile_again(
    compiled: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled()
    assert compiled("-g") > 0
    assert compiled() > 0
    assert compiled(version="cc 13") > 0
    monkeypatch.setenv("CFLAGS", "-O1")
    assert compiled(version="cc 13") > 0
    assert compiled(version="cc 13") == 0


@pytest.mark.parametrize("change", [Path.unlink, lambda path: path.write_text("damaged")])
def test_a_missing_or_damaged_library_is_compiled(
    compiled: Callable[..., int], tmp_path: Path, change: Callable[[Path], object]
) -> None:
    compiled()
    change(tmp_path / "out" / "libtampu_kernels.so")
    assert compiled() > 0
    assert compiled() == 0
