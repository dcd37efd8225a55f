"""Binding declared weights to the tensors of a file."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from tampu.errors import ModelFileError
from tampu.ml import Tensor, Weights
from tampu.ml.buffer_types import WeightUse
from tampu.ml.gguf import read_gguf
from tampu.nn import Embedding, Linear, Module, RMSNorm, bind
from tampu.nn import gguf as declared


@dataclass
class Options:
    layers: int = 2


@pytest.fixture
def weights(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Write a file with tensors of these names and declare them."""
    opened: list[Any] = []

    def make(*names: str) -> Weights:
        path = tmp_path / f"{len(opened)}.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        for name in names:
            writer.add_tensor(name, np.ones((2, 32), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        opened.append(Weights(read_gguf(path)))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


class Norm(Module):
    weight: Tensor = declared("weight")


class Attention(Module):
    query: Linear = declared("attn_q")
    norm: Norm | None = declared("attn_q_norm")


class Layer(Module):
    norm: Norm = declared("attn_norm")
    attention: Attention = declared()


class Decoder(Module):
    embedding: Embedding = declared("token_embd")
    layers: list[Layer] = declared("blk", count="layers")
    output: Linear = declared("output", or_="token_embd")
    factors: Tensor | None = declared("rope_freqs.weight")


FULL = ["token_embd.weight", "output.weight", "rope_freqs.weight"]
FULL += [f"blk.{i}.{name}.weight" for i in (0, 1) for name in ("attn_norm", "attn_q")]
FULL += [f"blk.{i}.attn_q_norm.weight" for i in (0, 1)]


# What is there


def test_each_attribute_gets_the_tensor_of_its_name(weights: Callable[..., Any]) -> None:
    opened = weights(*FULL, "blk.1.attn_q.bias")
    model = bind(Decoder, opened, Options())
    assert model.embedding.weight.name == "token_embd.weight"
    assert model.output.weight.name == "output.weight"
    assert model.output.bias is None
    assert model.factors.name == "rope_freqs.weight"
    assert [layer.norm.weight.name for layer in model.layers] == [
        "blk.0.attn_norm.weight",
        "blk.1.attn_norm.weight",
    ]
    assert model.layers[1].attention.query.bias.name == "blk.1.attn_q.bias"
    assert model.layers[0].attention.query.bias is None
    assert opened.unused() == []


def test_a_list_is_as_long_as_its_option_says(weights: Callable[..., Any]) -> None:
    opened = weights(*FULL)
    model = bind(Decoder, opened, Options(layers=1))
    assert len(model.layers) == 1
    assert opened.unused() == [name for name in FULL if name.startswith("blk.1")]


def test_a_list_begins_at_the_index_that_its_option_says(weights: Callable[..., Any]) -> None:
    class Tail(Module):
        layers: list[Layer | None] = declared("blk", count="layers", start="first")

    @dataclass
    class Later(Options):
        first: int = 1

    opened = weights(*FULL)
    first, second = bind(Tail, opened, Later()).layers
    assert first.norm.weight.name == "blk.1.attn_norm.weight"
    assert second is None


def test_the_uses_of_a_tensor_are_recorded(weights: Callable[..., Any]) -> None:
    opened = weights("token_embd.weight", *FULL[3:])
    bind(Decoder, opened, Options())
    assert opened._uses["token_embd.weight"] == {WeightUse.ROWS, WeightUse.PRODUCT}
    assert opened._uses["blk.0.attn_q.weight"] == {WeightUse.PRODUCT}
    assert opened._uses["blk.0.attn_norm.weight"] == {WeightUse.ELEMENTS}


# Alternatives and what may be missing


class Bounded(Module):
    weight: Tensor = declared("weight")
    lowest: float | None = declared("input_min")
    highest: float | None = declared("input_max")


def test_an_attribute_of_type_float_is_the_number_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "bounds.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("a.weight", np.ones((2, 32), np.float32))
    writer.add_tensor("a.input_min", np.array([-1.5], np.float16))
    writer.add_tensor("b.weight", np.ones((2, 32), np.float32))
    writer.add_tensor("b.input_max", np.array([1.0, 2.0], np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    class First(Module):
        part: Bounded = declared("a")

    class Second(Module):
        part: Bounded = declared("b")

    with Weights(read_gguf(path)) as weights:
        found = bind(First, weights, Options()).part
        assert (found.lowest, found.highest) == (-1.5, None)
        assert "a.input_min" not in weights.unused()
        with pytest.raises(ModelFileError, match=r"b\.input_max.*\[2\] is not one number"):
            bind(Second, weights, Options())


def test_the_second_name_is_used_if_the_first_is_absent(weights: Callable[..., Any]) -> None:
    model = bind(Decoder, weights("token_embd.weight", *FULL[3:]), Options())
    assert model.output.weight.name == "token_embd.weight"


def test_an_optional_module_is_none_if_nothing_of_it_is_there(weights: Callable[..., Any]) -> None:
    names = [name for name in FULL if name != "blk.0.attn_q_norm.weight"]
    model = bind(Decoder, weights(*names), Options())
    assert model.layers[0].attention.norm is None
    assert model.layers[1].attention.norm.weight.name == "blk.1.attn_q_norm.weight"


def test_a_part_of_a_module_makes_the_rest_of_it_required(weights: Callable[..., Any]) -> None:
    class Gated(Module):
        gate: Linear | None = declared("gate")

    with pytest.raises(ModelFileError, match=r"gate\.weight"):
        bind(Gated, weights("gate.bias"), Options())
    assert bind(Gated, weights("other"), Options()).gate is None


def test_alternatives_of_tensors_are_taken_in_order(weights: Callable[..., Any]) -> None:
    class Named(Module):
        value: Tensor = declared("new", or_="old")

    assert bind(Named, weights("old", "new"), Options()).value.name == "new"
    assert bind(Named, weights("old"), Options()).value.name == "old"
    with pytest.raises(ModelFileError, match="missing from the file: new"):
        bind(Named, weights("other"), Options())


def test_all_missing_tensors_are_named_in_one_error(weights: Callable[..., Any]) -> None:
    names = [name for name in FULL if "attn_norm" not in name and "token" not in name]
    with pytest.raises(ModelFileError) as caught:
        bind(Decoder, weights(*names), Options(layers=3))
    assert caught.value.field == "tensors"
    assert str(caught.value).partition("missing from the file: ")[2].split(", ") == [
        "token_embd.weight",
        "blk.0.attn_norm.weight",
        "blk.1.attn_norm.weight",
        "blk.2.attn_norm.weight",
        "blk.2.attn_q.weight",
    ]


def test_a_list_without_a_count_is_a_type_error(weights: Callable[..., Any]) -> None:
    class Endless(Module):
        layers: list[Norm] = declared("blk")

    with pytest.raises(TypeError, match="must declare its count"):
        bind(Endless, weights("blk.0.weight"), Options())


# Inheritance


def test_a_module_has_the_declarations_of_its_base(weights: Callable[..., Any]) -> None:
    class Wider(Attention):
        key: Linear = declared("attn_k")

    model = bind(Wider, weights("attn_q.weight", "attn_k.weight"), Options())
    assert (model.query.weight.name, model.key.weight.name) == ("attn_q.weight", "attn_k.weight")


def test_a_module_may_override_declarations_of_its_base(weights: Callable[..., Any]) -> None:
    class Fused(Attention):
        query: Linear = declared("attn_qkv")

    opened = weights("attn_qkv.weight")
    assert bind(Fused, opened, Options()).query.weight.name == "attn_qkv.weight"
    assert opened.unused() == []


def test_two_models_of_a_class_share_nothing(weights: Callable[..., Any]) -> None:
    first, second = (bind(Decoder, weights(*FULL), Options()) for _ in range(2))
    assert first.layers is not second.layers
    assert first.output.weight is not second.output.weight


def test_the_norm_of_the_library_is_a_module(weights: Callable[..., Any]) -> None:
    assert bind(RMSNorm, weights("weight"), Options()).weight.name == "weight"


# Alternatives


class Dense(Module):
    up: Linear = declared("ffn_up")
    down: Linear = declared("ffn_down")


class Gated(Dense):
    gate: Linear = declared("ffn_gate")


class Chosen(Module):
    layers: list[Norm | Dense] = declared("blk", count="layers")


class Named(Module):
    norm: Norm = declared("first", or_=("second", "third"))


class Either(Module):
    layers: list[Dense | Gated] = declared("blk", count="layers")


def test_the_complete_one_of_two_alternatives_is_bound(weights: Callable[..., Any]) -> None:
    opened = weights("blk.0.ffn_up.weight", "blk.0.ffn_down.weight", "blk.1.weight")
    kinds = [type(layer) for layer in bind(Chosen, opened, Options()).layers]
    assert kinds == [Dense, Norm]


def test_missing_tensors_of_alternatives_are_those_of_the_first(
    weights: Callable[..., Any],
) -> None:
    opened = weights("blk.0.ffn_up.weight", "blk.1.ffn_up.weight", "blk.1.ffn_down.weight")
    with pytest.raises(ModelFileError, match=r"missing from the file: blk\.0\.ffn_down\.weight$"):
        bind(Either, opened, Options())


def test_several_names_are_tried_in_their_order(weights: Callable[..., Any]) -> None:
    assert bind(Named, weights("third.weight"), Options()).norm.weight.name == "third.weight"
    opened = weights("third.weight", "second.weight")
    assert bind(Named, opened, Options()).norm.weight.name == "second.weight"
    assert opened.unused() == ["third.weight"]
