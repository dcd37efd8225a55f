"""Maps a model's file into memory; the parts of a split model are mapped next to each other."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np

from tampu.errors import ModelFileError
from tampu.ml.gguf import FilePart, GGUFFile

_MAP_FIXED = 0x10  # of Linux, macOS and the BSDs
_FAILED = ctypes.c_void_p(-1).value


def map_file(file: GGUFFile) -> mmap.mmap:
    """Return the file's bytes, read-only; they are unmapped with the last view of them.

    Raises:
        ModelFileError: if it cannot be opened, or is shorter than when its header was read.
    """
    if len(file.parts) == 1:
        return _map(file.parts[0])
    (*_, last) = file.parts
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    reserved = mmap.mmap(-1, last.start + last.size_bytes, flags=private, prot=mmap.PROT_READ)
    address = np.frombuffer(reserved, np.uint8).ctypes.data
    for part in file.parts:
        _lay(part, address + part.start)
    return reserved


def _map(part: FilePart) -> mmap.mmap:
    descriptor = _open(part)
    try:
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise _unreadable(part.path, error) from error
    finally:
        os.close(descriptor)


def _lay(part: FilePart, address: int) -> None:
    """Map a file over reserved pages; it is unmapped with them."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [
        ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_longlong,
    ]  # fmt: skip
    descriptor = _open(part)
    try:
        flags = mmap.MAP_SHARED | _MAP_FIXED
        found = library.mmap(address, part.size_bytes, mmap.PROT_READ, flags, descriptor, 0)
    finally:
        os.close(descriptor)
    if found == _FAILED:
        raise _unreadable(part.path, OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno())))


def _open(part: FilePart) -> int:
    try:
        descriptor = os.open(part.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _unreadable(part.path, error) from error
    if os.fstat(descriptor).st_size < part.size_bytes:
        os.close(descriptor)
        raise ModelFileError("file", "became shorter while it was being loaded")
    return descriptor


def _unreadable(path: Path, error: OSError) -> ModelFileError:
    return ModelFileError("file", f"{path.name} cannot be opened: {error.strerror}")
