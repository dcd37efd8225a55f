"""Makes a stub: a shared library that only names the libraries it needs and their folder.

The dynamic linker looks for what a library needs by its bare name, in LD_LIBRARY_PATH before the
library's own RUNPATH, unless one of that name is loaded already. One that was opened by its path
counts only by the name inside it (SONAME), which ggml's do not have. But the older RPATH comes
before LD_LIBRARY_PATH: what a library with an RPATH needs is found there, and is then known by its
bare name. Sources: ld.so(8); System V ABI, chapter 5; glibc's elf/dl-load.c.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence

_LOAD, _DYNAMIC, _STACK = 1, 2, 0x6474E551  # types of program headers
_NULL, _NEEDED, _HASH, _STRINGS, _SYMBOLS, _STRINGS_SIZE, _SYMBOL_SIZE, _RPATH = (
    *(0, 1, 4, 5, 6, 10, 11, 15),
)  # tags of the dynamic section
_READ_WRITE = 6  # the linker writes addresses into the dynamic section
_ALIGNMENT = 1 << 16  # the largest pages of these CPUs
_HEADER, _PROGRAM_HEADER, _SYMBOL, _ENTRY = 64, 56, 24, 16  # sizes in bytes


def stub_library(names: Sequence[str], folder: str, like: bytes) -> bytes | None:
    """Return a library that only needs others, which the dynamic linker finds in a folder.

    Args:
        names: of the files that it needs, in the order in which they are loaded.
        folder: where they are.
        like: the first 64 bytes of a library for the same CPU.

    Returns:
        The bytes of the file; None where libraries are not 64-bit ELF files.
    """
    if len(like) < _HEADER or like[:5] != b"\x7fELF\x02":
        return None
    order = {1: "<", 2: ">"}[like[5]]
    kind, machine, version = struct.unpack_from(order + "HHI", like, 16)
    (flags,) = struct.unpack_from(order + "I", like, 48)
    strings, places = b"\0", []
    for text in (*names, folder):
        places.append(len(strings))
        strings += os.fsencode(text) + b"\0"
    dynamic_at = _HEADER + 3 * _PROGRAM_HEADER
    entries = len(names) + 7
    symbols_at = dynamic_at + entries * _ENTRY
    hash_at = symbols_at + _SYMBOL
    strings_at = hash_at + 16
    size = strings_at + len(strings)
    dynamic = [(_NEEDED, place) for place in places[:-1]]
    dynamic += [(_RPATH, places[-1]), (_HASH, hash_at), (_STRINGS, strings_at)]
    dynamic += [(_SYMBOLS, symbols_at), (_STRINGS_SIZE, len(strings)), (_SYMBOL_SIZE, _SYMBOL)]
    dynamic += [(_NULL, 0)]
    header = (0, _HEADER, 0, flags, _HEADER, _PROGRAM_HEADER, 3, 64, 0, 0)
    programs = [
        (_LOAD, _READ_WRITE, 0, 0, 0, size, size, _ALIGNMENT),
        (_DYNAMIC, _READ_WRITE, *[dynamic_at] * 3, *[entries * _ENTRY] * 2, 8),
        (_STACK, _READ_WRITE, 0, 0, 0, 0, 0, 16),  # without it the stack would be made executable
    ]
    return b"".join(
        [
            like[:16],
            struct.pack(order + "HHIQQQIHHHHHH", kind, machine, version, *header),
            *(struct.pack(order + "IIQQQQQQ", *program) for program in programs),
            *(struct.pack(order + "QQ", *entry) for entry in dynamic),
            bytes(_SYMBOL),
            struct.pack(order + "4I", 1, 1, 0, 0),  # a table of one bucket and one symbol, no name
            strings,
        ]
    )
