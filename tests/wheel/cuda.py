"""The wheel of `make wheel-cuda`, installed with tampu's and NVIDIA's packages.

`make wheel-cuda-test` runs this file; `make test` does not collect it, since it needs both wheels.
Where there is no card, the tests end with what the loader and ggml say of the missing driver; what
comes after that is shown by stand-ins for NVIDIA's driver.
"""

from __future__ import annotations

import json
import platform
import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes.util import find_library
from pathlib import Path

import pytest
from support.nvidia_driver import Card, compile_driver
from support.wheels import ROOT, environment, install

from tampu.version import __version__

WHEELS = ROOT / "dist"
HAS_DRIVER = find_library("cuda") is not None
NO_DRIVER = "NVIDIA's driver is not installed: libcuda.so.1: cannot open shared object file"
# Opens the library as tampu does, and says what is in the process and how many devices ggml has.
OPEN = """
import ctypes, json, sys
base = ctypes.CDLL(sys.argv[1])
library = ctypes.CDLL(sys.argv[2])  # all of its functions are found, or this is an error
library.ggml_backend_init.restype = ctypes.c_void_p
registry = ctypes.c_void_p(library.ggml_backend_init())
files = {line.split(maxsplit=5)[-1].strip() for line in open("/proc/self/maps") if "/" in line}
print(json.dumps({"files": sorted(files), "devices": base.ggml_backend_reg_dev_count(registry)}))
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def wheel() -> Path:
    (path,) = WHEELS.glob(f"tampu_cuda-*_{platform.machine()}.whl")
    return path


@pytest.fixture(scope="module")
def home(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    (tampu,) = WHEELS.glob(f"tampu-*_{platform.machine()}.whl")
    install(folder, f"{tampu}[cuda]", "--find-links", str(wheel.parent))
    return folder


@pytest.fixture(scope="module")
def packages(home: Path) -> Path:
    (folder,) = (home / "venv").glob("lib/python*/site-packages")
    return folder


def tampu(home: Path, *arguments: str, driver: Path | None = None) -> tuple[int, str, str]:
    """Return the exit code, the output and the log of a command."""
    given = {"LD_LIBRARY_PATH": str(driver.parent)} if driver else {}
    done = subprocess.run(
        [home / "venv" / "bin" / "tampu", *arguments],
        env=environment(home, **given), cwd=home, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def reason(home: Path, driver: Path | None = None) -> str:
    """Return why the backend is not loaded, as `tampu doctor` says it; models run all the same."""
    code, out, error = tampu(home, "doctor", driver=driver)
    assert (code in (0, 1), error) == (True, ""), error
    answer = tampu(home, "run", "demo", "What is 27 + 58?", driver=driver)
    assert answer[:2] == (0, "85\n"), answer
    (line,) = (each for each in out.splitlines() if each.startswith("  not loaded: CUDA: "))
    return line.removeprefix("  not loaded: CUDA: ")


def test_it_has_the_library_and_what_it_fits(wheel: Path) -> None:
    assert "-py3-none-manylinux_2_" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        files = [name for name in archive.namelist() if not name.endswith("/")]
        about = json.loads(archive.read("tampu_cuda/about.json"))
        metadata = archive.read(f"tampu_cuda-{__version__}.dist-info/METADATA").decode()
    module = [name for name in files if ".dist-info/" not in name]
    names = ("__init__.py", "about.json", "libggml-cuda.so")
    assert sorted(module) == [f"tampu_cuda/{name}" for name in names]
    licenses = {Path(name).name for name in files if "/licenses/" in name}
    assert (about["version"], about["cuda"][0]) == (__version__, 13)
    assert about["architectures"]
    required = {line for line in metadata.splitlines() if line.startswith("Requires-Dist: ")}
    assert required == {
        f"Requires-Dist: tampu=={__version__}",
        "Requires-Dist: nvidia-cuda-runtime>=13,<14",
        "Requires-Dist: nvidia-cublas>=13,<14",
    }
    assert licenses == {"LICENSE", "LICENSE.ggml"}


def test_the_loader_opens_it_with_the_libraries_of_its_environment(
    home: Path, packages: Path, tmp_path: Path
) -> None:
    """Not with those of an installed CUDA, which `LD_LIBRARY_PATH` often names."""
    for name in ("libcudart.so.13", "libcublas.so.13"):
        command = ["cc", "-shared", "-x", "c", "-", "-o", str(tmp_path / name)]
        subprocess.run(command, input=b"int foreign;", check=True)
    libraries = ("tampu/ml/bundled/lib/libtampu-ggml-base.so", "tampu_cuda/libggml-cuda.so")
    paths = [str(packages / name) for name in libraries]
    command = [str(home / "venv" / "bin" / "python"), "-c", OPEN, *paths]
    given = environment(home, LD_LIBRARY_PATH=str(tmp_path))
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    files = {Path(name).name: Path(name) for name in found["files"]}
    for name in ("libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13"):
        assert files[name].is_relative_to(packages / "nvidia/cu13/lib")
    assert "libggml-base.so" not in files
    if not HAS_DRIVER:
        assert found["devices"] == 0
        assert "failed to initialize CUDA: CUDA driver version is insufficient" in done.stderr


def test_without_a_driver_models_run_on_the_cpu_and_one_line_says_why(home: Path) -> None:
    if HAS_DRIVER:
        code, out, _ = tampu(home, "devices")
        assert code == 0
        assert "Backend cuda: " in out
        return
    assert reason(home).startswith(NO_DRIVER)


@pytest.mark.parametrize(
    ("cards", "version", "error", "problem"),
    [
        ([Card()], 12040, 0, "NVIDIA's driver is too old: it supports CUDA 12.4"),
        ([Card("P100", (6, 0))], 13000, 0, "P100 has compute capability 6.0, and tampu-cuda"),
        ([], 13000, 100, "NVIDIA's driver finds no card"),
        ([Card()], 13000, 999, "NVIDIA's driver does not start: "),
    ],
)
def test_the_drivers_answer_is_the_line(
    home: Path, tmp_path: Path, cards: list[Card], version: int, error: int, problem: str
) -> None:
    driver = compile_driver(tmp_path, cards, version=version, error=error)
    assert reason(home, driver).startswith(problem)


def test_a_card_with_too_little_memory_is_one_line(home: Path, tmp_path: Path) -> None:
    driver = compile_driver(tmp_path, free_mib=100)
    assert reason(home, driver).startswith("H100 has 100 of 81920 MiB free, and CUDA needs 512")


@contextmanager
def without(file: Path) -> Iterator[None]:
    moved = file.rename(file.with_name(f"{file.name}.moved"))
    try:
        yield
    finally:
        moved.rename(file)


def test_without_a_library_of_nvidias_the_loaders_reason_is_the_line(
    home: Path, packages: Path, tmp_path: Path
) -> None:
    driver = compile_driver(tmp_path)
    with without(packages / "nvidia/cu13/lib/libcublas.so.13"):
        assert reason(home, driver).startswith("libcublas.so.13: cannot open shared object file")


def test_the_package_of_another_version_is_refused(home: Path, packages: Path) -> None:
    about = packages / "tampu_cuda/about.json"
    content = json.loads(about.read_text())
    with without(about):
        about.write_text(json.dumps(content | {"version": "0.0.9"}))
        assert reason(home).startswith("tampu-cuda 0.0.9 with ggml")
