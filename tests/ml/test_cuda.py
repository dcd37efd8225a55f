"""ggml's backend for CUDA: loaded where NVIDIA's driver has a card for it, or why it is not."""

import json
import logging
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.nvidia_driver import Card, compile_driver

from tampu.ml import cuda
from tampu.ml.cuda import CudaPackage, find_package, read_package
from tampu.ml.linking import VERSION, find_libraries
from tampu.ml.loadable import LoadableBackend, load_backends
from tampu.version import __version__

BASE = find_libraries()[0]
ADDRESS = "0000:01:00.0"
PASCAL = Card("P100", (6, 0))
HOPPER = Card("H100", (9, 0), "0000:02:00.0")
# A backend with as many devices as it is compiled with, in the layout of ggml-backend-impl.h.
BACKEND = """
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
static size_t count(void *self) { return DEVICES; }
static struct { int version; void *name; size_t (*count)(void *); void *rest[4]; } registry =
    { 2, NULL, count };
void *ggml_backend_init(void) { START; return &registry; }
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CudaPackage:
    """A package that fits, of a stand-in for ggml's code with one device."""
    monkeypatch.setattr(cuda, "BASE", BASE)
    compile_backend(tmp_path)
    about = {"version": __version__, "ggml": VERSION, "cuda": [13, 5], "architectures": [75, 90]}
    (tmp_path / cuda.ABOUT).write_text(json.dumps(about))
    return read_package(tmp_path)


