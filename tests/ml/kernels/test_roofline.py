"""The table of rates: what is in it, and that it is measured at all."""

from collections.abc import Callable
from typing import Any

import pytest
from support.kernels import WITH_TILES, levels

from tampu.errors import RequestError
from tampu.ml import Backend, GGMLType
from tampu.ml.kernels import roofline

PEAKS = roofline.Peaks({"int8": 1e12, "int16": 0.5e12, "f32": 0.2e12, "bf16": 0.4e12}, 40e9)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"_ROWS": 64, "_INPUTS": 256, "_EXPERT_ROWS": 16, "_STREAMED": 2**18, "_HISTORY": 256}
    for name, value in sizes.items():
        monkeypatch.setattr(roofline, name, value)
    monkeypatch.setattr(roofline, "_PEAK_ROUNDS", 1000)


def test_every_operation_and_type_is_measured_at_each_number_of_tokens(
    level_backends: Callable[..., Any],
) -> None:
    types = [GGMLType.Q4_K, GGMLType.F16]
    rates = list(roofline.measure(level_backends(None), PEAKS, types, (1, 64)))
    assert [(rate.operation, rate.type, rate.tokens, rate.kind) for rate in rates] == [
        (operation, *rest)
        for operation in ("product", "experts")
        for rest in [
            ("Q4_K", 1, "memory"),
            ("Q4_K", 64, "int8"),
            ("F16", 1, "memory"),
            ("F16", 64, "int16"),
        ]
    ] + [
        ("attention", kind, tokens, limit)
        for kind, reading in (("F16", "memory"), ("Q8_0", "f32"))
        for tokens, limit in ((1, reading), (64, "f32"))
    ]
    assert all(rate.rate > 0 and rate.limit > 0 for rate in rates)


@pytest.mark.parametrize("level", levels())
def test_the_peaks_are_those_of_the_level(level_backends: Callable[..., Any], level: str) -> None:
    backend = level_backends(level)
    peaks = roofline.measure_peaks(roofline.kernels_of(backend), 2)
    assert min(peaks.operations["int8"], peaks.operations["f32"], peaks.bandwidth) > 0
    has_bf16 = level in (*WITH_TILES, "avx512bf16")
    has_int16 = level.startswith("avx512") or level == "amx"
    assert ("bf16" in peaks.operations) is has_bf16
    assert ("int16" in peaks.operations) is has_int16
    assert ("amx int8" in peaks.operations) is (level in WITH_TILES)
    assert (peaks.kind_for(GGMLType.BF16, 1) == "bf16") is has_bf16
    assert (peaks.kind_for(GGMLType.F16, 1) == "int16") is has_int16
    assert (peaks.kind_for(GGMLType.Q4_0, 512) == "bf16") is (level in WITH_TILES)


def test_the_limit_is_the_first_peak_that_an_operation_reaches() -> None:
    few = ("product", "Q4_0", 8)
    rate = roofline.rate_of(few, 10**9, 8e9, "int8", 0.05, PEAKS)
    assert (rate.kind, rate.limit, rate.fraction) == ("memory", 40e9, 0.5)
    many = ("product", "Q4_0", 32)
    rate = roofline.rate_of(many, 10**9, 32e9, "int8", 0.064, PEAKS)
    assert (rate.kind, rate.limit, rate.fraction) == ("int8", 1e12, 0.5)
    cached = ("product", "BF16", 512)
    assert roofline.rate_of(cached, 0, 8e9, "bf16", 0.04, PEAKS).kind == "bf16"


def test_the_table_has_a_line_for_each_rate() -> None:
    rates = [
        roofline.Rate("product", "Q4_0", 1, 30e9, 40e9, "memory"),
        roofline.Rate("product", "Q4_0", 512, 0.5e12, 1e12, "int8"),
    ]
    _, first, second = roofline.as_table(rates).splitlines()
    assert " ".join(first.split()) == "product Q4_0 1 30.00 GB/s 40.00 GB/s 75 % memory"
    assert " ".join(second.split()) == "product Q4_0 512 0.50 TOP/s 1.00 TOP/s 50 % int8"


def test_the_machine_is_described_with_all_its_peaks() -> None:
    line = roofline.describe(PEAKS, "avx512bf16", 2)
    assert "avx512bf16, 2 threads" in line
    assert "40.0 GB/s" in line
    assert "1.00 of int8, 0.50 of int16, 0.40 of bf16, 0.20 of f32" in line


def test_without_kernels_nothing_is_measured(plain_backend: Backend) -> None:
    with pytest.raises(RequestError, match="no kernels to measure"):
        list(roofline.measure(plain_backend, PEAKS))
