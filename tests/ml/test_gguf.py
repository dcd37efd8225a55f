"""The reader of GGUF heads: what it returns for sound files, and that it refuses all others."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cost import cost, yardstick
from support.hostile import (
    CASES,
    STRING,
    UINT32,
    Hostile,
    good_file,
    header,
    key,
    one_key,
    pad,
    string,
    strings,
    tensor,
    u32,
)

from tampu.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from tampu.ml.gguf import GGMLType, GGUFFile, Metadata, TensorInfo, read_gguf


@pytest.fixture
def read(tmp_path: Path) -> Callable[[bytes], GGUFFile]:
    def read(data: bytes) -> GGUFFile:
        path = tmp_path / "model.gguf"
        path.write_bytes(data)
        return read_gguf(path)

    return read


# Sound files


@pytest.mark.parametrize("version", [2, 3])
def test_a_valid_file_gives_its_keys_and_tensors(
    read: Callable[[bytes], GGUFFile], version: int
) -> None:
    file = read(good_file(version=version))
    assert file.version == version
    assert file.alignment == 32
    assert file.metadata.architecture == "llama"
    assert list(file.tensors) == ["output", "quantized"]
    assert file.data_offset % 32 == 0
    assert file.size_bytes == file.path.stat().st_size


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_offsets_count_from_the_start_of_the_file(
    read: Callable[[bytes], GGUFFile], alignment: int
) -> None:
    file = read(good_file(alignment=alignment))
    assert file.data_offset % alignment == 0
    output = file.tensors["output"]
    assert output == TensorInfo(
        "output", (2, 32), GGMLType.F32, file.data_offset + 2 * alignment, 256
    )


def test_shapes_have_the_slowest_dimension_first(read: Callable[[bytes], GGUFFile]) -> None:
    file = read(good_file())
    quantized = file.tensors["quantized"]
    assert quantized.shape == (3, 64)
    assert quantized.type is GGMLType.Q4_0
    assert quantized.size_bytes == 3 * 2 * 18


def test_metadata_values_round_trip(read: Callable[[bytes], GGUFFile]) -> None:
    metadata = read(good_file()).metadata
    assert metadata.integer("block_count") == 2
    assert metadata.integer("negative") == -7
    assert metadata.integer("wide") == 2**63
    assert metadata.number("rope.freq_base") == 500.0
    assert metadata.boolean("causal") is True
    assert metadata.numbers("tokenizer.ggml.scores").tolist() == [0.5, -1, 2]
    assert metadata.integers("tokenizer.ggml.token_type").tolist() == [1, 3, -6]
    assert metadata.integers("flags").tolist() == [1, 0]
    assert metadata.integers("empty").tolist() == []


def test_tokens_that_are_not_utf_8_keep_their_bytes(read: Callable[[bytes], GGUFFile]) -> None:
    tokens = read(good_file()).metadata.strings("tokenizer.ggml.tokens")
    wanted = ["a", "", "é" * 300, "\udcff\udcfe", "x\0y", "end"]
    assert list(tokens) == wanted
    assert [tokens[index] for index in range(len(tokens))] == wanted
    assert tokens[-1] == "end"
    assert tokens[3].encode("utf-8", "surrogateescape") == b"\xff\xfe"
    assert tokens[1:3] == wanted[1:3]


def test_an_index_past_the_array_is_an_error(read: Callable[[bytes], GGUFFile]) -> None:
    tokens = read(good_file()).metadata.strings("tokenizer.ggml.tokens")
    with pytest.raises(IndexError):
        tokens[len(tokens)]


def test_a_file_without_keys_and_tensors_is_valid(read: Callable[[bytes], GGUFFile]) -> None:
    file = read(header(0, 0))
    assert len(file.metadata) == 0
    assert file.tensors == {}


def test_a_path_may_be_given_as_text(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(good_file())
    assert read_gguf(str(path)).path == path


def test_block_sizes_are_those_of_ggml() -> None:
    from tampu.ml.library import gg

    for kind in GGMLType:
        assert kind.block_size == gg.ggml_blck_size(kind)
        assert kind.block_bytes == gg.ggml_type_size(kind)


# Hostile files


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_hostile_file_is_refused_by_the_name_of_its_field(
    read: Callable[[bytes], GGUFFile], case: Hostile
) -> None:
    caught: list[ModelFileError] = []

    def refuse() -> None:
        with pytest.raises(ModelFileError) as refused:
            read(case.data)
        caught.append(refused.value)

    assert cost(refuse, times=1) < 30 * yardstick()
    assert case.field in caught[0].field
    assert case.reason in caught[0].reason
    assert "\n" not in str(caught[0])


def test_a_name_with_a_line_break_is_quoted_in_the_message(
    read: Callable[[bytes], GGUFFile],
) -> None:
    with pytest.raises(ModelFileError) as caught:
        read(pad(header(1, 0) + tensor("a\nb", [0])))
    assert caught.value.field == r"tensor 'a\nb' shape"


def test_a_split_model_of_one_part_is_read(read: Callable[[bytes], GGUFFile]) -> None:
    assert read(one_key(key("split.count", UINT32, u32(1)))).tensors == {}


@pytest.mark.parametrize(
    ("count", "told"), [(3, "cannot be found"), (1025, "is not from 0"), (2**31, "is not from 0")]
)
def test_a_split_model_with_unnumbered_parts_is_refused(
    read: Callable[[bytes], GGUFFile], count: int, told: str
) -> None:
    with pytest.raises(ModelFileError, match=told):
        read(one_key(key("split.count", UINT32, u32(count))))


# The path


@pytest.mark.parametrize("path", ["missing.gguf", "model.gguf/below", "nul\0nul"])
def test_a_missing_file_is_not_found(tmp_path: Path, path: str) -> None:
    (tmp_path / "model.gguf").write_bytes(good_file())
    with pytest.raises(ModelNotFoundError):
        read_gguf(tmp_path / path)


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="not a regular file"):
        read_gguf(tmp_path)


def test_a_fifo_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ModelFileError, match="not a regular file"):
        read_gguf(tmp_path / "fifo")


def test_a_socket_is_refused(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.fspath(tmp_path / "socket"))
        with pytest.raises(ModelFileError, match="file"):
            read_gguf(tmp_path / "socket")


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/random", "/proc/self/mem"])
def test_a_device_is_refused(path: str) -> None:
    if not Path(path).exists():
        pytest.skip(f"no {path} here")
    with pytest.raises(ModelFileError):
        read_gguf(path)


# Cost


def many_keys(count: int) -> bytes:
    records = (key(f"general.some.key.{index:08}", UINT32, u32(index)) for index in range(count))
    return header(0, count) + b"".join(records)


def test_forty_thousand_keys_are_read_in_linear_time(read: Callable[[bytes], GGUFFile]) -> None:
    few, many = many_keys(4_000), many_keys(40_000)
    assert (len(read(few).metadata), len(read(many).metadata)) == (4_000, 40_000)
    # Linear is 10, quadratic 100.
    assert cost(lambda: read(many)) < 40 * cost(lambda: read(few), times=10)


def test_a_large_vocabulary_is_complete(read: Callable[[bytes], GGUFFile]) -> None:
    tokens: list[str | bytes] = [f"token{index}" * (index % 7) for index in range(100_000)]
    tokens[5_000] = "x" * 256  # lengths that the fast path does not follow
    tokens[70_000] = "y" * 300_000
    file = read(one_key(strings("tokenizer.ggml.tokens", tokens)))
    read_back = file.metadata.strings("tokenizer.ggml.tokens")
    assert list(read_back) == tokens
    assert read_back[70_000] == tokens[70_000]


def test_strings_full_of_zeros_are_read_in_linear_time(read: Callable[[bytes], GGUFFile]) -> None:
    tokens: list[str | bytes] = ["\0" * 40, "", "\0" * 7] * 30_000
    file = read(one_key(strings("tokenizer.ggml.tokens", tokens)))
    assert list(file.metadata.strings("tokenizer.ggml.tokens")) == tokens


# Anything else


GOOD = good_file()


@settings(max_examples=300)
@given(
    cut=st.integers(0, len(GOOD)) | st.just(len(GOOD)),
    changes=st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), max_size=4),
)
def test_a_mutated_file_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, cut: int, changes: list[Any]
) -> None:
    data = bytearray(GOOD)
    for position, byte in changes:
        data[position] = byte
    path = tmp_path_factory.getbasetemp() / "mutated.gguf"
    path.write_bytes(data[:cut])
    try:
        file = read_gguf(path)
    except (ModelFileError, UnsupportedModelError) as error:
        assert str(error)  # noqa: PT017  # either outcome is right
        return
    for info in file.tensors.values():
        assert file.data_offset <= info.offset
        assert info.offset + info.size_bytes <= file.size_bytes


@settings(max_examples=100)
@given(st.lists(st.binary(max_size=600), max_size=60))
def test_any_strings_round_trip(
    tmp_path_factory: pytest.TempPathFactory, values: list[str | bytes]
) -> None:
    path = tmp_path_factory.getbasetemp() / "strings.gguf"
    path.write_bytes(header(0, 1) + strings("tokenizer.ggml.tokens", values))
    found: Any = read_gguf(path).metadata["tokenizer.ggml.tokens"]
    assert [found.raw(index) for index in range(len(found))] == values
    assert found == [value.decode("utf-8", "surrogateescape") for value in values]


# Metadata


METADATA = Metadata(
    {
        "general.architecture": "llama",
        "llama.block_count": 16,
        "llama.eps": 1e-5,
        "llama.causal": False,
        "general.name": "tiny",
        "tokenizer.ggml.tokens": ["a", "b"],
        "llama.sizes": np.array([1, 2], np.int32),
        "llama.factors": np.array([0.5], dtype=np.float64),
        "llama.wide": np.array([2**63], dtype=np.uint64),
    }
)


def test_a_key_gets_the_architecture_as_its_prefix() -> None:
    assert METADATA.integer("block_count") == 16
    assert METADATA.string("general.name") == "tiny"
    assert METADATA["llama.block_count"] == 16
    assert METADATA.has("eps")
    assert not METADATA.has("missing")


def test_an_absent_key_gives_its_default() -> None:
    assert METADATA.string("missing", "x") == "x"
    assert METADATA.integer("missing", 0) == 0
    assert METADATA.number("missing", 1.5) == 1.5
    assert METADATA.boolean("missing", default=False) is False
    assert METADATA.strings("missing", ()) == ()
    assert METADATA.integers("missing", [1]).tolist() == [1]
    assert METADATA.numbers("missing", []).tolist() == []


@pytest.mark.parametrize(
    "getter", ["string", "integer", "number", "boolean", "strings", "integers", "numbers"]
)
def test_an_absent_key_without_a_default_is_an_error(getter: str) -> None:
    with pytest.raises(ModelFileError, match=r"key 'llama\.missing': is missing"):
        getattr(METADATA, getter)("missing")


@pytest.mark.parametrize(
    ("getter", "name"),
    [
        ("string", "block_count"), ("integer", "eps"), ("integer", "causal"), ("integer", "sizes"),
        ("number", "causal"), ("number", "general.name"), ("boolean", "block_count"),
        ("strings", "general.name"), ("strings", "sizes"), ("integers", "block_count"),
        ("integers", "factors"), ("integers", "tokenizer.ggml.tokens"), ("numbers", "sizes"),
        ("numbers", "eps"),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_an_error(getter: str, name: str) -> None:
    with pytest.raises(ModelFileError, match="must be"):
        getattr(METADATA, getter)(name)


def test_an_integer_counts_as_a_number() -> None:
    assert METADATA.number("block_count") == 16.0


def test_an_integer_past_63_bits_in_an_array_is_an_error() -> None:
    with pytest.raises(ModelFileError, match="63 bits"):
        METADATA.integers("wide")


def test_arrays_have_one_type_of_number() -> None:
    assert METADATA.integers("sizes").dtype == np.int64
    assert METADATA.numbers("factors").dtype == np.float32


def test_a_model_without_architecture_is_an_error() -> None:
    with pytest.raises(ModelFileError, match=r"general\.architecture"):
        Metadata({}).integer("block_count")
    with pytest.raises(ModelFileError, match=r"general\.architecture"):
        _ = Metadata({"general.architecture": 3}).architecture


def test_a_float_key_keeps_its_precision(read: Callable[[bytes], GGUFFile]) -> None:
    file = read(one_key(key("general.x", 12, struct.pack("<d", 0.1))))
    assert file.metadata.number("general.x") == 0.1


def test_a_general_string_is_read(read: Callable[[bytes], GGUFFile]) -> None:
    file = read(one_key(key("general.name", STRING, string("Zoë"))))
    assert file.metadata.string("general.name") == "Zoë"
