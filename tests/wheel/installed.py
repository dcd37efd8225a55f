"""The wheel of `make wheel`, installed where there is no compiler and no cmake.

`make wheel-test` runs this file; `make test` does not collect it, since it needs that wheel.
"""

import importlib.util
import json
import platform
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from ctypes.util import find_library
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from support.wheels import ROOT, environment, install

Command: TypeAlias = list[str | Path]
QEMU = ROOT / ".venv" / "qemu" / f"qemu-{platform.machine()}"  # tools/setup/qemu.sh puts it there
QUESTION = ("run", "demo", "What is 27 + 58?")
MEGABYTES = 60
# What qemu shows of each processor, ggml's variant for it, and what the log says of our kernels.
ALONE = "kernels: not used, ggml may be faster on this CPU"
PROCESSORS = {
    "x86_64": [("Haswell", "haswell", "kernels: avx2"), ("Nehalem", "sse42", ALONE)],
    "aarch64": [("cortex-a76", "armv8.2_2", ALONE), ("cortex-a53", "armv8.0_1", ALONE)],
}

HAS_VULKAN = platform.machine() == "x86_64"
needs_vulkan = pytest.mark.skipif(not HAS_VULKAN, reason="the wheel for ARM has no Vulkan")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def wheel() -> Path:
    (path,) = (ROOT / "dist").glob(f"tampu-*_{platform.machine()}.whl")
    return path


@pytest.fixture(scope="module")
def home(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel, and nothing else to be found by name."""
    folder = tmp_path_factory.mktemp("wheel")
    install(folder, wheel)
    return folder


def ask(
    home: Path,
    *before: Path | str,
    python: Path | None = None,
    options: Sequence[str] = (),
    **more: str,
) -> tuple[Any, Any]:
    """Return what `tampu run demo` answered, and its log."""
    program: Command = [
        python or home / "venv" / "bin" / "python",
        home / "venv" / "bin" / "tampu",
        "--debug",
    ]
    done = subprocess.run(
        [*before, *program, *QUESTION, *options],
        env=environment(home, **more), cwd=home, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


def test_it_has_the_page(home: Path) -> None:
    python = home / "venv" / "bin" / "python"
    code = "from tampu.server.features.page.routes import page_routes; page_routes()"
    subprocess.run([python, "-c", code], env=environment(home), cwd=home, check=True)


def test_it_answers_without_a_compiler(home: Path) -> None:
    tools = ("cc", "gcc", "c++", "g++", "clang", "cmake", "make", "ld")
    assert [tool for tool in tools if shutil.which(tool, path=str(home / "venv" / "bin"))] == []
    answer, log = ask(home)
    assert answer == "85"
    assert "variant=native" not in log


def test_it_brings_ggml_and_its_bindings(home: Path) -> None:
    command: Command = [home / "venv" / "bin" / "python", "-c", "import ggml"]
    done = subprocess.run(command, env=environment(home), capture_output=True, check=False)
    assert b"ModuleNotFoundError" in done.stderr
    licenses = next((home / "venv").rglob("tampu-*.dist-info")) / "licenses"
    headers = {"LICENSE.vulkan-headers", "LICENSE.spirv-headers"} if HAS_VULKAN else set()
    assert {path.name for path in licenses.iterdir()} == {
        "LICENSE", "LICENSE.ggml", "LICENSE.ggml-python", *headers,
    }  # fmt: skip


@pytest.mark.parametrize(("processor", "variant", "kernels"), PROCESSORS[platform.machine()])
def test_it_answers_as_another_processor(
    home: Path, processor: str, variant: str, kernels: str
) -> None:
    answer, log = ask(home, QEMU, "-cpu", processor)
    assert answer == "85"
    assert f"variant={variant} " in log
    assert kernels in log


@pytest.fixture(scope="module")
def on_lavapipe(home: Path) -> Path:
    """A program that runs the wheel's Python with Mesa's software driver for Vulkan."""
    spec = importlib.util.spec_from_file_location("vulkan", ROOT / "tools/setup/vulkan.py")
    vulkan = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(vulkan)
    folder = ROOT / ".venv" / "vulkan"  # `make vulkan` puts the driver there
    program = home / "venv" / "lavapipe" / "python"
    program.parent.mkdir()
    python = home / "venv" / "bin" / "python"
    own = Path(sysconfig.get_config_var("LIBDIR"))
    script = vulkan.python_with_driver(folder, python, own, vulkan.libc(), program)
    vulkan.write_program(program, script)
    return program


@needs_vulkan
@pytest.mark.timeout(1800)  # it compiles the driver's shaders
def test_it_computes_on_a_gpu(home: Path, on_lavapipe: Path) -> None:
    answer, log = ask(home, python=on_lavapipe, options=["--num-gpu", "99"], GALLIVM_PERF="nopt")
    assert answer == "85"
    assert "Vulkan.0: device=llvmpipe" in log


@needs_vulkan
def test_without_vulkan_it_says_why_its_backend_is_not_loaded(home: Path) -> None:
    program: Command = [home / "venv" / "bin" / "python", home / "venv" / "bin" / "tampu"]
    done = subprocess.run(
        [*program, "devices", "--json"],
        env=environment(home), cwd=home, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert [device["name"] for device in found["devices"]] == ["CPU.0"]
    (backend,) = found["backends"]
    assert Path(backend["file"]).is_relative_to(home)
    missing = "libvulkan.so.1: cannot open shared object file" in (backend["problem"] or "")
    assert missing == (find_library("vulkan") is None)


def test_another_ggml_on_the_library_path_changes_nothing(home: Path, tmp_path: Path) -> None:
    for name in ("libggml.so", "libggml-base.so", "libtampu-ggml-base.so"):
        command: Command = ["cc", "-shared", "-x", "c", "-", "-o", tmp_path / name]
        subprocess.run(command, input=b"int foreign;", check=True)
    answer, _ = ask(home, LD_LIBRARY_PATH=str(tmp_path))
    assert answer == "85"


def test_it_is_small_and_for_all_of_manylinux(wheel: Path) -> None:
    assert "-manylinux_2_" in wheel.name
    assert wheel.stat().st_size < MEGABYTES * 1e6