def compile_backend(folder: Path, devices: int = 1, start: str = "") -> Path:
    library = folder / "libggml-cuda.so"
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    options = [f"-DDEVICES={devices}", f"-DSTART={start}"]
    subprocess.run([*command, *options], input=BACKEND, text=True, check=True)
    return library


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Install a driver for this process and its children."""

    def install(*cards: Card, **options: Any) -> None:
        library = compile_driver(tmp_path / "driver", cards, **options)
        monkeypatch.setattr(cuda, "CUDA_DRIVER", str(library))
        # `-I` keeps Python's variables from the child, not the linker's.
        monkeypatch.setenv("LD_LIBRARY_PATH", str(library.parent))

    return install


def loaded(package: CudaPackage) -> tuple[LoadableBackend, list[int]]:
    """Return the only backend, and what was registered."""
    registered: list[int] = []
    (backend,) = load_backends(package.library.parent / "none", BASE, registered.append, package)
    assert (backend.name, backend.file) == ("cuda", package.library)
    assert bool(registered) == (not backend.problem)
    return backend, registered


def test_it_is_loaded_where_the_driver_has_a_card(
    package: CudaPackage, driver: Callable[..., None]
) -> None:
    driver(Card(), free_mib=80000)
    backend, registered = loaded(package)
    assert len(registered) == 1
    assert [(card.name, card.address, card.reason) for card in backend.cards] == [
        ("H100", ADDRESS, None)
    ]


def test_without_a_driver_its_code_is_not_opened(
    package: CudaPackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "CUDA_DRIVER", "libcuda.so.0")
    package.library.write_text("not a library")
    backend, _ = loaded(package)
    assert backend.problem.startswith("NVIDIA's driver is not installed: libcuda.so.0: cannot open")
    assert backend.command == "sudo apt-get install libcuda1"


@pytest.mark.parametrize(
    ("cards", "options", "problem", "command"),
    [
        (
            [Card()],
            {"version": 12040},
            "NVIDIA's driver is too old: it supports CUDA 12.4, and tampu-cuda needs CUDA 13.0:"
            " update the driver to version 580 or newer",
            "nvidia-open",
        ),
        (
            [PASCAL],
            {},
            "P100 has compute capability 6.0, and tampu-cuda has code for 7.5, 9.0",
            "nvidia-vulkan-icd",
        ),
        (
            [Card()],
            {"free_mib": 100},
            "H100 has 100 of 81920 MiB free, and CUDA needs 512: end the programs that use it,"
            " which nvidia-smi lists",
            "nvidia-smi",
        ),
        ([], {"error": 100}, "NVIDIA's driver finds no card", "nvidia-smi"),
        (
            [],
            {"error": 803, "text": "unsupported combination"},
            "NVIDIA's driver does not start: unsupported combination (error 803)",
            "nvidia-smi",
        ),
    ],
)
def test_what_the_driver_says_is_the_reason(
    package: CudaPackage, driver: Callable[..., None], cards: list[Card], options: dict[str, Any],
    problem: str, command: str
) -> None:  # fmt: skip
    driver(*cards, **options)
    compile_backend(package.library.parent, devices=len(cards))
    backend, _ = loaded(package)
    assert backend.problem == problem
    assert command in backend.command


def test_a_card_that_it_has_no_code_for_is_left_out_beside_one_that_it_has(
    package: CudaPackage, driver: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    driver(PASCAL, HOPPER)
    with caplog.at_level(logging.WARNING, "tampu.ml"):
        backend, registered = loaded(package)
    assert len(registered) == 1
    assert [card.reason is None for card in backend.cards] == [False, True]
    (record,) = caplog.records
    assert "CUDA.0 is not used: P100 has compute capability 6.0" in record.getMessage()


@pytest.mark.parametrize(
    ("devices", "start", "problem"),
    [
        (1, "abort()", "the driver ends the process with SIGABRT"),
        (
            0,
            'fputs("ggml_cuda_init: failed\\n", stderr)',
            "it found no driver that it can use: ggml_cuda_init: failed",
        ),
        (0, "", "it found no driver that it can use"),
    ],
)
def test_code_that_does_not_start_is_left_out(
    package: CudaPackage, driver: Callable[..., None], devices: int, start: str, problem: str
) -> None:
    driver(Card())
    compile_backend(package.library.parent, devices, start)
    assert loaded(package)[0].problem == problem


def test_a_library_that_cannot_be_loaded_has_the_linkers_reason(
    package: CudaPackage, driver: Callable[..., None], tmp_path: Path
) -> None:
    driver(Card())
    needed = tmp_path / "libcublas.so.99"
    command = ["cc", "-shared", "-x", "c", "-", "-o", str(needed)]
    subprocess.run([*command, f"-Wl,-soname,{needed.name}"], input=b"int needed;", check=True)
    command = ["cc", "-shared", "-x", "c", "-", "-o", str(package.library)]
    link = ["-Wl,--no-as-needed", f"-L{tmp_path}", f"-l:{needed.name}"]
    subprocess.run([*command, *link], input=b"int backend;", check=True)
    needed.unlink()
    backend, _ = loaded(package)
    assert backend.problem.startswith("libcublas.so.99: cannot open shared object file")
    assert backend.command == f"pip install --force-reinstall 'tampu-cuda=={__version__}'"


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"version": "0.0.9"}, f"tampu-cuda 0.0.9 with ggml {VERSION} does not fit tampu"),
        ({"ggml": "0.14.0"}, f"tampu-cuda {__version__} with ggml 0.14.0 does not fit tampu"),
    ],
)
def test_a_package_of_another_version_is_refused(
    package: CudaPackage, driver: Callable[..., None], changed: dict[str, Any], problem: str
) -> None:
    driver(Card())
    backend, _ = loaded(replace(package, **changed))
    assert backend.problem == f"{problem} {__version__} with ggml {VERSION}"
    assert backend.command == f"pip install 'tampu[cuda]=={__version__}'"


@pytest.mark.parametrize("text", ["", "{}", '{"version": "1"}', '{"cuda": [13]}', "[]"])
def test_a_damaged_package_is_refused(package: CudaPackage, text: str) -> None:
    (package.library.parent / cuda.ABOUT).write_text(text)
    backend, _ = loaded(read_package(package.library.parent))
    assert "of an unknown version" in backend.problem


def test_it_is_for_a_wheels_ggml_alone(
    package: CudaPackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    backend, _ = loaded(package)
    assert "is for the wheel of tampu" in backend.problem
    assert backend.command == "make GPU=cuda run"


def test_a_library_beside_ggmls_takes_the_packages_place(
    package: CudaPackage, driver: Callable[..., None], tmp_path: Path
) -> None:
    driver(PASCAL)  # what it was compiled for is not known
    folder = tmp_path / "backends"
    folder.mkdir()
    compile_backend(folder)
    registered: list[int] = []
    (backend,) = load_backends(folder, BASE, registered.append, package)
    assert (backend.file.parent, backend.problem, len(registered)) == (folder, "", 1)
    assert backend.cards[0].address == ADDRESS


@pytest.mark.parametrize(
    ("architectures", "capability", "has"),
    [
        ((90,), (9, 0), True), ((80,), (8, 9), True), ((89,), (8, 6), False),
        ((90,), (10, 0), False), ((90,), (6, 0), False), ((120,), (12, 0), True),
        ((120,), (12, 1), False), ((), (9, 0), False),
    ],
)  # fmt: skip
def test_code_runs_on_later_cards_of_the_same_major_version(
    package: CudaPackage, architectures: tuple[int, ...], capability: tuple[int, int], has: bool
) -> None:
    assert replace(package, architectures=architectures).has_code_for(capability) == has


def test_where_it_is_not_installed_there_is_none() -> None:
    assert find_package() is None
