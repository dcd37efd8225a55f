"""The wheel of ggml's CUDA backend: what it is built from, and what refuses to be built."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tampu.ml import cuda
from tampu.version import __version__
from tools.wheel import build_cuda
from tools.wheel.build_cuda import PACKAGES, build, cuda_version
from tools.wheel.compile_ggml import BASE

ROOT = Path(__file__).parents[2]


def test_the_extra_requires_the_package_of_this_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["optional-dependencies"]["cuda"] == [f"{cuda.DISTRIBUTION}=={__version__}"]


def test_it_is_compiled_with_nvidias_packages_that_it_requires() -> None:
    pins = (ROOT / "tools/setup/cuda_packages.txt").read_text(encoding="utf-8")
    assert all(f"\n{name}==13." in pins for name in PACKAGES)
    assert cuda_version()[0] == 13  # the oldest driver that `tampu doctor` names is CUDA 13's


def test_a_library_of_another_cuda_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "libggml-cuda.so"
    library.write_bytes(b"")
    asked: list[list[str]] = []
    monkeypatch.setattr(build_cuda, "_run", asked.append)
    monkeypatch.setattr(build_cuda, "_needed", lambda _: {BASE, "libcudart.so.12"})
    with pytest.raises(SystemExit, match=r"does not use libcublas\.so\.13, libcudart\.so\.13"):
        build(tmp_path / "dist", library, ["90"], tmp_path)
    assert not (tmp_path / "dist").exists()
