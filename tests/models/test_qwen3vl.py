"""Qwen3-VL's options: what a file may not say of its positions, its additions and its encoder."""

from __future__ import annotations

from typing import Any

import pytest

from tampu import nn
from tampu.errors import ModelFileError
from tampu.ml.metadata import Metadata
from tampu.models.qwen3vl import read_deepstack
from tampu.models.qwen3vl_vision import Options

KEYS: dict[str, Any] = {
    "block_count": 4,
    "embedding_length": 128,
    "n_deepstack_layers": 2,
    "rope.dimension_sections": [24, 20, 20, 0],
    "vision.block_count": 2,
    "vision.embedding_length": 64,
    "vision.attention.head_count": 4,
}


def metadata(**changes: Any) -> Metadata:
    values = KEYS | {name.replace("__", "."): value for name, value in changes.items()}
    stated: dict[str, Any] = {
        f"qwen3vl.{name}": value for name, value in values.items() if value is not None
    }
    return Metadata({"general.architecture": "qwen3vl", **stated})


def test_the_bounds_of_images_have_several_names() -> None:
    """Of our files, and of llama.cpp's; without any they are those of the published processor."""
    usual = nn.read_options(Options, metadata(), {})
    assert (usual.min_pixels, usual.max_pixels) == (65_536, 32 * 32 * 1280)
    ours = nn.read_options(Options, metadata(vision__min_pixels=5, vision__max_pixels=6), {})
    assert (ours.min_pixels, ours.max_pixels) == (5, 6)
    theirs = metadata(vision__image_min_pixels=7, vision__image_max_pixels=8)
    found = nn.read_options(Options, theirs, {})
    assert (found.min_pixels, found.max_pixels) == (7, 8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vision__attention__head_count": 5}, "head_count': 5 heads of 64 features"),
        ({"vision__attention__head_count": 0}, "head_count': 0 heads"),
        ({"vision__image_mean": [0.5, 0.5]}, "image_mean': .* three colors"),
        ({"vision__image_std": [0.5, 0.0, 0.5]}, "image_std': .* three colors"),
    ],
)
def test_an_encoder_that_cannot_be_names_the_key(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        nn.read_options(Options, metadata(**changes), {})


@pytest.mark.parametrize("count", [4, -1, 2**40])
def test_images_add_to_fewer_layers_than_there_are(count: int) -> None:
    with pytest.raises(ModelFileError, match=f"n_deepstack_layers': .*{count}"):
        read_deepstack(metadata(n_deepstack_layers=count))
    assert read_deepstack(metadata(n_deepstack_layers=None)) == 0


@pytest.mark.parametrize("name", ["rope__mrope_section", "mrope_sections"])
def test_the_sections_of_the_rope_have_several_names(name: str) -> None:
    found = metadata(rope__dimension_sections=None, **{name: [24, 20, 20]})
    assert nn.read_rope_sections(found) == (24, 20, 20, 0)
    for wrong in ([24, 20], [24, -1, 20]):
        with pytest.raises(ModelFileError, match="three or four numbers"):
            nn.read_rope_sections(metadata(rope__dimension_sections=wrong))
