"""What a file says of its model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.tiny_gguf import CHAT_TEMPLATE, write_gguf

from tampu.errors import ModelNotFoundError
from tampu.ml.metadata import Metadata
from tampu.store.model_info import human_number, plain_metadata, read_model_info


def test_a_model_is_described_from_its_header(tmp_path: Path) -> None:
    info = read_model_info(write_gguf(tmp_path / "m.gguf"))
    assert info.architecture == "llama"
    assert (info.parameters, info.parameter_size, info.tensors) == (640, "640", 1)
    assert info.quantization == "Q4_K_M"
    assert (info.context, info.embedding_length) == (2048, 64)
    assert info.capabilities == ("completion", "tools")
    assert info.template == CHAT_TEMPLATE
    assert info.license == "apache-2.0"


def test_the_default_quantization_is_the_type_of_most_weights(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", general__file_type=9999)
    assert read_model_info(path).quantization == "F16"


def test_a_template_that_does_not_compile_is_said_and_the_rest_is_described(tmp_path: Path) -> None:
    info = read_model_info(write_gguf(tmp_path / "m.gguf", template="ok\n{% if tools %}{{ x"))
    assert "line 2" in info.template_problem
    assert info.capabilities == ("completion", "tools")
    assert read_model_info(write_gguf(tmp_path / "n.gguf")).template_problem == ""


def test_an_encoder_without_a_pooling_type_is_an_embedding_model(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", llama__attention__causal=False)
    assert read_model_info(path).capabilities[0] == "embedding"


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        read_model_info(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("count", "text"),
    [(999, "999"), (12_345, "12K"), (494_032_768, "494.03M"), (7_615_616_512, "7.6B"),
     (70 * 10**9, "70B"), (5 * 10**6, "5M")],
)  # fmt: skip
def test_numbers_are_shortened(count: int, text: str) -> None:
    assert human_number(count) == text


def test_metadata_becomes_json_even_if_it_is_not_utf8() -> None:
    metadata = Metadata({
        "general.architecture": "x\udcff", "a": np.arange(3), "b": ["\udcff", "y"], "c": True,
        "d": np.arange(9), "e": 1.5,
    })  # fmt: skip
    plain = plain_metadata(metadata, max_items=5)
    json.dumps(plain).encode("utf-8")
    assert plain["a"] == [0, 1, 2]
    assert plain["b"] == ["\ufffd", "y"]
    assert (plain["c"], plain["d"], plain["e"]) == (True, None, 1.5)
