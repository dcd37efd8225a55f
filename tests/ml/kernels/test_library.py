"""The compiled library is found, checked and chosen from; what is wrong only costs speed."""

import logging
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.kernels import SOURCES, levels, run_every_kernel

from tampu.errors import LibraryError, RequestError
from tampu.ml import Backend, GGMLType
from tampu.ml.kernels import KernelChoice, find_kernels, library


@pytest.fixture(autouse=True)
def unloaded() -> Iterator[None]:
    """Each test loads the library anew."""
    library._load.cache_clear()
    yield
    library._load.cache_clear()


@pytest.mark.parametrize(
    ("word", "operations"),
    [
        ("on", (True, True, True)),
        ("off", (False, False, False)),
        ("products", (True, False, False)),
        ("experts", (False, True, False)),
        ("attention", (False, False, True)),
    ],
)
def test_the_setting_selects_the_operations(word: str, operations: tuple[bool, bool, bool]) -> None:
    choice = KernelChoice.from_word(word)
    assert (choice.products, choice.experts, choice.attention) == operations
    assert choice.level is None


def test_an_unknown_word_is_refused() -> None:
    with pytest.raises(RequestError, match=r"on, off, products, experts, .*portable, not 'fast'"):
        KernelChoice.from_word("fast")


def test_no_library_is_loaded_with_kernels_off() -> None:
    assert find_kernels(KernelChoice.from_word("off"), Path("/nonexistent")) is None


def test_a_missing_library_is_logged_once(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with caplog.at_level(logging.WARNING, "tampu.ml"):
        assert find_kernels(KernelChoice(), tmp_path / "none.so") is None
        assert find_kernels(KernelChoice(), tmp_path / "none.so") is None
    (record,) = caplog.records
    assert "not used, ggml computes alone" in record.getMessage()


def test_a_library_of_other_sources_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One that was compiled before an update computes with other parameters than Python gives."""
    newer = tmp_path / "source"
    shutil.copytree(SOURCES, newer)
    monkeypatch.setattr(library, "_SOURCES", newer)
    assert find_kernels(KernelChoice()) is not None
    with (newer / "attention.h").open("a") as file:
        file.write("\n")
    library._load.cache_clear()
    with pytest.raises(LibraryError, match=r"not compiled from the C sources .*: run make tampu"):
        find_kernels(KernelChoice())


def test_a_library_that_does_not_say_its_sources_is_refused() -> None:
    with pytest.raises(LibraryError, match=r"libc\.so\.6 was not compiled from the C sources"):
        find_kernels(KernelChoice(), Path("libc.so.6"))


def test_a_library_without_sources_beside_it_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in a wheel."""
    monkeypatch.setattr(library, "_SOURCES", tmp_path / "none")
    assert find_kernels(KernelChoice()) is not None


def test_a_ggml_with_other_tensors_is_not_used(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "_FIELDS", ("nb", "ne", "op_params", "src", "data"))
    assert find_kernels(KernelChoice()) is None
    assert "have another layout" in caplog.text


def test_a_missing_level_is_refused_with_the_known_ones() -> None:
    with pytest.raises(RequestError, match=r"no kernels for mmx here; there are: .*portable"):
        find_kernels(KernelChoice(level="mmx"))


def test_a_missing_level_of_the_setting_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    missing = next(level for level in ("i8mm", "avx2") if level not in levels())
    with caplog.at_level(logging.WARNING, "tampu.ml"):
        kernels = find_kernels(KernelChoice.from_word(missing))
    lines = [line for line in caplog.messages if "no kernels for" in line]
    assert len(lines) == 1
    assert f"no kernels for {missing} here; there are: " in lines[0]
    fastest = find_kernels(KernelChoice())
    assert (kernels and kernels.level) == (fastest and fastest.level)


def test_a_level_of_the_setting_is_used() -> None:
    assert find_kernels(KernelChoice.from_word("portable")).level == "portable"


def test_sizes_over_4_gib_are_not_cut_off() -> None:
    kernels = find_kernels(KernelChoice(level="portable"))
    one = kernels.packed_bytes(GGMLType.Q8_0, 4096, 4096)
    assert kernels.packed_bytes(GGMLType.Q8_0, 4096, 4096, experts=512) == 512 * one > 2**32


def test_broken_amx_is_disabled_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = library._load(Path(library.__file__).with_name(library.LIBRARY))

    class Lying:
        tampu_amx_problem = staticmethod(lambda: b"its instructions fail here")

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    monkeypatch.setattr(library, "_load", lambda _: Lying())
    with caplog.at_level(logging.INFO, "tampu.ml"):
        assert find_kernels(KernelChoice(level="portable")) is not None
    monkeypatch.undo()
    assert "kernels: AMX is left out: its instructions fail here" in caplog.messages


@pytest.mark.parametrize(
    ("lie", "problem"),
    [
        ('-DLIE=asm("ud2")', "its instructions fail here"),
        ("-DLIE=return(0)", "its instructions fail here"),
        ("-DLIE=", None),
    ],
)
def test_reported_amx_support_is_tested(tmp_path: Path, lie: str, problem: str | None) -> None:
    """A program that has the trial as it is, on a CPU that seems to have AMX."""
    source = tmp_path / "trial.c"
    source.write_text(f"""
#define TRIAL_OF_AMX
#include "{SOURCES / "amx.c"}"
#include <stdio.h>
int main(void) {{ const char *problem = tampu_amx_problem(); puts(problem ? problem : "works"); }}
""")
    flags = ["-DTAMPU_AMX", lie, f"-I{SOURCES}", "-lm", "-o", str(tmp_path / "trial")]
    subprocess.run(["cc", "-std=gnu11", str(source), *flags], check=True)
    done = subprocess.run([tmp_path / "trial"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(problem or "works")


def test_the_portable_level_is_always_available() -> None:
    kernels = find_kernels(KernelChoice(level="portable"))
    assert kernels is not None
    assert kernels.level == "portable"


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (GGMLType.F32, (16, 32)),
        (GGMLType.Q4_0, (16, 33)),
        (GGMLType.Q4_K, (16, 128)),
        (GGMLType.Q4_0, (0, 32)),
        (GGMLType.Q3_K, (16, 256)),
    ],
)
def test_a_type_without_a_layout_has_no_size(kind: GGMLType, shape: tuple[int, int]) -> None:
    assert find_kernels(KernelChoice()).packed_bytes(kind, *shape) == 0


def test_a_backend_without_the_library_computes_with_ggml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "LIBRARY", "none.so")
    backend = Backend(threads=1, max_nodes=16)
    assert backend.kernels is None
    backend.close()


