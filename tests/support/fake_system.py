"""The files by which a system shows its GPUs, made up in a folder."""

from __future__ import annotations

from pathlib import Path


def add_gpu(
    root: Path, ids: str, *, kind: str = "030000", driver: str | None = None, slot: int = 1
) -> str:
    """Add a PCI device, with its ids as lspci prints them; return its address."""
    address = f"0000:{slot:02x}:00.0"
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True)
    vendor, product = ids.split(":")
    for name, value in (("vendor", vendor), ("device", product), ("class", kind)):
        (folder / name).write_text(f"0x{value}\n")
    if driver is not None:
        bound = root / "sys/bus/pci/drivers" / driver
        bound.mkdir(parents=True, exist_ok=True)
        (folder / "driver").symlink_to(bound)
    if driver == "nvidia":
        touch(root, "dev/nvidiactl")
    elif driver is not None:
        (folder / f"drm/renderD{127 + slot}").mkdir(parents=True)
        touch(root, f"dev/dri/renderD{127 + slot}")
    return address


def touch(root: Path, name: str) -> Path:
    """Make an empty file, and its folders."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path
