"""The set-up for GPUs: ggml's options, or what is missing and the package that has it."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
YES = "exit 0"
HIPCONFIG = 'case "$1" in -R) echo /rocm;; -l) echo /rocm/llvm/bin;; esac'


@pytest.fixture
def flags(tmp_path: Path) -> Callable[..., Any]:
    """Ask for ggml's options where there are only these programs; return output and error."""

    def flags(gpu: str, **programs: str) -> tuple[str, str]:
        folder = tmp_path / "bin"
        folder.mkdir()
        for name, script in programs.items():
            file = folder / name.replace("_", "+")
            file.write_text(f"#!/bin/sh\n{script}\n")
            file.chmod(0o755)
        nowhere = str(tmp_path / "nowhere")
        environment = {"PATH": str(folder), "CUDA_PATH": nowhere, "ROCM_PATH": nowhere}
        command = ["/bin/sh", str(ROOT / "tools/setup/gpu.sh"), gpu]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert bool(ended.returncode) == bool(ended.stderr)
        assert ended.stderr.count("\n") <= 1
        return ended.stdout.strip(), ended.stderr.strip()

    return flags


def knows_all_but(*texts: str) -> str:
    """A compiler that fails for programs with one of these texts."""
    cases = "".join(f"*{text}*) exit 1;; " for text in texts)
    return f'while read -r line; do case "$line" in {cases}esac; done; exit 0'


@pytest.mark.parametrize("gpu", ["", "none"])
def test_the_cpu_alone_needs_nothing(flags: Callable[..., Any], gpu: str) -> None:
    assert flags(gpu) == ("", "")


@pytest.mark.parametrize(
    ("gpu", "programs", "options"),
    [("vulkan", {"glslc": YES, "c__": YES}, "-DGGML_VULKAN=ON"),
     ("cuda", {"nvcc": YES}, "-DGGML_CUDA=ON -DCMAKE_CUDA_COMPILER=TMP/bin/nvcc"),
     ("hip", {"hipconfig": HIPCONFIG, "c__": YES},
      "-DGGML_HIP=ON -DCMAKE_HIP_COMPILER=/rocm/llvm/bin/clang"),
     ("metal", {"uname": "echo Darwin", "xcrun": YES},
      "-DGGML_METAL=ON -DGGML_METAL_EMBED_LIBRARY=ON")],
)  # fmt: skip
def test_what_is_there_gives_the_options_of_cmake(
    flags: Callable[..., Any], tmp_path: Path, gpu: str, programs: dict[str, str], options: str
) -> None:
    assert flags(gpu, **programs) == (options.replace("TMP", str(tmp_path)), "")


@pytest.mark.parametrize(
    ("gpu", "programs", "what", "package"),
    [("vulkan", {"c__": YES}, "(glslc)", "glslc"),
     ("vulkan", {"glslc": YES}, "(vulkan/vulkan.hpp)", "libvulkan-dev"),
     ("vulkan", {"glslc": YES, "c__": knows_all_but("LayerSetting")}, "too old", "make vulkan"),
     ("vulkan", {"glslc": YES, "c__": knows_all_but("spirv")}, "SPIR-V", "spirv-headers"),
     ("vulkan", {"glslc": YES, "c__": 'case "$*" in *-lvulkan*) exit 1;; esac'},
      "(libvulkan.so)", "libvulkan-dev"),
     ("cuda", {"c__": YES}, "(nvcc, also not in ", "nvidia-cuda-toolkit"),
     ("hip", {"c__": YES}, "(hipconfig, also not in ", "hipcc"),
     ("hip", {"hipconfig": HIPCONFIG, "c__": "exit 1"}, "hipBLAS",
      "libhipblas-dev librocblas-dev"),
     ("metal", {"uname": "echo Linux"}, "GPU=metal is for macOS", "vulkan, cuda and hip"),
     ("metal", {"uname": "echo Darwin"}, "Apple's", "xcode-select --install"),
     ("voodoo", {}, "GPU is 'voodoo'", "vulkan, cuda, hip, metal or none")],
)  # fmt: skip
def test_what_is_missing_is_one_line_with_its_package(
    flags: Callable[..., Any], gpu: str, programs: dict[str, str], what: str, package: str
) -> None:
    out, error = flags(gpu, **programs)
    assert out == ""
    assert error.startswith("setup: ")
    assert what in error
    assert error.endswith(package)


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """A folder that make takes for a virtual environment."""
    for name in ("bin/python", "installed"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.touch()
    return tmp_path


def plan(venv: Path, *words: str) -> str:
    """What make would do; -o: nothing that the environment is made from is newer."""
    inputs = subprocess.run(
        ["make", "-s", "-f", "-", "inputs"],
        input="include Makefile\ninputs:\n\t@echo $(INPUTS)\n",
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=60,
    ).stdout.split()  # fmt: skip
    old = [word for name in inputs for word in ("-o", name)]
    command = ["make", "-n", *old, f"VENV={venv}", f"{venv}/installed", *words]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    ).stdout


def test_ggml_is_compiled_again_when_the_gpu_is_chosen(venv: Path) -> None:
    assert "pip" not in plan(venv)
    chosen = plan(venv, "GPU=vulkan")
    assert "install --force-reinstall --no-cache-dir --no-binary ggml-python" in chosen
    assert "$(sh tools/setup/gpu.sh " in chosen
