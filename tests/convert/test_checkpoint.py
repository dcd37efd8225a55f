"""Reading a checkpoint's files: what is accepted, what is refused and with which words."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import save_file
from support import handmade_checkpoints as handmade

from tampu.convert.checkpoint import Checkpoint, read_safetensors, to_float32
from tampu.errors import ModelFileError, ModelNotFoundError


def write_raw(path: Path, header: bytes, data: bytes, length: int | None = None) -> Path:
    path.write_bytes(struct.pack("<Q", len(header) if length is None else length) + header + data)
    return path


def write_table(path: Path, table: Any, data: bytes) -> Path:
    return write_raw(path, json.dumps(table).encode(), data)


def entry(*offsets: int, dtype: str = "F32", shape: Any = (1,)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": list(offsets)}


def test_tensors_come_back_as_they_were_stored(tmp_path: Path) -> None:
    values: dict[str, npt.NDArray[Any]] = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.array([1.5, -2], np.float16),
    }
    save_file(values, tmp_path / "model.safetensors")
    tensors = {tensor.name: tensor for tensor in read_safetensors(tmp_path / "model.safetensors")}
    for name, expected in values.items():
        stored = tensors[name].read()
        assert stored.dtype == expected.dtype
        np.testing.assert_array_equal(stored, expected)


def test_bf16_becomes_the_same_numbers_in_float32(tmp_path: Path) -> None:
    bits = np.array([0x3F80, 0xC000, 0x3EAB, 0x7F7F, 0x0001], np.uint16)  # 1, -2, 1/3, max, tiny
    path = write_table(
        tmp_path / "x.safetensors", {"t": entry(0, 10, dtype="BF16", shape=(5,))}, bits.tobytes()
    )
    values = to_float32(read_safetensors(path)[0].read())
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values[:2], [1, -2])
    assert values[2] == pytest.approx(1 / 3, rel=2**-8)
    assert values.view(np.uint32).tolist() == [int(b) << 16 for b in bits]


def test_unsupported_types_are_refused_on_read(tmp_path: Path) -> None:
    path = write_table(
        tmp_path / "x.safetensors", {"t": entry(0, 4, dtype="F8_E4M3", shape=(4,))}, b"abcd"
    )
    (tensor,) = read_safetensors(path)
    with pytest.raises(ModelFileError, match="F8_E4M3"):
        tensor.read()


GOOD = entry(0, 4)
BAD_TABLES: dict[str, tuple[Any, bytes]] = {
    "data beyond the file": ({"t": entry(0, 8, shape=(2,))}, b"1234"),
    "bytes behind the last tensor": ({"t": GOOD}, b"12345"),
    "a hole": ({"t": GOOD, "u": entry(8, 12)}, b"1" * 12),
    "an overlap": ({"t": entry(0, 8, shape=(2,)), "u": entry(4, 12, shape=(2,))}, b"1" * 12),
    "size unlike the shape": ({"t": entry(0, 4, shape=(2,))}, b"1234"),
    "a product that overflows": ({"t": entry(0, 4, shape=(2**40, 2**40))}, b"1234"),
    "begin behind end": ({"t": entry(4, 0)}, b"1234"),
    "one offset": ({"t": entry(0)}, b""),
    "three offsets": ({"t": entry(0, 2, 4)}, b"1234"),
    "a negative dimension": ({"t": entry(0, 4, shape=(-1,))}, b"1234"),
    "a fractional dimension": ({"t": entry(0, 4, shape=(1.0,))}, b"1234"),
    "a dimension true": ({"t": entry(0, 4, shape=(True,))}, b"1234"),
    "a shape that is a text": ({"t": entry(0, 4, shape="1")}, b"1234"),
    "an unknown type": ({"t": entry(0, 4, dtype="F31")}, b"1234"),
    "a type in lower case": ({"t": entry(0, 4, dtype="f32")}, b"1234"),
    "an entry that is a number": ({"t": 5}, b""),
    "an entry without a type": ({"t": {"shape": [], "data_offsets": [0, 0]}}, b""),
    "a header that is a list": ([], b""),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_a_table_that_does_not_describe_its_data_is_refused(tmp_path: Path, case: str) -> None:
    table, data = BAD_TABLES[case]
    path = write_table(tmp_path / "x.safetensors", table, data)
    with pytest.raises(ModelFileError, match=r"x\.safetensors"):
        read_safetensors(path)


BAD_FILES: dict[str, bytes] = {
    "empty": b"",
    "seven bytes": b"1234567",
    "a header of no bytes": struct.pack("<Q", 0),
    "a header longer than the file": struct.pack("<Q", 100) + b"{}",
    "a header of 2**63 bytes": struct.pack("<Q", 2**63) + b"{}",
    "not UTF-8": struct.pack("<Q", 4) + b'{"\xff"',
    "not JSON": struct.pack("<Q", 2) + b"{]",
    "nested a thousand times": struct.pack("<Q", 100_000) + b"[" * 100_000,
}


def test_a_pointer_of_git_lfs_is_named_as_one(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 12\n")
    with pytest.raises(ModelFileError, match=r"x\.safetensors: .*Git LFS.*git lfs pull"):
        read_safetensors(path)


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_damaged_file_is_refused(tmp_path: Path, case: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(BAD_FILES[case])
    with pytest.raises(ModelFileError, match=r"x\.safetensors"):
        read_safetensors(path)


def test_a_duplicate_name_in_one_file_is_refused(tmp_path: Path) -> None:
    one = json.dumps(GOOD)
    header = f'{{"t": {one}, "t": {one}}}'.encode()
    path = write_raw(tmp_path / "x.safetensors", header, b"1234")
    with pytest.raises(ModelFileError, match="duplicate tensor name 't'"):
        read_safetensors(path)


def test_the_metadata_of_a_file_is_not_a_tensor(tmp_path: Path) -> None:
    table = {"__metadata__": {"format": "pt"}, "t": GOOD}
    assert len(read_safetensors(write_table(tmp_path / "x.safetensors", table, b"1234"))) == 1


def test_a_file_truncated_after_its_header_was_read_is_an_error(tmp_path: Path) -> None:
    path = write_table(tmp_path / "x.safetensors", {"t": GOOD}, b"1234")
    (tensor,) = read_safetensors(path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ModelFileError, match="ends within"):
        tensor.read()


def split(folder: Path, weight_map: dict[str, Any] | None = None) -> Path:
    """Write a checkpoint of two shards and its index."""
    handmade.write(folder)
    (folder / "model.safetensors").unlink()
    tensors = handmade.weights()
    names = sorted(tensors)
    shards = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    for shard, inside in shards.items():
        save_file({name: tensors[name] for name in inside}, folder / shard)
    known = {name: shard for shard, inside in shards.items() for name in inside}
    index = {"weight_map": known if weight_map is None else weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_shards_named_by_an_index_are_read_once_each(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(split(tmp_path))
    assert set(checkpoint.tensors) == set(handmade.weights())


def test_files_that_the_index_does_not_name_are_not_read(tmp_path: Path) -> None:
    split(tmp_path)
    (tmp_path / "consolidated.safetensors").write_bytes(b"something else")
    assert set(Checkpoint.open(tmp_path).tensors) == set(handmade.weights())


@pytest.mark.parametrize(
    "name", ["../a.safetensors", "/etc/passwd", "sub/a.safetensors", "a.bin", "a\0.safetensors", 5]
)
def test_an_index_with_a_path_outside_the_folder_is_refused(tmp_path: Path, name: Any) -> None:
    with pytest.raises(ModelFileError, match="index"):
        Checkpoint.open(split(tmp_path, {"t": name}))


def test_a_missing_shard_is_an_error_that_names_it(tmp_path: Path) -> None:
    split(tmp_path)
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"b\.safetensors: the file is missing"):
        Checkpoint.open(tmp_path)


def test_the_same_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    split(tmp_path)
    (tmp_path / "b.safetensors").write_bytes((tmp_path / "a.safetensors").read_bytes())
    with pytest.raises(ModelFileError, match="duplicate tensor name"):
        Checkpoint.open(tmp_path)


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    handmade.write(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelFileError, match="pickle"):
        Checkpoint.open(tmp_path)


def test_a_folder_without_a_checkpoint_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="config"):
        Checkpoint.open(tmp_path)
    with pytest.raises(ModelNotFoundError, match="not a folder"):
        Checkpoint.open(tmp_path / "nowhere")


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ModelFileError, match="regular file"):
        Checkpoint.open(tmp_path)
