"""Loads ggml's shared libraries from the installed package, not others on the library path.

`link` loads them before the bindings do, and checks which files were loaded: other libraries of
the same names (of a llama.cpp in LD_LIBRARY_PATH, or loaded by another package) number operations
differently, and mixing both gives wrong results or a crash.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from tampu.errors import LibraryError
from tampu.ml.elf import stub_library
from tampu.ml.types import GGMLType

log = logging.getLogger("tampu.ml")

VERSION = "0.15.3"
"""The version of ggml in the ggml-python that pyproject.toml requires."""

# One function of each library, which identifies it.
_MARKS = {
    "libggml-base": "ggml_op_name",
    "libtampu-ggml-base": "ggml_op_name",  # its name in a wheel
    "libggml-cpu": "ggml_backend_cpu_reg",
    "libggml": "ggml_backend_reg_count",
}
_SUFFIX = ".dylib" if sys.platform == "darwin" else ".so"
_REMEDY = "reinstall ggml-python in the version that tampu requires"

_NO_OTHER = "take it out of LD_LIBRARY_PATH and LD_PRELOAD, or import tampu.ml.library before it"


class _Symbol(ctypes.Structure):
    """What `dladdr` reports about an address: Dl_info of dlfcn.h."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def find_libraries() -> tuple[Path, ...]:
    """Return ggml's libraries that belong to the bindings, each after those that it needs.

    This is the one place that knows where they are.

    Raises:
        LibraryError: if they are not installed.
    """
    folder = _bindings().with_name("lib")
    order = {f"libggml-base{_SUFFIX}": 0, f"libggml{_SUFFIX}": 2}
    found = sorted(folder.glob(f"libggml*{_SUFFIX}"), key=lambda file: order.get(file.name, 1))
    if missing := order.keys() - {file.name for file in found}:
        raise LibraryError(f"{folder} has no {min(missing)}; {_REMEDY}")
    return tuple(found)


def link(files: Sequence[Path]) -> None:
    """Load the libraries of `find_libraries` so that each uses the others, and check that it does.

    Raises:
        LibraryError: if one cannot be loaded, uses another file of the same name, or differs in
            version from the bindings.
    """
    _load(files)
    try:
        loaded = {file: ctypes.CDLL(str(file)) for file in files}
    except OSError as error:
        other = _loaded_before(files)
        if other is None:
            raise LibraryError(f"ggml cannot be loaded: {error}; {_REMEDY}") from error
        raise LibraryError(
            f"{files[0]} is incompatible with {other}, already loaded ({error}); {_NO_OTHER}"
        ) from error
    for file, library in loaded.items():
        check_symbols(str(file), library, files)
    check_symbols("this process", ctypes.CDLL(None), files)
    base, library = next(iter(loaded.items()))
    if (version := _version(library)) != VERSION:
        raise LibraryError(
            f"{base} is ggml {version}, but {_bindings()} is for {VERSION}; {_REMEDY}"
        )


def check_bindings(gg: ModuleType, base: Path) -> None:
    """Check that operations and types have the same numbers in the bindings and in ggml's base.

    Raises:
        LibraryError: if one differs.
    """
    problem = _other_operation(gg, base) or _other_type(gg)
    if problem:
        raise LibraryError(f"{base} does not fit {gg.__file__}: {problem}; {_REMEDY}")


def _bindings() -> Path:
    """Return the file of the bindings, which loads the libraries when it is imported."""
    spec = find_spec("ggml")
    if spec is None or not spec.submodule_search_locations:
        raise LibraryError(f"the package ggml-python is not installed; {_REMEDY}")
    return Path(spec.submodule_search_locations[0], "ggml.py").resolve()


