"""The GPUs on the PCI bus, as Linux lists them in /sys: also those without a driver."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

NVIDIA, AMD, INTEL = 0x10DE, 0x1002, 0x8086
_VENDORS = {NVIDIA: "NVIDIA", AMD: "AMD", INTEL: "Intel"}
_DISPLAY, _ACCELERATOR = 0x03, 0x12  # base classes of the PCI code and ID assignment


@dataclass(frozen=True, slots=True)
class Adapter:
    """One GPU.

    Attributes:
        address: on the bus: `0000:01:00.0`.
        vendor: PCI id of its maker.
        product: PCI id of the product, among the maker's.
        driver: the kernel's driver that is bound to it; None: no driver is.
        nodes: names of its files in /dev/dri, such as `renderD128`.
    """

    address: str
    vendor: int
    product: int
    driver: str | None
    nodes: tuple[str, ...]

    @property
    def vendor_name(self) -> str:
        """The maker; `other` for those whose GPUs ggml has no code for, and for emulated ones."""
        return _VENDORS.get(self.vendor, "other")

    @property
    def id(self) -> str:
        """Vendor and product as lspci prints them: `10de:2684`."""
        return f"{self.vendor:04x}:{self.product:04x}"


def find_adapters(root: Path = Path("/")) -> tuple[Adapter, ...]:
    """Return the GPUs of the system whose files are under `root`; none where there is no /sys."""
    return tuple(_adapters(root / "sys/bus/pci/devices"))


def _adapters(folder: Path) -> Iterator[Adapter]:
    for path in sorted(folder.glob("*")):
        numbers = [_number(path / name) for name in ("vendor", "device", "class")]
        vendor, product, kind = numbers
        if vendor is None or product is None or kind is None:  # it was removed meanwhile
            continue
        base = kind >> 16
        # AMD's GPUs without outputs are accelerators; so are Intel's NPUs, which are not GPUs.
        if base == _DISPLAY or (base == _ACCELERATOR and vendor == AMD):
            driver = path / "driver"
            nodes = tuple(sorted(node.name for node in path.glob("drm/*")))
            yield Adapter(
                path.name,
                vendor,
                product,
                driver.resolve().name if driver.exists() else None,
                nodes,
            )


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text().strip(), 16)
    except (OSError, ValueError):
        return None
