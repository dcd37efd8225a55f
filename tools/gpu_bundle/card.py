"""What NVIDIA's driver says of the card, and whether the bundle's CUDA code can run on it.

It uses the standard library alone.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

OLDEST_DRIVER = 580
"""The first driver of CUDA 13, with which the bundle's library is compiled."""
OLDEST_ARCHITECTURE = 75
"""The first compute capability that CUDA 13 compiles for (Turing)."""
LEAST_MIB = 4096
"""Memory of the card that the check needs."""
_QUERY = "name,driver_version,compute_cap,memory.total,memory.free"


@dataclass(frozen=True, slots=True)
class Card:
    """One NVIDIA GPU.

    Attributes:
        name: as the driver names it.
        driver: its version, as `580.95.05`.
        architecture: the compute capability without the point, as 90.
        total_mib: its memory.
        free_mib: what of it is free.
    """

    name: str
    driver: str
    architecture: int
    total_mib: int
    free_mib: int


def find_card() -> Card | str:
    """Return the first card, or in one line why there is none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return "no NVIDIA driver: nvidia-smi is not on the PATH"
    command = [program, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"nvidia-smi does not answer: {error}"
    if done.returncode or not done.stdout.strip():
        return f"nvidia-smi found no card: {(done.stdout + done.stderr).strip()}"
    return parse_card(done.stdout.splitlines()[0])


def parse_card(line: str) -> Card | str:
    """Read a line of nvidia-smi; return what is wrong with it if it cannot be read."""
    parts = [part.strip() for part in line.split(",")]
    try:
        name, driver, capability, total, free = parts
        architecture = int(capability.replace(".", ""))
        return Card(name, driver, architecture, int(total), int(free))
    except ValueError:
        return f"nvidia-smi prints what cannot be read: {line!r}"


def problem_of(card: Card) -> str:
    """Return in one line why CUDA cannot be checked on a card, and what to do; empty: it can."""
    major = card.driver.partition(".")[0]
    if not major.isdigit() or int(major) < OLDEST_DRIVER:
        return (
            f"the driver {card.driver} is too old for CUDA 13: "
            f"install version {OLDEST_DRIVER} or newer"
        )
    if card.architecture < OLDEST_ARCHITECTURE:
        return (
            f"{card.name} has compute capability {card.architecture / 10:.1f}; "
            f"CUDA 13 needs {OLDEST_ARCHITECTURE / 10:.1f} or newer: use Vulkan on this card"
        )
    if card.free_mib < LEAST_MIB:
        return (
            f"{card.name} has {card.free_mib} of {card.total_mib} MiB free; the check needs "
            f"{LEAST_MIB}: end the programs that `nvidia-smi` lists, or use a larger card"
        )
    return ""


def can_run(card: Card, compiled: Sequence[int]) -> bool:
    """Return whether a library that is compiled for these architectures has code for a card.

    Code for one compute capability runs on later ones of the same major version. For 12.x ggml
    compiles code of that capability alone (`120a`).
    """
    return card.architecture in compiled or any(
        each // 10 == card.architecture // 10 != 12 and each < card.architecture
        for each in compiled
    )