def _load(files: Sequence[Path]) -> None:
    """Make the dynamic linker register the libraries under their bare names too, by an RPATH.

    Where that is not possible (macOS, no /proc), they are loaded by their paths alone.
    """
    library = stub_library([file.name for file in files], str(files[0].parent), _head(files[0]))
    if library is None or sys.platform != "linux":
        return
    try:
        place = os.memfd_create("tampu-ggml")
    except OSError as error:
        log.debug("ggml's libraries are loaded one by one: %s", error)
        return
    try:
        with open(place, "wb", closefd=False) as file:
            file.write(library)
        ctypes.CDLL(f"/proc/self/fd/{place}")
    except OSError as error:
        log.debug("ggml's libraries are loaded one by one: %s", error)
    finally:
        os.close(place)


def _head(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(64)


def _version(base: ctypes.CDLL) -> str:
    """Return ggml's version; early ones do not have one."""
    if not has_symbol(base, "ggml_version"):
        return "of an unknown version"
    base.ggml_version.restype = ctypes.c_char_p
    return (base.ggml_version() or b"").decode()


def has_symbol(library: ctypes.CDLL, name: str) -> bool:
    """Return whether a library, or one that it needs, has a function of this name."""
    return hasattr(library, name)


def check_symbols(user: str, library: ctypes.CDLL, files: Sequence[Path]) -> None:
    """Check that a library, or the whole process, resolves symbols to the right files.

    Args:
        user: the name of the library or process, for the message.
        library: the library, loaded.
        files: ggml's libraries.

    Raises:
        LibraryError: if a symbol is found in another file.
    """
    for expected in files:
        mark = _MARKS.get(expected.stem)
        if mark is None or not has_symbol(library, mark):
            continue
        owner = _owner(ctypes.cast(library[mark], ctypes.c_void_p).value)
        if owner is None or not _is_same(owner, expected):
            raise LibraryError(
                f"{user} would use {owner or 'an unknown library'} instead of {expected}; "
                + _NO_OTHER
            )


def _loaded_before(files: Sequence[Path]) -> Path | None:
    """Return a library of another ggml that is in this process, if Linux lists one."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    names = {file.name for file in files}
    loaded = {Path(line.split(maxsplit=5)[-1]) for line in lines.splitlines() if "/" in line}
    return next((file for file in loaded if file.name in names and file not in files), None)


def _owner(address: int | None) -> Path | None:
    """Return the file of the library that an address is in."""
    found = _Symbol()
    if not _find_symbol()(address, ctypes.byref(found)) or not found.file:
        return None
    return Path(os.fsdecode(found.file))


@functools.cache
def _find_symbol() -> Any:
    """Return the C library's `dladdr`, a ctypes function."""
    function = ctypes.CDLL(None).dladdr
    function.argtypes = (ctypes.c_void_p, ctypes.POINTER(_Symbol))
    return function


@functools.cache
def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def _other_operation(gg: ModuleType, base: Path) -> str:
    """Describe the first operation whose number in ggml differs from the bindings; empty: none.

    ggml does not report how many there are: arbitrary addresses follow its table of names.
    """
    name_of = ctypes.CDLL(str(base)).ggml_op_name
    name_of.restype = ctypes.c_void_p
    for number in range(gg.GGML_OP_COUNT):
        address = name_of(number)
        owner = _owner(address) if address else None
        if owner is None or not _is_same(owner, base):
            return f"it has {number} operations, not {gg.GGML_OP_COUNT}"
        name = ctypes.string_at(address).decode("ascii", "replace")
        if getattr(gg, f"GGML_OP_{name}", None) != number:
            return f"its operation {number} is {name!r}, which has another number there"
    return ""


def _other_type(gg: ModuleType) -> str:
    """Describe the first tensor type whose block sizes differ from tampu's; empty: none."""
    for kind in GGMLType:
        size = (gg.ggml_blck_size(int(kind)), gg.ggml_type_size(int(kind)))
        if size != (kind.block_size, kind.block_bytes):
            return f"its blocks of {kind.name} have {size[0]} elements in {size[1]} bytes"
    return ""
