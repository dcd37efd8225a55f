"""Which of a wheel's CPU libraries is loaded; stand-ins are compiled that answer as ggml's do."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tampu.errors import LibraryError
from tampu.ml.variants import Libraries, fastest

SOURCE = """
int ggml_backend_score(void) {{ return {score}; }}
int ggml_cpu_has_avx(void) {{ return {avx}; }}
int ggml_cpu_has_avx512(void) {{ return {avx512}; }}
"""
KINDS = {
    "x64": {"score": 1, "avx": 0, "avx512": 0},
    "haswell": {"score": 64, "avx": 1, "avx512": 0},
    "zen4": {"score": 1920, "avx": 1, "avx512": 1},
}


def compiled(path: Path, code: str) -> None:
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", path], input=code, text=True, check=True
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, answers in KINDS.items():
        compiled(tmp_path / f"libggml-cpu-{name}.so", SOURCE.format(**answers))
    return tmp_path


@pytest.fixture
def cpuinfo(tmp_path: Path) -> Callable[[Any], Any]:
    def write(flags: str) -> Path:
        path = tmp_path / "cpuinfo"
        path.write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t: spectre_v1\n")
        return path

    return write


def test_the_library_of_the_highest_score_is_chosen(
    folder: Path, cpuinfo: Callable[[Any], Any]
) -> None:
    found = fastest(folder, cpuinfo("fpu sse2 avx avx2 avx512f"))
    assert found.name == "libggml-cpu-zen4.so"


@pytest.mark.parametrize(
    ("flags", "chosen"), [("fpu sse2 avx avx2", "haswell"), ("fpu sse2", "x64")]
)
def test_registers_that_the_kernel_does_not_save_are_not_used(
    folder: Path, cpuinfo: Callable[[Any], Any], flags: str, chosen: str
) -> None:
    assert fastest(folder, cpuinfo(flags)).name == f"libggml-cpu-{chosen}.so"


def test_without_a_list_of_flags_the_score_counts_alone(folder: Path, tmp_path: Path) -> None:
    assert fastest(folder, tmp_path / "missing").name == "libggml-cpu-zen4.so"


def test_a_library_that_does_not_run_here_is_not_chosen(
    tmp_path: Path, cpuinfo: Callable[[Any], Any]
) -> None:
    compiled(tmp_path / "libggml-cpu-other.so", SOURCE.format(score=0, avx=0, avx512=0))
    with pytest.raises(LibraryError, match=r"none of the ggml libraries in .* runs on this"):
        fastest(tmp_path, cpuinfo("fpu sse2"))


def loaded(folder: Path, code: str = "") -> str:
    """Load a folder's libraries in a process that has no other ggml; return what it said last."""
    program = f"""
import pathlib
from tampu.ml.variants import Libraries
libraries = Libraries(pathlib.Path({str(folder)!r}))
{code}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    return (done.stdout + done.stderr).splitlines()[-1]


def test_a_missing_library_is_one_clear_error(folder: Path) -> None:
    said = loaded(folder)
    assert "LibraryError: ggml cannot be loaded, reinstall tampu: " in said
    assert "libtampu-ggml-base.so" in said


@pytest.fixture
def complete(folder: Path) -> Path:
    code = "static int got; void ggml_backend_register(void *reg) { got = reg != 0; }"
    compiled(folder / "libggml.so", code + "int registered(void) { return got; }")
    compiled(folder / "libtampu-ggml-base.so", "int in_base(void) { return 7; }")
    more = "void *ggml_backend_init(void) { return (void *)8; }"
    compiled(folder / "libggml-cpu-best.so", SOURCE.format(score=9999, avx=0, avx512=0) + more)
    return folder


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("libraries.variant", "best"),
        ("libraries.registered()", "1"),
        ("libraries.in_base()", "7"),
        ("libraries.ggml_backend_score()", "9999"),
        ("hasattr(libraries, 'ggml_nothing')", "False"),
    ],
)
def test_functions_of_all_libraries_are_found(complete: Path, code: str, said: str) -> None:
    assert loaded(complete, f"print({code})") == said


def test_a_ggml_that_shadows_the_installed_one_is_one_clear_error(complete: Path) -> None:
    with pytest.raises(LibraryError, match=r"this process would use .*/libggml-base.so instead"):
        Libraries(complete)  # the tests' own ggml was loaded for all to use
