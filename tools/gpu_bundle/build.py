"""Makes the bundle: `make gpu-bundle` calls it.

    python -m tools.gpu_bundle.build build/gpu-bundle --wheel dist/tampu-*.whl --cache FOLDER

The bundle has the wheel and those of PyPI that a machine with PyTorch may lack, the sources of the
check and of the tests that it runs, tiny models with transformers' logits, ggml's CUDA code as
sources, and, where `make cuda-backend` has compiled it, as a library.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from tools.gpu_bundle.check import CUDA_ARCHIVE, MODELS, PACKAGES, TAMPU
from tools.wheel.compile_cuda import LIBRARY
from tools.wheel.compile_ggml import BASE, ROOT, ggml_version

LIMIT_MIB = 50
"""Without the CUDA library, which is another 20 MiB for each compute capability."""
COMPRESSION: Final = 9  # of xz
PYTHON = "3.12"
# What tampu imports, in the versions of the lock, without what comes with PyTorch and transformers.
NAMES = (
    "annotated-doc", "annotated-types", "anyio", "cffi", "click", "cryptography", "gguf", "h11",
    "idna", "llguidance", "markdown-it-py", "mdurl", "msgspec", "prometheus_client",
    "prompt_toolkit", "psutil", "pycparser", "pydantic", "pydantic-core", "pygments",
    "python-multipart", "rich", "shellingham", "starlette", "typer", "typing-extensions",
    "typing-inspection", "urllib3", "uvicorn", "wcwidth", "websockets", "zstandard",
)  # fmt: skip
EXPECTED = ("numpy", "jinja2", "tokenizers", "PIL", "yaml", "tqdm")
"""Modules that the target has: PyTorch, torchvision and transformers need them."""
# The sources of the check, of what it measures with, and of the tests that it runs.
SOURCES = ("tools", "benchmarks", "tests/support", "tests/engine", "tests/ml", "tests/conftest.py",
           "tests/gpu.txt")  # fmt: skip
# What the models and their logits follow from.
MODEL_SOURCES = ("tampu/convert/**/*.py", "tests/support/checkpoints/*.py",
                 "tests/support/laboratory.py", "tools/gpu_bundle/references.py")  # fmt: skip
_PYTEST = """\
[pytest]
addopts = --import-mode=importlib
pythonpath = . tests
timeout = 100
markers =
    seed(*numbers): a statement of the specification
    parity: compares with transformers
    client: a real client library
    registry: a registry server
    server: starts a server
    slow: takes more than a second
"""


def build(
    folder: Path, wheel: Path, cache: Path, *, cuda: Path | None, architectures: Sequence[str],
    python: str = PYTHON,
) -> int:  # fmt: skip
    """Make the bundle and return its bytes, without those of the CUDA library.

    Args:
        folder: to make; an older one is replaced.
        wheel: of tampu, with ggml for all processors and Vulkan.
        cache: where the packages, and the models with their references, are kept.
        cuda: the compiled library; None: the target compiles it.
        architectures: what it is compiled for.
        python: the version of the target, as 3.12.

    Raises:
        subprocess.CalledProcessError: if a step fails; it has said why.
    """
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    cache.mkdir(parents=True, exist_ok=True)
    partial.mkdir(parents=True)
    shutil.copy(_packages(cache, python), partial / PACKAGES)
    shutil.copy(_tampu(cache, wheel), partial / TAMPU)
    shutil.copy(_models(cache), partial / MODELS)
    shutil.copy(_sources_of_ggml(cache), partial / f"ggml_python-{ggml_version()}.tar.gz")
    _copy_sources(partial / "source")
    if cuda is not None:
        _add_cuda(cuda, partial / CUDA_ARCHIVE)
    about = {
        "python": python,
        "machine": platform.machine(),
        "ggml": ggml_version(),
        "expected": EXPECTED,
        "architectures": [int(each) for each in architectures] if cuda else [],
    }
    (partial / "bundle.json").write_text(json.dumps(about, indent=1) + "\n")
    shutil.copy(Path(__file__).with_name("check.sh"), partial)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    files = [file for file in folder.rglob("*") if file.is_file() and file.name != CUDA_ARCHIVE]
    return sum(file.stat().st_size for file in files)


def _packages(cache: Path, python: str) -> Path:
    """Return an archive of what the packages for the target's Python install."""
    lock = ROOT / "requirements.lock"

    def pack(archive: Path) -> None:
        target = ["--only-binary=:all:", f"--python-version={python}", "--implementation=cp"]
        # pip takes these as exact names, and not as the newest that is allowed.
        versions = [*(f"_2_{minor}" for minor in range(35, 4, -1)), "2014", "2010", "1"]
        target += [f"--platform=manylinux{version}_x86_64" for version in versions]
        with tempfile.TemporaryDirectory() as place:
            _download(Path(place), "-c", str(lock), *target, *NAMES)
            _pack_wheels(sorted(Path(place).glob("*.whl")), archive)

    known = [lock.read_bytes(), " ".join(NAMES).encode()]
    return _kept(cache, f"packages-{python}", known, pack)


