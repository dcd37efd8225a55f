"""What the files of a repository are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tampu.store.gguf_files import read_repository


@pytest.mark.parametrize(
    ("file", "tag"),
    [
        ("Llama-3.2-1B-Instruct-Q4_K_M.gguf", "Q4_K_M"), ("m.Q8_0.gguf", "Q8_0"),
        ("m-IQ3_XXS.gguf", "IQ3_XXS"), ("m-IQ3_S-imat.gguf", "IQ3_S-imat"), ("m-q4_0.gguf", "q4_0"),
        ("m-bf16.gguf", "bf16"), ("m-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("gpt-oss-20b-mxfp4.gguf", "mxfp4"), ("Q4_K_M/m-00001-of-00001.gguf", "Q4_K_M"),
        ("Q4_K_M.gguf", "Q4_K_M"), ("model.gguf", "model"),
    ],
)  # fmt: skip
def test_the_end_of_the_file_name_is_the_tag(file: str, tag: str) -> None:
    (variant,) = read_repository([file]).variants
    assert variant.tag == tag


FILES = [
    "README.md", "m-F16.gguf", "m-Q4_K_M.gguf", "m-Q8_0-00002-of-00002.gguf",
    "m-Q8_0-00001-of-00002.gguf", "m-Q2_K-00001-of-00002.gguf", "mmproj-m-F32.gguf",
    "mmproj-m-f16.gguf",
]  # fmt: skip


def test_variants_shards_and_projectors_are_recognized() -> None:
    repository = read_repository(FILES)
    assert [variant.tag for variant in repository.variants] == ["F16", "Q4_K_M", "Q8_0"]
    assert repository.find("q8_0").files == (
        "m-Q8_0-00001-of-00002.gguf",
        "m-Q8_0-00002-of-00002.gguf",
    )
    assert repository.projector == "mmproj-m-f16.gguf"


def test_a_variant_is_found_by_tag_or_file_and_latest_is_the_preferred_one() -> None:
    repository = read_repository(FILES)
    assert repository.find("latest").tag == "Q4_K_M"
    assert repository.find("f16").tag == "F16"
    assert repository.find("m-f16.gguf").tag == repository.find("M-F16").tag == "F16"
    assert repository.find("Q2_K") is None
    assert read_repository(["a-Q6_K.gguf"]).find("latest").tag == "Q6_K"
    assert read_repository(["README.md"]).find("latest") is None
    assert read_repository([]).projector is None


@given(st.lists(st.text(max_size=30)))
def test_any_file_names_are_accepted(files: list[Any]) -> None:
    repository = read_repository([*files, *(file + ".gguf" for file in files)])
    for variant in repository.variants:
        assert repository.find(variant.tag) is not None
