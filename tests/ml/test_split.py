"""Models in several files: read as one, and each way in which the parts may not fit is told."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.split_models import split_file
from support.tiny_gguf import write_gguf
from support.tiny_model import Tiny, write_tiny

from tampu.convert.quantize import quantize_file
from tampu.engine.engine import Engine
from tampu.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from tampu.ml.gguf import read_gguf
from tampu.ml.mapping import map_file
from tampu.ml.split_names import part_name, read_part_name

PROMPT = [5, 9, 3, 7, 11]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("whole") / "tiny.gguf")


@pytest.fixture
def parts(whole: Path, tmp_path: Path) -> list[Path]:
    return split_file(whole, tmp_path / "tiny.gguf", 5)


def test_part_names_are_written_and_read() -> None:
    assert part_name("m-Q4_0", 2, 13) == "m-Q4_0-00002-of-00013.gguf"
    assert read_part_name("m-Q4_0-00002-of-00013.gguf") == ("m-Q4_0", 2, 13)
    assert read_part_name("m-2-of-3.gguf") == ("m-2-of-3", 1, 1)


def test_the_parts_are_read_as_one_file(whole: Path, parts: list[Path]) -> None:
    assert len(parts) >= 3
    one, joined = read_gguf(whole), read_gguf(parts[0])
    assert [part.path for part in joined.parts] == parts
    assert joined.path == parts[0]
    assert joined.size_bytes == sum(path.stat().st_size for path in parts)
    assert joined.metadata.architecture == one.metadata.architecture
    ours, theirs = map_file(joined), map_file(one)
    assert joined.tensors.keys() == one.tensors.keys()
    for name, info in joined.tensors.items():
        expected = one.tensors[name]
        assert (info.shape, info.type) == (expected.shape, expected.type)
        data = ours[info.offset : info.offset + info.size_bytes]
        assert data == theirs[expected.offset : expected.offset + expected.size_bytes]
        path, offset = joined.find(info.offset)
        assert data == path.read_bytes()[offset : offset + info.size_bytes]


def test_a_split_model_answers_as_the_whole_one(whole: Path, parts: list[Path]) -> None:
    options: dict[str, Any] = {"context": 64, "threads": 1}
    with Engine.load(whole, **options) as one, Engine.load(parts[0], **options) as other:
        np.testing.assert_array_equal(other.logits(PROMPT), one.logits(PROMPT))


def test_quantizing_makes_one_file_of_it(whole: Path, parts: list[Path], tmp_path: Path) -> None:
    quantize_file(whole, tmp_path / "one.gguf", "Q8_0")
    quantize_file(parts[0], tmp_path / "other.gguf", "Q8_0")
    one, other = read_gguf(tmp_path / "one.gguf"), read_gguf(tmp_path / "other.gguf")
    assert dict(one.metadata).keys() == dict(other.metadata).keys()
    assert one.tensors.keys() == other.tensors.keys()
    ours, theirs = map_file(other), map_file(one)
    for name, info in one.tensors.items():
        place = other.tensors[name].offset
        expected = theirs[info.offset : info.offset + info.size_bytes]
        assert ours[place : place + info.size_bytes] == expected


def test_an_error_names_the_first_part(parts: list[Path]) -> None:
    with pytest.raises(UnsupportedModelError, match=f"part 2 of .*: load {parts[0].name}"):
        read_gguf(parts[1])


def test_a_missing_part_is_named(parts: list[Path]) -> None:
    parts[1].unlink()
    with pytest.raises(ModelNotFoundError, match=f"part .* missing: {parts[1].name}"):
        read_gguf(parts[0])


def test_a_damaged_part_is_named(parts: list[Path]) -> None:
    with parts[2].open("r+b") as file:
        file.truncate(parts[2].stat().st_size - 40)
    with pytest.raises(ModelFileError, match=f"{parts[2].name}: .*past the end of the file"):
        read_gguf(parts[0])


def test_parts_in_another_order_are_refused(parts: list[Path], tmp_path: Path) -> None:
    parts[1].rename(tmp_path / "third")
    parts[2].rename(parts[1])
    (tmp_path / "third").rename(parts[2])
    with pytest.raises(ModelFileError, match=f"{parts[1].name}.*says part 3 of"):
        read_gguf(parts[0])


def test_the_same_part_twice_is_refused(parts: list[Path]) -> None:
    shutil.copy(parts[1], parts[2])
    with pytest.raises(ModelFileError, match=f"{parts[2].name}.*says part 2 of"):
        read_gguf(parts[0])


@pytest.mark.parametrize(
    ("index", "told"), [(1, "is in tiny-00002-of-00004.gguf, too"), (3, "split.tensors.count")]
)
def test_a_part_of_another_model_is_refused(
    whole: Path, tmp_path: Path, index: int, told: str
) -> None:
    parts = split_file(whole, tmp_path / "tiny.gguf", 6)
    deeper = write_tiny(tmp_path / "deeper.gguf", Tiny(layers=3))
    theirs = split_file(deeper, tmp_path / "other.gguf", 8)
    assert len(theirs) == len(parts) == 4
    theirs[index].replace(parts[index])
    with pytest.raises(ModelFileError, match=told):
        read_gguf(parts[0])


def test_a_part_of_another_architecture_is_refused(parts: list[Path]) -> None:
    parts[1].unlink()
    write_gguf(parts[1], general__architecture="qwen2", split__no=1, split__count=len(parts))
    with pytest.raises(ModelFileError, match="'qwen2', not 'llama': it is a part of another"):
        read_gguf(parts[0])


def test_a_first_part_with_an_unexpected_name_is_refused(parts: list[Path], tmp_path: Path) -> None:
    parts[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(ModelFileError, match="not named NAME-00001-of-"):
        read_gguf(tmp_path / "renamed.gguf")


def test_a_name_with_another_count_is_refused(parts: list[Path], tmp_path: Path) -> None:
    renamed = tmp_path / part_name("tiny", 1, len(parts) + 1)
    parts[0].rename(renamed)
    with pytest.raises(ModelFileError, match="the other parts cannot be found"):
        read_gguf(renamed)