def _tampu(cache: Path, wheel: Path) -> Path:
    """Return an archive of what the wheel installs."""
    known = [wheel.read_bytes()]
    return _kept(cache, "tampu", known, lambda archive: _pack_wheels([wheel], archive))


def _sources_of_ggml(cache: Path) -> Path:
    """Return the source archive of ggml-python, which contains ggml's."""
    wanted = f"ggml-python=={ggml_version()}"

    def download(archive: Path) -> None:
        with tempfile.TemporaryDirectory() as place:
            _download(Path(place), "--no-binary", "ggml-python", wanted)
            (found,) = Path(place).iterdir()
            shutil.copy(found, archive)

    return _kept(cache, "ggml", [wanted.encode()], download)


def _download(folder: Path, *arguments: str) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download"]
    subprocess.run([*pip, "--no-deps", "-d", folder, *arguments], check=True)


def _pack_wheels(wheels: Iterable[Path], archive: Path) -> None:
    """Write what wheels install; together and as xz they are two thirds as large."""
    with tempfile.TemporaryDirectory() as place:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as packed:
                packed.extractall(place)
        _pack(Path(place), archive)


def _pack(folder: Path, archive: Path) -> None:
    with tarfile.open(archive, "w:xz", preset=COMPRESSION) as packed:
        for path in sorted(folder.iterdir()):
            packed.add(path, path.name)


def _models(cache: Path) -> Path:
    """Return the archive of the models, each with transformers' logits of a text."""
    files = [*(path for each in MODEL_SOURCES for path in sorted(ROOT.glob(each)))]
    known = [path.read_bytes() for path in (*files, ROOT / "requirements.lock")]

    def write(archive: Path) -> None:
        from tools.gpu_bundle.references import write_references

        with tempfile.TemporaryDirectory() as place:
            write_references(Path(place))
            _pack(Path(place), archive)

    return _kept(cache, "models", known, write)


def _kept(
    cache: Path, name: str, known: Iterable[bytes], make: Callable[[Path], None]
) -> Path:  # fmt: skip
    """Return a file of the cache, made unless there is one of the same inputs."""
    key = hashlib.sha256(b"\0".join(known)).hexdigest()[:12]
    place = cache / f"{name}-{key}"
    if not place.exists():
        for old in cache.glob(f"{name}-*"):
            old.unlink()
        partial = cache / f"{name}-partial"
        make(partial)
        partial.rename(place)
    return place


def _copy_sources(target: Path) -> None:
    """Copy the files of the repository that the check needs, with a configuration for pytest."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", *SOURCES]
    done = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True)
    for name in filter(None, done.stdout.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)
    (target / "pytest.ini").write_text(_PYTEST)
    shutil.copy(ROOT / "requirements.lock", target)


def _add_cuda(library: Path, archive: Path) -> None:
    """Compress the library; it finds ggml's base under the name that it has in a wheel."""
    with tempfile.TemporaryDirectory() as place:
        copied = Path(shutil.copy(library, place))
        change = ["patchelf", "--replace-needed", "libggml-base.so", BASE, str(copied)]
        subprocess.run(change, check=True)
        subprocess.run(["strip", "--strip-unneeded", str(copied)], check=True)
        archive.write_bytes(lzma.compress(copied.read_bytes()))


def main() -> int:
    """Make the bundle and print what is in it."""
    parser = argparse.ArgumentParser(description="Make the folder that checks a GPU.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True, help="Keeps packages and models.")
    parser.add_argument("--cuda", type=Path, help="Where ggml's CUDA library is compiled.")
    parser.add_argument("--architectures", nargs="+", default=["90"])
    parser.add_argument("--python", default=PYTHON, help="The target's Python.")
    given = parser.parse_args()
    cuda = next(iter(given.cuda.rglob(LIBRARY)), None) if given.cuda else None
    size = build(
        given.folder, given.wheel, given.cache, cuda=cuda, architectures=given.architectures,
        python=given.python,
    )  # fmt: skip
    has = f"CUDA code for {' '.join(given.architectures)}" if cuda else (
        "no CUDA library: the target compiles it (`make cuda-backend` does it here)"
    )  # fmt: skip
    print(f"gpu-bundle: {given.folder}, {size / 2**20:.1f} MiB and {has}")
    if size > LIMIT_MIB * 2**20:
        print(f"gpu-bundle: this is more than {LIMIT_MIB} MiB", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
