"""Tries a backend in a separate process, since a broken driver may crash or hang it.

    python -I -S backend_trial.py LIBRARY BASE

`loadable.py` runs this file as a script, so it imports the standard library alone. For CUDA it
writes what NVIDIA's driver says, as JSON, before ggml starts it. The exit code is `FOUND_NONE` if
the backend has nothing to compute on.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

FOUND_NONE = 77
CUDA_FILE = "libggml-cuda.so"
CUDA_DRIVER = "libcuda.so.1"

_MANAGEMENT = "libnvidia-ml.so.1"
_MAJOR, _MINOR = 75, 76  # of cuda.h: CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
_TEXT_BYTES = 256


def main(library: str, base: str) -> int:
    """Start the backend of a library; return the exit code."""
    is_cuda = library.endswith(f"/{CUDA_FILE}")
    if is_cuda:
        sys.stdout.write(json.dumps(ask_driver()))
        sys.stdout.flush()  # the process may end in what follows
    ggml = ctypes.CDLL(base)
    start = ctypes.CDLL(library).ggml_backend_init
    start.restype = ctypes.c_void_p
    registry = start()
    if not registry:
        return FOUND_NONE
    if not is_cuda:
        return 0
    ggml.ggml_backend_reg_dev_count.restype = ctypes.c_size_t
    return 0 if ggml.ggml_backend_reg_dev_count(ctypes.c_void_p(registry)) else FOUND_NONE


def ask_driver() -> dict[str, Any]:
    """Return the driver's version of CUDA, its error, and its cards in CUDA's order.

    No memory of a card is taken: what is free says NVIDIA's management library, if it is there.
    """
    driver = ctypes.CDLL(CUDA_DRIVER)
    version, count = ctypes.c_int(), ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))
    found = {"version": [version.value // 1000, version.value % 1000 // 10], "cards": []}
    if code := driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        text = ctypes.c_char_p()
        driver.cuGetErrorString(code, ctypes.byref(text))
        error = f"{(text.value or b'unknown').decode()} (error {code})"
        return found | {"code": code, "error": error}
    cards = [_card(driver, index) for index in range(count.value)]
    _add_free_memory(cards)
    return found | {"cards": cards}


def _card(driver: ctypes.CDLL, index: int) -> dict[str, Any]:
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    driver.cuDeviceGet(ctypes.byref(device), index)
    name, address = (ctypes.create_string_buffer(_TEXT_BYTES) for _ in range(2))
    driver.cuDeviceGetName(name, _TEXT_BYTES, device)
    driver.cuDeviceGetPCIBusId(address, _TEXT_BYTES, device)
    driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
    driver.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
    total = ctypes.c_size_t()
    driver.cuDeviceTotalMem_v2(ctypes.byref(total), device)
    return {
        "name": name.value.decode("utf-8", "replace"),
        "address": address.value.decode().lower(),
        "capability": [major.value, minor.value],
        "total": total.value,
        "free": None,
    }


def _add_free_memory(cards: list[dict[str, Any]]) -> None:
    try:
        library = ctypes.CDLL(_MANAGEMENT)
    except OSError:
        return
    if library.nvmlInit_v2():
        return
    for card in cards:
        handle, memory = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()  # total, free, used
        address = card["address"].encode()
        if library.nvmlDeviceGetHandleByPciBusId_v2(address, ctypes.byref(handle)):
            continue
        if not library.nvmlDeviceGetMemoryInfo(handle, memory):
            card["free"] = memory[1]
    library.nvmlShutdown()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
