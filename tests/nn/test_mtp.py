"""A layer of multi-token prediction: which tensors fit the model that it is in."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from tampu.errors import ModelFileError
from tampu.ml import Weights
from tampu.ml.gguf import read_gguf
from tampu.nn import MTPLayer, RMSNorm, bind
from tampu.nn import gguf as declared

WIDTH, VOCABULARY = 32, 10
SHAPES = {
    "attn_norm": (WIDTH,),
    "nextn.enorm": (WIDTH,),
    "nextn.hnorm": (WIDTH,),
    "nextn.eh_proj": (WIDTH, 2 * WIDTH),
    "nextn.shared_head_norm": (WIDTH,),
    "nextn.shared_head_head": (VOCABULARY, WIDTH),
    "nextn.embed_tokens": (VOCABULARY, WIDTH),
}


class Layer(MTPLayer):
    layer: RMSNorm = declared("attn_norm")


def check(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """Bind a layer whose tensors have these shapes, and check them."""
    writer = gguf.GGUFWriter(path, "llama")
    for name, shape in shapes.items():
        writer.add_tensor(f"blk.3.{name}.weight", np.ones(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with Weights(read_gguf(path)) as weights:
        bind(Layer, weights, None, "blk.3.").check(WIDTH, VOCABULARY)


def test_one_of_the_right_shapes_fits(tmp_path: Path) -> None:
    check(tmp_path / "whole.gguf", SHAPES)
    own = [name for name in SHAPES if "embed" not in name and "shared" not in name]
    check(tmp_path / "shared.gguf", {name: SHAPES[name] for name in own})


@pytest.mark.parametrize("name", [name for name in SHAPES if name != "attn_norm"])
def test_a_tensor_of_another_shape_is_named(tmp_path: Path, name: str) -> None:
    other = {name: (*SHAPES[name][:-1], WIDTH // 2)}
    with pytest.raises(ModelFileError, match=rf"tensor blk\.3\.{name}\.weight: its shape is"):
        check(tmp_path / "other.gguf", SHAPES | other)
