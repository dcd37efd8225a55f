"""Options of an architecture, read from metadata."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tampu.errors import ModelFileError, UnsupportedModelError
from tampu.ml import RopeScaling
from tampu.ml.metadata import Metadata
from tampu.nn import option, option_from, read_options, read_rope_scaling, read_windows


@dataclass(frozen=True, kw_only=True)
class Options:
    layers: int = option("block_count", at_most=100)
    epsilon: float = option("attention.layer_norm_rms_epsilon")
    heads: int | None = option("attention.head_count", default=None)
    base: float = option("rope.freq_base", default=10_000.0, at_most=1e12)
    skipped: int = option("expert.first", default=0, at_least=0)
    causal: bool = option("causal", default=True)
    kind: str = option("kind", default="plain")
    vocabulary: int = option_from(lambda metadata: len(metadata.strings("tokenizer.ggml.tokens")))
    mode: str  # no file holds it


GOOD: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 3,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.tokens": ["a", "b"],
}


def read(**changes: Any) -> Options:
    values = {**GOOD, **{f"llama.{key.replace('__', '.')}": v for key, v in changes.items()}}
    metadata = Metadata({key: value for key, value in values.items() if value is not None})
    return read_options(Options, metadata, {"mode": "halves"})


def test_keys_become_options_and_missing_ones_take_their_defaults() -> None:
    assert read() == Options(
        layers=3,
        epsilon=1e-5,
        heads=None,
        base=10_000.0,
        skipped=0,
        causal=True,
        kind="plain",
        vocabulary=2,
        mode="halves",
    )


def test_existing_keys_take_precedence_over_defaults() -> None:
    found = read(attention__head_count=8, rope__freq_base=5e5, causal=False, kind="other")
    assert (found.heads, found.base, found.causal, found.kind) == (8, 5e5, False, "other")


def test_an_integer_is_accepted_as_a_float() -> None:
    assert read(rope__freq_base=10).base == 10.0


@pytest.mark.parametrize("key", ["block_count", "attention__layer_norm_rms_epsilon"])
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(ModelFileError, match=f"key 'llama.{key.replace('__', '.')}': is missing"):
        read(**{key: None})


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("block_count", 0, "0 is not 1 to 100"),
        ("block_count", -1, "-1 is not 1 to 100"),
        ("block_count", 101, "101 is not 1 to 100"),
        ("block_count", 2.0, "must be an integer, not float"),
        ("block_count", True, "must be an integer, not bool"),
        ("block_count", "3", "must be an integer, not str"),
        ("attention__head_count", 0, "0 is not 1 to"),
        ("attention__head_count", 2**31, "is not 1 to"),
        ("expert__first", -1, "-1 is not 0 to"),
        ("attention__layer_norm_rms_epsilon", math.nan, "nan is not"),
        ("attention__layer_norm_rms_epsilon", math.inf, "inf is not"),
        ("attention__layer_norm_rms_epsilon", 0.0, "0.0 is not"),
        ("attention__layer_norm_rms_epsilon", -1e-5, "-1e-05 is not"),
        ("attention__layer_norm_rms_epsilon", "small", "must be a number, not str"),
        ("rope__freq_base", 1e13, "is not 0 to 1e\\+12"),
        ("causal", 1, "must be true or false, not int"),
        ("kind", 7, "must be a text, not int"),
    ],
)
def test_a_value_of_another_type_or_out_of_range_is_refused_by_its_key(
    key: str, value: float | str, reason: str
) -> None:
    with pytest.raises(ModelFileError, match=reason) as caught:
        read(**{key: value})
    assert caught.value.field == f"key 'llama.{key.replace('__', '.')}'"


def test_an_option_at_least_0_may_be_0() -> None:
    assert read(expert__first=0).skipped == 0


def test_an_option_that_takes_several_keys_reports_their_errors() -> None:
    values = {key: value for key, value in GOOD.items() if not key.startswith("tokenizer")}
    with pytest.raises(ModelFileError, match=r"tokenizer\.ggml\.tokens"):
        read_options(Options, Metadata(values), {"mode": "halves"})


def test_options_of_the_text_are_read_from_its_file() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Seeing:
        layers: int = option("block_count")
        epsilon: float = option("attention.layer_norm_rms_epsilon", default=1.0, of_text=True)

    own = Metadata({"general.architecture": "clip", "clip.block_count": 7})
    assert read_options(Seeing, own, {}, Metadata(GOOD)) == Seeing(layers=7, epsilon=1e-5)
    assert read_options(Seeing, own, {}) == Seeing(layers=7, epsilon=1.0)


# RoPE scaling


def scaling(**keys: Any) -> RopeScaling:
    values = {f"llama.{key.replace('__', '.')}": value for key, value in keys.items()}
    return read_rope_scaling(Metadata({"general.architecture": "llama", **values}))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, RopeScaling()),
        ({"rope__scaling__type": "none", "rope__scaling__factor": 4.0}, RopeScaling()),
        ({"rope__scaling__factor": 4.0}, RopeScaling(frequency_scale=0.25)),
        ({"rope__scale_linear": 4.0}, RopeScaling(frequency_scale=0.25)),
        ({"rope__scaling__factor": 8}, RopeScaling(frequency_scale=0.125)),
        ({"rope__scaling__factor": 0.0}, RopeScaling()),
        ({"rope__scaling__type": "linear", "rope__scaling__factor": 0.0}, RopeScaling()),
        (
            {"rope__scaling__type": "linear", "rope__scaling__factor": 2.0},
            RopeScaling(frequency_scale=0.5),
        ),
        (
            {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "context_length": 1000},
            RopeScaling(0.25, 1000, 1.0, 1.0, 32.0, 1.0),
        ),
        (
            {
                "rope__scaling__type": "yarn",
                "rope__scaling__factor": 4.0,
                "rope__scaling__original_context_length": 500,
                "rope__scaling__yarn_ext_factor": 0.5,
                "rope__scaling__attn_factor": 0.8,
                "rope__scaling__yarn_beta_fast": 16.0,
                "rope__scaling__yarn_beta_slow": 2.0,
                "context_length": 2000,
            },
            RopeScaling(0.25, 500, 0.5, 0.8, 16.0, 2.0),
        ),
        (  # as llama.cpp's converter writes Phi-3: it states no type
            {"rope__scaling__original_context_length": 500, "rope__scaling__attn_factor": 1.2},
            RopeScaling(original_context=500, magnitude=1.2),
        ),
        (
            {"rope__scaling__type": "longrope", "context_length": 1000},
            RopeScaling(original_context=1000),
        ),
        (  # as llama.cpp's converter writes Ministral 3: ggml's 0.1 ln(factor) + 1 is undone
            {
                "rope__scaling__type": "yarn",
                "rope__scaling__factor": 16.0,
                "rope__scaling__original_context_length": 500,
                "rope__scaling__yarn_log_multiplier": 1.0,
                "context_length": 2000,
            },
            RopeScaling(1 / 16, 500, 1.0, 1 / (0.1 * math.log(16.0) + 1), 32.0, 1.0),
        ),
    ],
)
def test_the_scaling_of_rope_is_read_from_the_file(
    keys: dict[str, Any], expected: RopeScaling
) -> None:
    found = scaling(**keys)
    assert found.frequency_scale == pytest.approx(expected.frequency_scale)
    assert found.magnitude == pytest.approx(expected.magnitude)
    assert (found.original_context, found.extrapolation) == (
        expected.original_context,
        expected.extrapolation,
    )
    assert (found.beta_fast, found.beta_slow) == (expected.beta_fast, expected.beta_slow)


def test_an_unknown_scaling_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(UnsupportedModelError, match="known: none, linear, longrope, yarn"):
        scaling(rope__scaling__type="spiral")


@pytest.mark.parametrize("factor", [-1.0, math.nan, math.inf, -math.inf])
def test_an_invalid_scale_factor_is_refused(factor: float) -> None:
    with pytest.raises(ModelFileError, match=r"rope\.scaling\.factor"):
        scaling(rope__scaling__factor=factor)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.array([3, 3, 3], np.int32), 3), (np.array([3], np.uint8), 3),
        (np.array([7, 7], np.uint64), 7),
    ],
)  # fmt: skip
def test_an_array_of_equal_numbers_for_each_layer_is_that_number(value: Any, expected: int) -> None:
    options = read(block_count=value, rope__freq_base=np.array([5e5, 5e5], np.float32))
    assert (options.layers, options.base) == (expected, 5e5)
    assert type(options.layers) is int


@pytest.mark.parametrize(
    "value",
    [np.array([3, 4], np.int32), np.array([], np.int32), np.array([True]), np.array([3.0]), ["3"]],
)
def test_other_arrays_are_refused_by_the_key_and_the_reason(value: Any) -> None:
    with pytest.raises(ModelFileError, match=r"key 'llama\.block_count': must be (one|an int)"):
        read(block_count=value)


_EVERY_SECOND = np.array([True, False, True, False])


@pytest.mark.parametrize(
    ("keys", "windows"),
    [
        ({}, (None,) * 4),
        ({"sliding_window": 0}, (None,) * 4),
        ({"sliding_window": 8}, (8, 8, None, 8)),
        ({"sliding_window": 8, "sliding_window_pattern": 2}, (8, None, 8, None)),
        ({"sliding_window": 8, "sliding_window_pattern": 0}, (8,) * 4),
        ({"sliding_window": 8, "sliding_window_pattern": _EVERY_SECOND}, (8, None, 8, None)),
    ],
)
def test_a_file_says_which_layers_have_a_window(
    keys: dict[str, Any], windows: tuple[int | None, ...]
) -> None:
    values = {f"llama.attention.{key}": value for key, value in keys.items()}
    metadata = Metadata({**GOOD, "llama.block_count": 4, **values})
    assert read_windows(metadata, 3) == windows


def test_the_layers_without_a_window_may_be_the_first_of_each_period() -> None:
    keys = {"llama.block_count": 5, "llama.attention.sliding_window": 8}
    assert read_windows(Metadata({**GOOD, **keys}), 4, full_first=True) == (None, 8, 8, 8, None)


def test_flags_for_other_layers_than_the_files_are_refused() -> None:
    keys = {"llama.attention.sliding_window_pattern": np.array([True, False])}
    with pytest.raises(ModelFileError, match="sliding_window_pattern"):
        read_windows(Metadata({**GOOD, **keys}), 4)
