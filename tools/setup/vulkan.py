"""Unpacks Mesa's software driver, Vulkan's loader and headers, and glslc beside the system.

`python tools/setup/vulkan.py FOLDER` leaves there `include`, `share`, `lib` and `bin/glslc` to
compile with, and `python`, which runs this Python with the driver. Nothing is installed. The
packages are Debian's of `vulkan_packages.txt`, checked by their hashes; the driver brings the C
library that it needs, which is used where the system's is older. A second call finds them there.
Beside the driver there is a layer, `waiting_layer.c`, so that who waits for it leaves it the cores.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

PACKAGES = Path(__file__).with_name("vulkan_packages.txt")
WAITING = "VK_LAYER_TAMPU_waiting"
"""The layer that is in use unless `VK_INSTANCE_LAYERS` names others."""
# A mirror drops what it replaces; the archive keeps every version.
MIRRORS = (
    "http://deb.debian.org/debian",
    "http://snapshot.debian.org/archive/debian/20260912T120000Z",
)
_TIMEOUT_S = 60.0
_AR_MAGIC = b"!<arch>\n"
_AR_HEADER = 60
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_DRIVER = "libvulkan_lvp.so"
_DRIVERS_LIBC = (2, 41)
_LINKER = "ld-linux-x86-64.so.2"


class SetupError(Exception):
    """What is missing, in one line."""


def packages(text: str) -> list[tuple[str, str, str]]:
    """Return the folder, the hash and the path of each package of a list."""
    lines = (line.split() for line in text.splitlines() if line and not line.startswith("#"))
    return [(folder, digest, path) for folder, digest, path in lines]


def unpack(package: bytes, folder: Path) -> None:
    """Unpack the files of a Debian package, an `ar` archive with a compressed `tar` in it.

    Raises:
        SetupError: if it is not such an archive.
    """
    for name, content in _members(package):
        if name == "data.tar.xz":
            with tarfile.open(fileobj=io.BytesIO(lzma.decompress(content))) as archive:
                for member in archive:
                    _extract(archive, member, folder.resolve())
            return
    raise SetupError("a package of Debian has no data.tar.xz")


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Write one member, unless it leads out of the folder, as links to other packages' files do.

    By hand, since Python 3.11.2 has no filters for it.
    """
    path = Path(os.path.normpath(folder / member.name))
    target = Path(os.path.normpath(path.parent / member.linkname))
    if not (path.is_relative_to(folder) and path.parent.resolve().is_relative_to(folder)):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if member.isdir():
        path.mkdir(exist_ok=True)
    elif member.issym() and target.is_relative_to(folder):
        path.symlink_to(member.linkname)
    elif content := archive.extractfile(member) if member.isfile() else None:
        with content, path.open("wb") as file:
            shutil.copyfileobj(content, file)
        path.chmod(member.mode & 0o755)


def _members(package: bytes) -> Iterator[tuple[str, bytes]]:
    if not package.startswith(_AR_MAGIC):
        raise SetupError("a package of Debian is not an archive")
    offset = len(_AR_MAGIC)
    while offset + _AR_HEADER <= len(package):
        header = package[offset : offset + _AR_HEADER]
        size = int(header[48:58])
        offset += _AR_HEADER
        yield header[:16].decode().strip().rstrip("/"), package[offset : offset + size]
        offset += size + size % 2


def download(digest: str, path: str, mirrors: Sequence[str] = MIRRORS) -> bytes:
    """Return a package from the first mirror that has it.

    Raises:
        SetupError: if none has it, or not with this hash.
    """
    problem = ""
    for mirror in mirrors:
        try:
            with urllib.request.urlopen(f"{mirror}/{path}", timeout=_TIMEOUT_S) as response:
                package: bytes = response.read()
        except (OSError, urllib.error.URLError) as error:
            problem = problem or f"{mirror}/{path} cannot be downloaded: {error}"
            continue
        if hashlib.sha256(package).hexdigest() == digest:
            return package
        problem = f"{mirror}/{path} is not the file it was: its SHA-256 differs"
    raise SetupError(problem)


def arrange(root: Path, folder: Path) -> None:
    """Move what is needed of the unpacked packages to a folder, and write what runs them."""
    (folder / "bin").mkdir(parents=True)
    build = root / "build"
    shutil.move(build / "usr/include", folder / "include")
    shutil.move(build / "usr/share", folder / "share")
    shutil.move(build / "usr/bin/glslc", folder / "bin/glslc.real")
    for name, target in (("build", "lib"), ("driver", "driver"), ("libc", "libc")):
        (folder / target).mkdir()
        for place in (root / name / _LIBRARIES, root / name / "lib/x86_64-linux-gnu"):
            for file in place.glob("*.so*") if place.is_dir() else ():
                shutil.move(file, folder / target / file.name)
    (folder / "lib/libvulkan.so").unlink(missing_ok=True)
    (folder / "lib/libvulkan.so").symlink_to("libvulkan.so.1")
    # cmake calls it without a variable that says where its libraries are.
    here = folder.resolve()
    start = f'"{here}/libc/{_LINKER}" --library-path "{here}/libc:{here}/lib"'
    write_program(folder / "bin/glslc", f'exec {start} "{here}/bin/glslc.real" "$@"\n')
    driver = {"api_version": "1.4.305", "library_path": f"{folder.resolve()}/driver/{_DRIVER}"}
    manifest = {"file_format_version": "1.0.0", "ICD": driver}
    (folder / "lvp_icd.json").write_text(json.dumps(manifest, indent=2) + "\n")


