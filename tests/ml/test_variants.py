"""Which of a wheel's CPU libraries is loaded; stand-ins are compiled that answer as ggml's do."""

import subprocess

import pytest

from tampu.errors import ComputeError
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


def compiled(path, code):
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", path], input=code, text=True, check=True
    )


@pytest.fixture
def folder(tmp_path):
    for name, answers in KINDS.items():
        compiled(tmp_path / f"libggml-cpu-{name}.so", SOURCE.format(**answers))
    return tmp_path


@pytest.fixture
def cpuinfo(tmp_path):
    def write(flags):
        path = tmp_path / "cpuinfo"
        path.write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t: spectre_v1\n")
        return path

    return write


def test_the_highest_score_is_chosen(folder, cpuinfo):
    found = fastest(folder, cpuinfo("fpu sse2 avx avx2 avx512f"))
    assert found.name == "libggml-cpu-zen4.so"


@pytest.mark.parametrize(
    ("flags", "chosen"), [("fpu sse2 avx avx2", "haswell"), ("fpu sse2", "x64")]
)
def test_registers_that_the_system_does_not_keep_are_not_used(folder, cpuinfo, flags, chosen):
    assert fastest(folder, cpuinfo(flags)).name == f"libggml-cpu-{chosen}.so"


def test_without_a_list_of_flags_the_score_counts_alone(folder, tmp_path):
    assert fastest(folder, tmp_path / "missing").name == "libggml-cpu-zen4.so"


def test_a_library_that_does_not_run_here_is_not_chosen(tmp_path, cpuinfo):
    compiled(tmp_path / "libggml-cpu-other.so", SOURCE.format(score=0, avx=0, avx512=0))
    with pytest.raises(ComputeError, match=r"none of the ggml libraries in .* runs on this"):
        fastest(tmp_path, cpuinfo("fpu sse2"))


def test_a_missing_library_is_one_clear_error(folder):
    with pytest.raises(ComputeError, match=r"ggml cannot be loaded, install tampu anew: .*-base"):
        Libraries(folder)


def test_the_functions_of_all_libraries_are_seen_as_one(folder):
    code = "static int got; void ggml_backend_register(void *reg) { got = reg != 0; }"
    compiled(folder / "libggml.so", code + "int registered(void) { return got; }")
    compiled(folder / "libtampu-ggml-base.so", "int in_base(void) { return 7; }")
    more = "void *ggml_backend_init(void) { return (void *)8; }"
    compiled(folder / "libggml-cpu-best.so", SOURCE.format(score=9999, avx=0, avx512=0) + more)
    libraries = Libraries(folder)
    assert libraries.variant == "best"
    assert (libraries.registered(), libraries.in_base(), libraries.ggml_backend_score()) == (
        1, 7, 9999,
    )  # fmt: skip
    with pytest.raises(AttributeError, match="no ggml_nothing"):
        libraries.ggml_nothing()
