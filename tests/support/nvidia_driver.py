"""A stand-in for the libraries of NVIDIA's driver, which says what a test wants of its cards."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_CUDA = """
#include <stddef.h>
#include <string.h>
static const struct {{ const char *name, *address; int major, minor; size_t mib; }} cards[] =
    {{ {cards} {{0}} }};
int cuDriverGetVersion(int *version) {{ *version = {version}; return 0; }}
int cuInit(unsigned flags) {{ return {error}; }}
int cuGetErrorString(int error, const char **text) {{ *text = "{text}"; return 0; }}
int cuDeviceGetCount(int *count) {{ *count = sizeof cards / sizeof *cards - 1; return 0; }}
int cuDeviceGet(int *device, int index) {{ *device = index; return 0; }}
int cuDeviceGetName(char *name, int size, int i) {{ strcpy(name, cards[i].name); return 0; }}
int cuDeviceGetPCIBusId(char *text, int size, int i) {{ strcpy(text, cards[i].address); return 0; }}
int cuDeviceGetAttribute(int *value, int which, int i) {{
    *value = which == 75 ? cards[i].major : cards[i].minor;
    return 0;
}}
int cuDeviceTotalMem_v2(size_t *size, int i) {{ *size = cards[i].mib << 20; return 0; }}
"""
_MANAGEMENT = """
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *address, void **handle) { return 0; }
int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long *memory) {
    memory[1] = FREE_MIB * 1024ull * 1024;
    return 0;
}
"""


@dataclass(frozen=True, slots=True)
class Card:
    """One card: its name, compute capability, address on the PCI bus, and memory in MiB."""

    name: str = "H100"
    capability: tuple[int, int] = (9, 0)
    address: str = "0000:01:00.0"
    mib: int = 81920


def compile_driver(
    folder: Path,
    cards: Sequence[Card] = (Card(),),
    *,
    version: int = 13000,
    error: int = 0,
    text: str = "no CUDA-capable device is detected",
    free_mib: int | None = None,
) -> Path:
    """Write `libcuda.so.1` into a folder, and `libnvidia-ml.so.1` if it is known what is free.

    Args:
        folder: to be made, for LD_LIBRARY_PATH.
        cards: in CUDA's order.
        version: of CUDA, as the driver gives it: 12040 for 12.4.
        error: that starting it ends with.
        text: of the error.
        free_mib: memory of each card.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = "".join(
        f'{{"{card.name}", "{card.address.upper()}", {card.capability[0]}, {card.capability[1]},'
        f" {card.mib}}},"
        for card in cards
    )
    source = _CUDA.format(cards=rows, version=version, error=error, text=text)
    library = folder / "libcuda.so.1"
    _compile(source, library)
    if free_mib is not None:
        _compile(_MANAGEMENT.replace("FREE_MIB", str(free_mib)), folder / "libnvidia-ml.so.1")
    return library


def _compile(source: str, library: Path) -> None:
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=source, text=True, check=True)