def test_no_kernel_reads_or_writes_outside_its_memory(tmp_path: Path) -> None:
    """What a kernel is given ends where a page begins that nobody may touch."""
    (found,) = run_every_kernel(tmp_path, SOURCES.parent, [])
    assert sorted(found) == sorted(levels())
    assert min(found.values()) > 1000


@pytest.mark.slow
def test_the_sanitizers_report_no_errors(tmp_path: Path) -> None:
    """Every level that runs here, under the address and the undefined sanitizer.

    AVX-512 has AVX-VNNI's instruction under another code, so that its level can run there too.
    """
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g"]
    other_code = ["-mno-avxvnni", "-mavx512vl", "-mavx512vnni", "-DVNNI_OF_AVX512"]
    has_avx512 = "avx512" in levels()
    flags = [*sanitizers, "-O1", "-DUNROLL=", "-DINLINE=static"]
    flags += other_code if has_avx512 else []
    tool = Path(__file__).parents[3] / "tools" / "setup" / "compile_kernels.py"
    subprocess.run([sys.executable, str(tool), str(tmp_path), *flags], check=True, timeout=280)
    (found,) = run_every_kernel(tmp_path, tmp_path, sanitizers)
    assert set(found) == {*levels(), *(["avxvnni"] if has_avx512 else [])}
    assert min(found.values()) > 1000


def test_the_portable_level_is_not_chosen_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is nothing faster of ours, ggml is faster."""
    real = library._load(Path(library.__file__).with_name(library.LIBRARY))

    class Slow:
        tampu_level_count = staticmethod(lambda: 1)
        tampu_level_name = staticmethod(lambda _: b"portable")
        tampu_level_operation = real.tampu_level_operation
        tampu_amx_problem = real.tampu_amx_problem

    monkeypatch.setattr(library, "_load", lambda _: Slow)
    assert find_kernels(KernelChoice()) is None
    assert find_kernels(KernelChoice(level="portable")).level == "portable"
    monkeypatch.undo()
