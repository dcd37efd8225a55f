"""The table of rates: what is in it, and that it is measured at all."""

import pytest

from tampu.errors import RequestError
from tampu.ml import GGMLType
from tampu.ml.kernels import roofline


@pytest.fixture(autouse=True)
def small(monkeypatch):
    for name, value in {"_ROWS": 64, "_INPUTS": 256, "_STREAMED": 2**20, "_HISTORY": 256}.items():
        monkeypatch.setattr(roofline, name, value)
    monkeypatch.setattr(roofline, "_PEAK_ROUNDS", 1000)


def test_every_type_is_measured_at_each_number_of_tokens(level_backends, monkeypatch):
    monkeypatch.setattr(roofline, "_STREAMED", 2**18)
    types = [GGMLType.Q4_K, GGMLType.F16]
    rates = list(roofline.measure(level_backends(None), types, (1, 2)))
    assert [(rate.operation, rate.type, rate.tokens, rate.kind) for rate in rates] == [
        ("product", "Q4_K", 1, "memory"),
        ("product", "Q4_K", 2, "integer"),
        ("product", "F16", 1, "memory"),
        ("product", "F16", 2, "float"),
        ("attention", "F16", 1, "memory"),
        ("attention", "F16", 2, "float"),
    ]
    assert all(rate.rate > 0 and rate.limit > 0 for rate in rates)


def test_the_table_has_a_line_for_each_rate():
    rates = [
        roofline.Rate("product", "Q4_0", 1, 30e9, 40e9, "memory"),
        roofline.Rate("product", "Q4_0", 512, 0.5e12, 1e12, "integer"),
    ]
    _, first, second = roofline.as_table(rates).splitlines()
    assert first.split() == ["product", "Q4_0", "1", "30.00", "GB/s", "40.00", "GB/s", "75", "%"]
    assert second.split() == ["product", "Q4_0", "512", "0.50", "TOP/s", "1.00", "TOP/s", "50", "%"]


def test_without_kernels_there_is_nothing_to_measure(plain_backend):
    with pytest.raises(RequestError, match="no kernels to measure"):
        list(roofline.measure(plain_backend))
