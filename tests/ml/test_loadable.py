"""Backends in libraries of their own: those that cannot be used are left out, with the reason."""

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tampu.ml import loadable
from tampu.ml.linking import find_libraries
from tampu.ml.loadable import begin_loading, load_backends

BASE = find_libraries()[0]
START = """
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
void *ggml_backend_init(void) {{ {code} }}
"""


@pytest.fixture
def backend(tmp_path: Path) -> Callable[..., Path]:
    """Compile a backend whose start is this code, in a folder of its own."""

    def compiled(code: str, *options: str) -> Path:
        folder = tmp_path / "backends"
        folder.mkdir()
        library = str(folder / "libggml-vulkan.so")
        command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", library, *options]
        subprocess.run(command, input=START.format(code=code), text=True, check=True)
        return folder

    return compiled


def found(folder: Path) -> tuple[list[int], str]:
    """Return what was registered, and the problem."""
    registered: list[int] = []
    (one,) = load_backends(folder, BASE, registered.append)
    assert (one.name, one.file) == ("vulkan", folder / "libggml-vulkan.so")
    return registered, one.problem


def test_a_backend_is_registered(backend: Callable[..., Path]) -> None:
    assert found(backend("return (void *)(1ul << 40);")) == ([1 << 40], "")


def test_it_is_loaded_beside_what_the_program_does(
    backend: Callable[..., Path], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    folder = backend(f'while (access("{gate}", F_OK)) usleep(1000); return (void *)(1ul << 40);')
    registered: list[int] = []
    loading = begin_loading(folder, BASE, registered.append)
    assert not loading.done()
    gate.touch()
    assert [each.problem for each in loading.result()] == [""]
    assert registered == [1 << 40]


def test_without_backends_there_is_nothing_to_wait_for(tmp_path: Path) -> None:
    before = threading.active_count()
    for folder in (tmp_path, tmp_path / "missing"):
        assert begin_loading(folder, BASE, print).result() == ()
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("code", "problem"),
    [("return 0;", "it found no driver that it can use"),
     ("abort();", "the driver ends the process with SIGABRT"),
     ("*(volatile int *)0 = 1; return 0;", "the driver ends the process with SIGSEGV"),
     ("raise(40);", "the driver ends the process with signal 40"),  # a real-time signal
     ("_exit(3);", "exit code 3 when it was tried")],
)  # fmt: skip
def test_a_broken_driver_leaves_the_backend_out(
    backend: Callable[..., Path], code: str, problem: str
) -> None:
    assert found(backend(code)) == ([], problem)


def test_what_it_says_where_it_finds_no_device_is_not_seen(
    backend: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> None:
    folder = backend('write(2, "no device 3\\n", 12); return 0;')
    assert found(folder) == ([], "it found no driver that it can use")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("python", ["", "/missing/python"])
@pytest.mark.parametrize(
    ("code", "result"),
    [
        ("return (void *)(1ul << 40);", ([1 << 40], "")),
        ("return 0;", ([], "it found no driver that it can use")),
    ],
)
def test_where_no_other_process_can_be_started_it_is_started_here(
    backend: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    code: str,
    result: tuple[list[int], str],
    python: str,
) -> None:
    monkeypatch.setattr(sys, "executable", python)
    assert found(backend(code)) == result


def test_a_driver_that_does_not_answer_leaves_the_backend_out(
    backend: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loadable, "_PROBE_S", 0.5)
    registered, problem = found(backend("pause(); return 0;"))
    assert not registered
    assert "did not start within" in problem


def test_without_a_library_that_it_needs_it_is_left_out(
    backend: Callable[..., Path], tmp_path: Path
) -> None:
    needed = tmp_path / "libneeded.so"
    subprocess.run(
        ["cc", "-shared", "-x", "c", "-", "-o", needed], input=b"int needed;", check=True
    )
    folder = backend("return 0;", "-Wl,--no-as-needed", f"-L{tmp_path}", "-lneeded")
    needed.unlink()
    registered, problem = found(folder)
    assert not registered
    assert problem.startswith("libneeded.so: cannot open shared object file")


def test_where_there_are_none_nothing_is_loaded(tmp_path: Path) -> None:
    registered: list[int] = []
    assert load_backends(tmp_path / "backends", BASE, registered.append) == ()