def compile_layer(source: Path, name: str, folder: Path, include: Path) -> None:
    """Compile a layer of Vulkan's loader into a folder that `VK_ADD_LAYER_PATH` can name.

    Args:
        source: of the layer, in C; it may include `vulkan_layer.h`.
        name: for `VK_INSTANCE_LAYERS`.
        folder: is made if it is not there.
        include: the folder of Vulkan's headers.

    Raises:
        SetupError: if it does not compile.
    """
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / f"{name}.so"
    given = ["-O2", "-shared", "-fPIC", f"-I{include}", f"-I{Path(__file__).parent}"]
    command = ["cc", *given, str(source), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SetupError(f"{source} does not compile: {done.stderr.strip()}")
    layer = {
        "name": name, "type": "GLOBAL", "library_path": str(library.resolve()),
        "api_version": "1.4.0", "implementation_version": "1", "description": source.stem,
    }  # fmt: skip
    manifest = {"file_format_version": "1.1.2", "layer": layer}
    (folder / f"{name}.json").write_text(json.dumps(manifest, indent=2) + "\n")


def python_with_driver(
    folder: Path, python: Path, own: Path, libc: tuple[int, ...], script: Path
) -> str:
    """Return the script that runs a Python with the driver.

    Args:
        folder: what `arrange` made.
        python: of a virtual environment.
        own: the folder of its library, which the system may have in another version.
        libc: the version of the system's C library.
        script: where it will be, in a folder of that environment: Python finds the environment by
            its place, and it is the `sys.executable` that programs start.
    """
    content = f'''export PYTHONPATH="{folder}/site${{PYTHONPATH:+:$PYTHONPATH}}"
export VK_DRIVER_FILES="{folder}/lvp_icd.json"
export VK_ADD_LAYER_PATH="${{VK_ADD_LAYER_PATH-{folder}/layers}}"
export VK_INSTANCE_LAYERS="${{VK_INSTANCE_LAYERS-{WAITING}}}"
export GGML_VK_VISIBLE_DEVICES="${{GGML_VK_VISIBLE_DEVICES-0}}"
'''
    if libc >= _DRIVERS_LIBC:
        return content + f'LD_LIBRARY_PATH="{folder}/driver" exec "{python}" "$@"\n'
    path = f"{folder}/libc:{folder}/driver:{own}:/lib/x86_64-linux-gnu:/usr/lib/x86_64-linux-gnu"
    start = f'"{folder}/libc/{_LINKER}" --library-path "{path}"'
    return content + f'exec {start} --argv0 "{script}" "{python.resolve()}" "$@"\n'


def libc() -> tuple[int, ...]:
    """Return the version of the system's C library."""
    return tuple(int(part) for part in platform.libc_ver()[1].split(".") if part.isdecimal())


def write_program(file: Path, script: str) -> None:
    """Write a program for the shell."""
    file.write_text(f"#!/bin/sh\n{script}")
    file.chmod(0o755)


def _unpack_all(listed: str, folder: Path) -> None:
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise SetupError("Debian's packages are unpacked on Linux on x86-64 only")
    print("setup: unpacking Mesa's software driver and Vulkan's headers, 65 MB", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    root = folder / "root"
    for name, digest, path in packages(listed):
        unpack(download(digest, path), root / name)
    arrange(root, folder)
    shutil.rmtree(root)


def main(arguments: Sequence[str]) -> int:
    folder = Path(arguments[0]).resolve()
    stamp = folder / "packages"
    listed = PACKAGES.read_text()
    try:
        if not stamp.is_file() or stamp.read_text() != listed:
            _unpack_all(listed, folder)
            stamp.write_text(listed)
        source = Path(__file__).with_name("waiting_layer.c")
        compile_layer(source, WAITING, folder / "layers", folder / "include")
        own = Path(sysconfig.get_config_var("LIBDIR"))
        script, python = folder / "python", Path(sys.executable)
        write_program(script, python_with_driver(folder, python, own, libc(), script))
    except (SetupError, OSError) as error:
        print(f"setup: no Vulkan without a graphics processor: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
