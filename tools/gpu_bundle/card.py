"""What NVIDIA's driver says of the cards, and whether the bundle's CUDA code can run on one.

It uses the standard library alone.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""The variable with the cards that CUDA uses: their indices, or the beginnings of their UUIDs."""
OLDEST_DRIVER = 580
"""The first driver of CUDA 13, with which the bundle's library is compiled."""
OLDEST_ARCHITECTURE = 75
"""The first compute capability that CUDA 13 compiles for (Turing)."""
LEAST_MIB = 4096
"""Memory of the card that the check needs."""
_QUERY = "name,driver_version,compute_cap,memory.total,memory.free,uuid"
_TOO_OLD = f"is too old for CUDA 13: install version {OLDEST_DRIVER} or newer"


@dataclass(frozen=True, slots=True)
class Card:
    """One NVIDIA GPU.

    Attributes:
        name: as the driver names it.
        driver: its version, as `580.95.05`.
        architecture: the compute capability without the point, as 90.
        total_mib: its memory; None: the driver does not say, as where it shares the system's.
        free_mib: what of it is free; None as above.
        uuid: its name for `CUDA_VISIBLE_DEVICES`.
    """

    name: str
    driver: str
    architecture: int
    total_mib: int | None
    free_mib: int | None
    uuid: str = ""

    def __str__(self) -> str:
        """Describe it in one line."""
        memory = "memory not reported" if self.total_mib is None else f"{self.total_mib} MiB"
        return f"{self.name}, driver {self.driver}, {memory}, sm_{self.architecture}"


def find_cards() -> tuple[Card, ...] | str:
    """Return all cards in the driver's order, or in one line why there are none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return "no NVIDIA driver: nvidia-smi is not on the PATH"
    command = [program, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"nvidia-smi does not answer: {error}"
    said = " ".join((done.stdout + done.stderr).split())
    if "not a valid field" in said:  # drivers that know no `compute_cap`
        return f"the driver {_TOO_OLD} (nvidia-smi: {said})"
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    if done.returncode or not lines:
        return f"nvidia-smi found no card: {said or 'it printed nothing'}"
    cards = [parse_card(line) for line in lines]
    found = tuple(card for card in cards if isinstance(card, Card))
    return found or str(cards[0])


def parse_card(line: str) -> Card | str:
    """Read a line of nvidia-smi; return what is wrong with it if it cannot be read."""
    try:
        name, driver, capability, total, free, uuid = (
            part.strip() for part in line.rsplit(",", _QUERY.count(","))
        )
        architecture = int(capability.replace(".", ""))
    except ValueError:
        return f"nvidia-smi prints what cannot be read: {line!r}"
    return Card(name, driver, architecture, _number(total), _number(free), uuid)


def _number(text: str) -> int | None:
    """Return a number; None for `[N/A]`, which is printed for memory that is the system's."""
    return int(text) if text.isdecimal() else None


def choose_card(cards: Sequence[Card], visible: str | None) -> Card | str:
    """Return the card to check: the first that can be checked, or else the first.

    Args:
        cards: all of them.
        visible: the value of `CUDA_VISIBLE_DEVICES`; None: it is not set.

    Returns:
        A card, or in one line why there is none.
    """
    shown = list(cards) if visible is None else _named(cards, visible)
    if not shown:
        there = ", ".join(f"{index}: {card.name}" for index, card in enumerate(cards))
        return f"{VISIBLE}={visible} names no card: unset it, or name one of {there}"
    return next((card for card in shown if not problem_of(card)), shown[0])


def _named(cards: Sequence[Card], visible: str) -> list[Card]:
    """Return the cards that a value names; as CUDA does, those before the first unknown one."""
    found: list[Card] = []
    for word in visible.replace(" ", "").split(","):
        if word.startswith("MIG-"):  # a part of a card; nvidia-smi has the whole card's memory
            found.append(replace(cards[0], total_mib=None, free_mib=None, uuid=word))
            continue
        known = (
            card for index, card in enumerate(cards)
            if word == str(index) or (word.startswith("GPU-") and card.uuid.startswith(word))
        )  # fmt: skip
        card = next(known, None)
        if card is None:
            break
        found.append(card)
    return found


def problem_of(card: Card) -> str:
    """Return in one line why CUDA cannot be checked on a card, and what to do; empty: it can."""
    major = card.driver.partition(".")[0]
    if not major.isdecimal() or int(major) < OLDEST_DRIVER:
        return f"the driver {card.driver} {_TOO_OLD}"
    if card.architecture < OLDEST_ARCHITECTURE:
        return (
            f"{card.name} has compute capability {card.architecture / 10:.1f}; "
            f"CUDA 13 needs {OLDEST_ARCHITECTURE / 10:.1f} or newer: use Vulkan on this card"
        )
    if card.free_mib is not None and card.free_mib < LEAST_MIB:
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
