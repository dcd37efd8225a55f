"""Builds a wheel that needs no compiler where it is installed; `make wheel` calls it.

    python -m tools.wheel.build dist --cache .venv/wheel

It is the ordinary wheel, with the kernels compiled, and ggml for every kind of CPU instead of the
dependency on ggml-python. auditwheel adds the OpenMP library and names the oldest systems that
the wheel runs on. The output of `compile_ggml` is cached by its inputs.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.wheel import compile_ggml
from tools.wheel.compile_ggml import ROOT
from tools.wheel.compile_vulkan import compile_vulkan

LIMIT_MB = 60
LOADER = "libvulkan.so.1"
"""Vulkan's loader, which the system has if it has a driver; the wheel must not bring one."""
_KERNELS = "tampu/ml/kernels/libtampu_kernels.so"
# The bindings import typing_extensions; ggml-python brought it before.
_REQUIRES = ("Requires-Dist: ggml-python==", "Requires-Dist: typing-extensions>=4.6.3")
_LICENSE = "License-Expression: MIT"
# Debian's packages of the headers that Vulkan's backend is compiled with: parts of them are in it.
_HEADERS = {"vulkan-headers": "libvulkan-dev", "spirv-headers": "spirv-headers"}
_LICENSE_WITH_OPENMP = f"{_LICENSE} AND GPL-3.0-or-later WITH GCC-exception-3.1"


def build(
    folder: Path, cache: Path, variants: Sequence[str] = (), vulkan: Path | None = None
) -> Path:
    """Build the wheel.

    Args:
        folder: where to put it; other wheels of tampu there are removed.
        cache: where ggml's libraries are kept from one build to the next.
        variants: the only ones of ggml's variants to put in it; none: all that are of use.
        vulkan: what Vulkan is compiled with, of tools/setup/vulkan.py; None: it is left out.

    Returns:
        The wheel.

    Raises:
        subprocess.CalledProcessError: if a step fails; it has said why.
        SystemExit: if the wheel is not as it should be.
    """
    recipe = Path(compile_ggml.__file__)
    ggml = cache / "-".join(["ggml", compile_ggml.cache_key(recipe), *sorted(variants)])
    cache.mkdir(parents=True, exist_ok=True)
    compile_ggml.compile_ggml(ggml, variants)
    backends = [compile_vulkan(cache, vulkan.resolve())] if vulkan else []
    with tempfile.TemporaryDirectory() as place:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "wheel"]
        _run([*pip, "--no-deps", "--no-cache-dir", "--wheel-dir", place, str(ROOT)])
        (plain,) = Path(place).glob("tampu-*.whl")
        _run([sys.executable, "-m", "wheel", "unpack", "--dest", place, str(plain)])
        (content,) = (path for path in Path(place).glob("tampu-*") if path.is_dir())
        _add_licenses(content, ggml, vulkan)
        _add_ggml(content, ggml)
        _add_backends(content, backends)
        plain.unlink()
        _run([sys.executable, "-m", "wheel", "pack", "--dest-dir", place, str(content)])
        repaired = Path(place, "repaired")
        options = ["--strip", "--exclude", LOADER, "--wheel-dir", str(repaired)]
        _run(["auditwheel", "repair", *options, str(plain)])
        (wheel,) = repaired.glob("*.whl")
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(f"tampu-*_{platform.machine()}.whl"):
            old.unlink()
        return Path(shutil.move(wheel, folder / wheel.name))


def _add_licenses(content: Path, ggml: Path, vulkan: Path | None) -> None:
    """Add the licenses of what the wheel's libraries are compiled from."""
    (about,) = content.glob("*.dist-info")
    for path in (ggml / "licenses").iterdir():
        shutil.copy(path, about / "licenses")
    if vulkan is None:
        return
    for name, package in _HEADERS.items():
        source = vulkan / "share" / "doc" / package / "copyright"
        shutil.copy(source, about / "licenses" / f"LICENSE.{name}")


def _add_ggml(content: Path, ggml: Path) -> None:
    """Add ggml to an unpacked wheel, and remove the dependency on its bindings."""
    if not (content / _KERNELS).exists():
        raise SystemExit("wheel: the kernels did not compile; see the messages above")
    bundled = content / "tampu" / "ml" / "bundled"
    shutil.copytree(ggml, bundled, ignore=shutil.ignore_patterns("licenses"))
    (about,) = content.glob("*.dist-info")
    metadata = about / "METADATA"
    lines = metadata.read_text(encoding="utf-8").splitlines()
    changed = [_changed(line) for line in lines]
    if sum(old != new for old, new in zip(lines, changed, strict=True)) != 2:
        raise SystemExit(f"wheel: {metadata} has not the lines that {__file__} changes")
    at = changed.index(_LICENSE_WITH_OPENMP) + 1
    added = sorted(path.name for path in (about / "licenses").glob("LICENSE.*"))
    changed[at:at] = [f"License-File: {name}" for name in added]
    metadata.write_text("\n".join(changed) + "\n", encoding="utf-8")


def _add_backends(content: Path, backends: Sequence[Path]) -> None:
    """Add backends that are loaded where the system has what they need (tampu/ml/loadable.py)."""
    folder = content / "tampu" / "ml" / "bundled" / "lib" / "backends"
    for library in backends:
        folder.mkdir(exist_ok=True)
        added = shutil.copy(library, folder)
        _run(["patchelf", "--replace-needed", "libggml-base.so", compile_ggml.BASE, str(added)])


def _changed(line: str) -> str:
    """Return a line of the metadata, changed for this wheel."""
    if line.startswith(_REQUIRES[0]):
        return _REQUIRES[1]
    return _LICENSE_WITH_OPENMP if line == _LICENSE else line


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Build a wheel that needs no compiler.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--variants", nargs="*", default=(), help="Only these variants of ggml.")
    parser.add_argument("--vulkan", type=Path, help="What Vulkan is compiled with.")
    arguments = parser.parse_args()
    wheel = build(arguments.folder, arguments.cache, arguments.variants, arguments.vulkan)
    _run(["auditwheel", "show", str(wheel)])
    size = wheel.stat().st_size / 1e6
    print(f"wheel: {wheel}, {size:.1f} MB")
    if size > LIMIT_MB:
        print(f"wheel: this is more than {LIMIT_MB} MB", file=sys.stderr)
    return int(size > LIMIT_MB)


if __name__ == "__main__":
    sys.exit(main())
