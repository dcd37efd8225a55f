"""GPUs are found by the files of /sys."""

from pathlib import Path

from support.fake_system import add_gpu

from tampu.ml.pci import Adapter, find_adapters


def test_gpus_are_found_with_their_drivers(tmp_path: Path) -> None:
    add_gpu(tmp_path, "10de:2684", driver="nvidia")
    add_gpu(tmp_path, "8086:56a0", driver="i915", slot=2)
    add_gpu(tmp_path, "1af4:1050", slot=3)
    assert find_adapters(tmp_path) == (
        Adapter("0000:01:00.0", 0x10DE, 0x2684, "nvidia", ()),
        Adapter("0000:02:00.0", 0x8086, 0x56A0, "i915", ("renderD129",)),
        Adapter("0000:03:00.0", 0x1AF4, 0x1050, None, ()),
    )
    assert [(each.vendor_name, each.id) for each in find_adapters(tmp_path)] == [
        ("NVIDIA", "10de:2684"), ("Intel", "8086:56a0"), ("other", "1af4:1050"),
    ]  # fmt: skip


def test_only_gpus_are_listed(tmp_path: Path) -> None:
    add_gpu(tmp_path, "8086:0d57", kind="060000")  # a bridge
    add_gpu(tmp_path, "8086:7d1d", kind="120000", slot=2)  # an NPU
    instinct = add_gpu(tmp_path, "1002:740f", kind="120000", slot=3)
    compute = add_gpu(tmp_path, "10de:2330", kind="030200", slot=4)
    assert [each.address for each in find_adapters(tmp_path)] == [instinct, compute]


def test_without_pci_there_are_none(tmp_path: Path) -> None:
    assert find_adapters(tmp_path) == ()


def test_a_device_that_is_being_removed_is_left_out(tmp_path: Path) -> None:
    address = add_gpu(tmp_path, "10de:2684")
    (tmp_path / "sys/bus/pci/devices" / address / "class").unlink()
    assert find_adapters(tmp_path) == ()
