"""The types of a quantized file's tensors are those that libllama's quantizer chooses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tampu.convert.quant_mix import (
    FILE_TYPES,
    ModelShape,
    Override,
    choose_types,
    file_type,
    fitting,
    is_matrix,
)
from tampu.errors import UnsupportedModelError
from tampu.ml.types import GGMLType
from tampu.store.model_info import FILE_TYPES as NAMES_BY_NUMBER

# Written by tools/record_quant_mixes.py from llama-cpp-python 0.3.36.
RECORDED: dict[str, Any] = json.loads(
    (Path(__file__).parent / "libllama_quant_mixes.json").read_text("utf-8")
)


def named(model: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    layers = model["keys"]["block_count"]
    return {
        name.format(layer): tuple(shape)
        for name, shape in model["shapes"].items()
        for layer in (range(layers) if "{}" in name else [0])
    }


def recorded(rows: dict[str, str]) -> dict[str, str]:
    types: dict[Any, Any] = {}
    for name, row in rows.items():
        runs = [run.partition("*") for run in row.split()]
        kinds = [kind for kind, _, count in runs for _ in range(int(count))]
        types |= {name.format(layer): kind for layer, kind in enumerate(kinds)}
    return types


@pytest.mark.parametrize("mixture", [name for name in FILE_TYPES if name != "MXFP4"])
@pytest.mark.parametrize("label", RECORDED)
def test_each_tensor_gets_the_type_that_libllama_gives_it(label: str, mixture: str) -> None:
    model = RECORDED[label]
    facts = ModelShape.of(model["architecture"], model["keys"])
    shapes = named(model)
    chosen = choose_types(shapes, file_type(mixture), facts)
    expected = recorded(model["types"][mixture])
    kept = {"ffn_gate_inp": "F32"}
    for name, kind in expected.items():
        found = chosen.get(name)
        unchanged = next((k for part, k in kept.items() if part in name), "F16")
        assert (found.name if found is not None else unchanged) == kind, name


@pytest.mark.parametrize("label", ["mixtral", "qwen3moe"])
def test_mxfp4_applies_to_experts_and_the_rest_is_q8_0(label: str) -> None:
    model = RECORDED[label]
    facts = ModelShape.of(model["architecture"], model["keys"])
    chosen = choose_types(named(model), file_type("MXFP4"), facts)
    expected = recorded(model["types"]["MXFP4"])
    assert {name: kind.name for name, kind in chosen.items()} == {
        name: kind for name, kind in expected.items() if "gate_inp" not in name
    }


def test_mxfp4_without_experts_applies_to_all_matrices_but_the_output() -> None:
    """libllama would make it Q8_0 throughout, which is not what the name promises."""
    model = RECORDED["llama"]
    chosen = choose_types(named(model), file_type("MXFP4"), ModelShape(layers=20))
    assert chosen.pop("output.weight").name == "Q8_0"
    assert {kind.name for kind in chosen.values()} == {"MXFP4"}


def test_the_names_match_those_of_model_info() -> None:
    for kind in FILE_TYPES.values():
        assert NAMES_BY_NUMBER[kind.number] == kind.name


@pytest.mark.parametrize(("text", "name"), [("q4_k_m", "Q4_K_M"), ("Q4_K", "Q4_K_M")])
def test_names_are_case_insensitive_and_have_short_forms(text: str, name: str) -> None:
    assert file_type(text).name == name


def test_an_unknown_name_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(UnsupportedModelError, match="unknown type 'Q9'; known: F32, F16"):
        file_type("Q9")


KEPT = [
    ("output_norm.weight", (64,)),
    ("blk.0.attn_q_norm.weight", (2, 64)),
    ("blk.0.attn_q.bias", (64, 64)),
    ("blk.0.ffn_gate_inp.weight", (8, 64)),
    ("blk.0.ssm_conv1d.weight", (64, 4)),
    ("v.blk.0.attn_q.weight", (64, 64)),
    ("mm.mm_input_projection.weight", (64, 64)),
    ("position_embd.weight", (64, 64)),
    ("one_row.weight", (1, 64)),
]


@pytest.mark.parametrize(("name", "shape"), KEPT)
def test_tensors_that_are_never_quantized(name: str, shape: tuple[int, ...]) -> None:
    assert not is_matrix(name, shape)


FITTING = [("Q4_K", 256, "Q4_K"), ("Q4_K", 96, "Q5_0"), ("Q3_K", 96, "Q4_0"), ("Q4_K", 80, "F16")]


@pytest.mark.parametrize(("wanted", "columns", "found"), FITTING)
def test_a_row_that_does_not_fill_blocks_gets_a_fallback_type(
    wanted: str, columns: int, found: str
) -> None:
    assert fitting(GGMLType[wanted], (4, columns)).name == found


def test_the_first_matching_override_wins() -> None:
    model = RECORDED["llama"]
    overrides = [Override.parse(text) for text in ("attn_v=q8_0", r"blk\.1\.=F16")]
    chosen = choose_types(named(model), file_type("Q4_K_M"), ModelShape(layers=20), overrides)
    assert chosen["blk.1.attn_v.weight"].name == "Q8_0"
    assert chosen["blk.1.attn_k.weight"].name == "F16"
    assert chosen["blk.2.attn_k.weight"].name == "Q4_K"
    plain = choose_types(named(model), file_type("F16"), ModelShape(layers=20), overrides)
    assert plain["blk.1.attn_v.weight"].name == "Q8_0"


@pytest.mark.parametrize("text", ["attn_v", "=Q8_0", "attn_v=Q4_K_M", "a=", "(=Q8_0", ""])
def test_an_invalid_override_is_an_error(text: str) -> None:
    with pytest.raises(UnsupportedModelError):
        Override.parse(text)
