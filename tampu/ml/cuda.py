"""ggml's backend for CUDA: the package `tampu-cuda`, and the cards that its code can run on.

What NVIDIA's driver says comes from `backend_trial.py`: it may end the process that asks it.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tampu.ml.backend_trial import CUDA_DRIVER, CUDA_FILE
from tampu.ml.linking import VERSION
from tampu.ml.variants import BASE
from tampu.version import __version__

NAME = "cuda"
DISTRIBUTION = "tampu-cuda"
INSTALL = f"pip install 'tampu[cuda]=={__version__}'"
REINSTALL = f"pip install --force-reinstall '{DISTRIBUTION}=={__version__}'"
COMPILE = "make GPU=cuda run"

NO_CARD = "NVIDIA's driver finds no card"

_NO_DEVICE = 100  # of cuda.h: CUDA_ERROR_NO_DEVICE
MODULE = "tampu_cuda"
ABOUT = "about.json"
_OLDEST_DRIVER = 580  # the first one of CUDA 13
_LEAST_FREE_MIB = 512
_UPDATE = "sudo apt-get install nvidia-open  # of NVIDIA's own package repository"
_LIST = "nvidia-smi"
_USE_VULKAN = "sudo apt-get install nvidia-vulkan-icd  # ggml's Vulkan can use the card"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a backend or a card is not used.

    Attributes:
        problem: in one line.
        command: which mends it.
    """

    problem: str
    command: str


@dataclass(frozen=True, slots=True)
class CudaPackage:
    """The installed package.

    Attributes:
        library: ggml's backend.
        version: of tampu that it belongs to.
        ggml: the version of ggml that it was compiled from.
        cuda: the version of CUDA that it was compiled with.
        architectures: that it has code for: compute capabilities without the point.
    """

    library: Path
    version: str
    ggml: str
    cuda: tuple[int, int]
    architectures: tuple[int, ...]

    def has_code_for(self, capability: tuple[int, int]) -> bool:
        """Whether a card of this compute capability can run its code.

        Code runs on later ones of the same major version too; ggml's for 12.x is an exception.
        """
        major, minor = capability
        return any(
            each == 10 * major + minor or (each // 10 == major != 12 and each % 10 < minor)
            for each in self.architectures
        )


@dataclass(frozen=True, slots=True)
class CudaCard:
    """One card, in CUDA's order.

    Attributes:
        name: of the product.
        address: on the PCI bus: `0000:01:00.0`.
        reason: why it is not used; None: it is.
    """

    name: str
    address: str
    reason: Reason | None


def find_package() -> CudaPackage | None:
    """Return the installed package, of whichever version; None: there is none."""
    spec = find_spec(MODULE)
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0])
    return read_package(folder)


def read_package(folder: Path) -> CudaPackage:
    """Return the package in a folder; one that cannot be read has no version."""
    library = folder / CUDA_FILE
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        major, minor = about["cuda"]
        architectures = tuple(map(int, about["architectures"]))
        return CudaPackage(
            library, str(about["version"]), str(about["ggml"]), (major, minor), architectures
        )
    except (OSError, ValueError, KeyError, TypeError):
        return CudaPackage(library, "of an unknown version", "", (0, 0), ())


def problem_before(package: CudaPackage | None, base: Path) -> Reason | None:
    """Return why the backend need not be loaded at all; None: it may run here.

    Args:
        package: that it belongs to; None: it was put beside ggml's other libraries.
        base: ggml's base, which it would use.
    """
    if package is not None:
        if base.name != BASE.name:
            what = f"{DISTRIBUTION} is for the wheel of tampu, and this ggml was compiled here"
            return Reason(what, COMPILE)
        if (package.version, package.ggml) != (__version__, VERSION):
            has = f"{DISTRIBUTION} {package.version} with ggml {package.ggml or 'unknown'}"
            what = f"{has} does not fit tampu {__version__} with ggml {VERSION}"
            return Reason(what, INSTALL)
    try:
        ctypes.CDLL(CUDA_DRIVER)
    except OSError as error:
        return Reason(f"NVIDIA's driver is not installed: {error}", "sudo apt-get install libcuda1")
    return None


def judge(package: CudaPackage | None, output: str) -> tuple[Reason | None, tuple[CudaCard, ...]]:
    """Return why no card can be used, and the cards.

    Args:
        package: that the backend belongs to; None: what it was compiled for is not known.
        output: of `backend_trial.py`; it is empty if the driver ended the process.
    """
    try:
        said: Mapping[str, Any] = json.loads(output)
    except ValueError:
        return None, ()
    version = tuple(said["version"])
    if package is not None and version[0] < package.cuda[0]:
        has, needs = ".".join(map(str, version)), f"{package.cuda[0]}.0"
        what = (
            f"NVIDIA's driver is too old: it supports CUDA {has}, and {DISTRIBUTION} needs CUDA "
            f"{needs}: update the driver to version {_OLDEST_DRIVER} or newer"
        )
        return Reason(what, _UPDATE), ()
    if error := said.get("error"):
        is_empty = said["code"] == _NO_DEVICE
        what = NO_CARD if is_empty else f"NVIDIA's driver does not start: {error}"
        return Reason(what, _LIST), ()
    cards = tuple(
        CudaCard(each["name"], each["address"], _problem_of_card(package, each))
        for each in said["cards"]
    )
    return _first_if_all(cards), cards


def _first_if_all(cards: Sequence[CudaCard]) -> Reason | None:
    reasons = [card.reason for card in cards]
    return reasons[0] if reasons and None not in reasons else None


def _problem_of_card(package: CudaPackage | None, card: Mapping[str, Any]) -> Reason | None:
    name, (major, minor) = card["name"], card["capability"]
    if package is not None and not package.has_code_for((major, minor)):
        compiled = ", ".join(f"{each / 10:.1f}" for each in package.architectures)
        what = f"{name} has compute capability {major}.{minor}, and {DISTRIBUTION} has code for"
        return Reason(f"{what} {compiled}", _USE_VULKAN)
    free, total = card["free"], card["total"] // 2**20
    if free is not None and free // 2**20 < _LEAST_FREE_MIB:
        what = f"{name} has {free // 2**20} of {total} MiB free, and CUDA needs {_LEAST_FREE_MIB}"
        return Reason(f"{what}: end the programs that use it, which nvidia-smi lists", _LIST)
    return None
