"""The table of parameters: each way in has the same names and the same ranges."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from support.tiny_model import write_tiny

from tampu.cli.parameters import read_parameter
from tampu.errors import RequestError
from tampu.runner.generate_options import GenerateOptions
from tampu.sampling import SamplingOptions
from tampu.sampling.parameters import (
    BY_OLLAMA,
    PARAMETERS,
    Parameter,
    Special,
    Use,
    check_parameters,
    engine_values,
    names_of,
)
from tampu.server.fields.options import request_options
from tampu.server.fields.other_servers import parameters_of
from tampu.server.openai.requests import ChatRequest, CompletionRequest
from tampu.server.serving.model_defaults import ModelDefaults
from tampu.store.model_info import read_model_info
from tampu.store.modelfile import parse_modelfile
from tools.models_table import END
from tools.parameters_table import BEGIN, FIELDS, OPTIONS, PAGE, fields, options, table

WRONG: dict[type, list[Any]] = {
    int: ["x", 1.5, True, math.nan, math.inf, [], {}],
    float: ["x", True, math.nan, math.inf, -math.inf, [], {}],
    bool: ["maybe", 2, 0.5, []],
    str: ["steam", 1, True, []],
    list: [[""], ["x"] * 17, ["x" * 1025], [1], 5, {}],
}


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> ModelDefaults:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_tiny(path)
    return ModelDefaults(replace(read_model_info(path), context=0))


def wrong_values(row: Parameter) -> Iterator[Any]:
    yield from WRONG[row.kind]
    if row.kind in (int, float):
        below = row.low - 1
        if row.special is Special.NONE or (row.special is Special.ZERO_IS_DEFAULT and below < 0):
            yield row.kind(below)
        if math.isfinite(row.high):
            yield row.kind(row.high * 2 + 1)


def accepts(act: Callable[..., object], *arguments: Any) -> bool:
    try:
        act(*arguments)
    except RequestError:
        return False
    return True


@pytest.mark.parametrize("row", PARAMETERS.values(), ids=lambda row: row.ollama)
def test_a_wrong_value_is_refused_with_the_range(row: Parameter) -> None:
    for value in wrong_values(row):
        with pytest.raises(RequestError) as caught:
            row.check_given(value)
        message = str(caught.value)
        assert f"{row.ollama} must be {row.range_text}, not " in message
        assert "\n" not in message


@pytest.mark.parametrize("value", [2**63, 2**70])
def test_an_integer_of_more_than_63_bits_is_refused_with_the_largest(value: int) -> None:
    with pytest.raises(RequestError, match=f"seed must be an integer from -1 to {2**63 - 1}"):
        PARAMETERS["seed"].check_given(value)
    assert PARAMETERS["seed"].check_given(2**63 - 1) == 2**63 - 1


@pytest.mark.parametrize("row", PARAMETERS.values(), ids=lambda row: row.ollama)
def test_a_modelfile_and_a_request_agree(row: Parameter, profile: ModelDefaults) -> None:
    for value in (*wrong_values(row), *right_values(row)):
        is_fine = accepts(row.check_given, value)
        assert accepts(check_parameters, {row.ollama: value}) is is_fine
        if row.use is not Use.MODEL:
            assert accepts(request_options, profile, {row.ollama: value}) is is_fine


@pytest.mark.parametrize("row", PARAMETERS.values(), ids=lambda row: row.ollama)
def test_a_modelfile_and_the_repl_read_the_same_texts(row: Parameter) -> None:
    texts = {bool: ["true", "0", "maybe"], str: ["auto", "steam"], list: ["x", "x" * 1025]}
    numbers = ["x", "nan", "inf", "-7", "-1", "0", "0.5", "1", "40", "5000", "1e300"]
    for text in texts.get(row.kind, numbers):
        is_fine = accepts(row.parse, text)
        assert accepts(parse_modelfile, f"FROM x\nPARAMETER {row.ollama} {text}") is is_fine
        if row.use is not Use.MODEL:
            assert accepts(read_parameter, row.ollama, [text]) is is_fine


def right_values(row: Parameter) -> Iterator[Any]:
    if row.kind in (int, float):
        yield row.kind(row.low)
        yield row.kind(min(row.high, 10**9))
        if row.special in (Special.NEGATIVE_IS_NONE, Special.NEGATIVE_IS_AUTO):
            yield from (-1, -7)
        if row.special is Special.ZERO_IS_DEFAULT:
            yield 0
    else:
        yield {bool: True, str: row.choices[-1:] and row.choices[-1], list: ["x"]}[row.kind]


def test_a_repeat_penalty_of_zero_is_refused_when_the_model_is_made() -> None:
    with pytest.raises(RequestError, match=r"repeat_penalty must be a number from 0\.01 to 100"):
        parse_modelfile("FROM x\nPARAMETER repeat_penalty 0")


def test_too_many_stop_strings_are_refused_when_the_model_is_made() -> None:
    modelfile = parse_modelfile("FROM x" + "\nPARAMETER stop x" * 17)
    with pytest.raises(RequestError, match="stop must be at most 16 strings"):
        check_parameters(modelfile.parameters)


def test_each_engine_option_has_a_row() -> None:
    sampling = {field.name for field in msgspec.structs.fields(SamplingOptions)}
    generation = {field.name for field in msgspec.structs.fields(GenerateOptions)}
    assert sampling == {*names_of(Use.SAMPLING), "seed", "logit_bias"}
    assert {*names_of(Use.SAMPLING, Use.GENERATION)} <= generation
    for name in names_of(Use.SAMPLING, Use.GENERATION):
        assert getattr(GenerateOptions(), name) == PARAMETERS[name].default


@pytest.mark.parametrize("body", [ChatRequest, CompletionRequest])
def test_openai_bodies_have_a_field_for_each_parameter(
    body: type[ChatRequest | CompletionRequest],
) -> None:
    names = [row.openai for row in PARAMETERS.values() if row.openai]
    assert "min_p" in names
    assert set(names) <= {field.name for field in msgspec.structs.fields(body)}
    request = msgspec.convert({"model": "m", "min_p": 0.25, "num_ctx": 8, "seed": -3}, body)
    assert parameters_of(request, {}) == {"min_p": 0.25, "num_ctx": 8, "seed": -3}


def test_request_values_override_the_models_and_both_the_defaults(
    profile: ModelDefaults,
) -> None:
    own = replace(profile, parameters={"top_k": 3, "temperature": 0.5})
    _, options = request_options(own, {"top_k": 4, "min_p": None}, {"seed": 5}, {"top_p": 1.0})
    assert options == GenerateOptions(top_k=4, temperature=0.5, seed=5, top_p=1.0)


def test_special_numbers_have_the_documented_meaning() -> None:
    given = {"num_predict": -2, "seed": -9, "num_gpu": -7, "num_batch": 0, "num_thread": 0}
    assert engine_values(given, *Use) == {
        "max_tokens": None, "seed": None, "gpu_layers": -1, "batch": None, "threads": None,
    }  # fmt: skip


def test_parameter_names_are_unique() -> None:
    assert len(BY_OLLAMA) == len(PARAMETERS)


def test_the_requests_have_a_field_for_each_parameter() -> None:
    assert FIELDS.read_text(encoding="utf-8") == fields()
    assert OPTIONS.read_text(encoding="utf-8") == options()


def test_the_docs_have_the_current_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.partition(BEGIN)[2].partition(END)[0].strip() == table().strip()
