"""Packages may bring the conversion of their own checkpoints, and what they bring is looked at."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from tampu import convert
from tampu.convert.families.qwen import QWEN3
from tampu.errors import UnsupportedModelError


def plug_in(patch: pytest.MonkeyPatch, name: str, value: str) -> None:
    point = EntryPoint(name, value, "tampu.converters")
    patch.setattr(convert, "plug_ins", lambda group: [point] * (group == point.group))


def test_a_plug_in_adds_a_family(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "NoneSuchForCausalLM" not in convert.known_families()
    plug_in(monkeypatch, "NoneSuchForCausalLM", "tampu.convert.families.qwen:QWEN3")
    assert convert.known_families() == convert.FAMILIES | {"NoneSuchForCausalLM": QWEN3}


def test_a_plug_in_overrides_a_built_in_family(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(monkeypatch, "LlamaForCausalLM", "tampu.convert.families.qwen:QWEN3")
    assert convert.known_families()["LlamaForCausalLM"] is QWEN3


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("tampu_absent:OLMO", "cannot be loaded: No module named 'tampu_absent'"),
        ("tampu.convert.families.qwen:OLMO", "cannot be loaded: .*OLMO"),
        ("tampu.convert:TYPES", r"is not a tampu\.convert\.family\.Family"),
    ],
)
def test_an_invalid_plug_in_is_an_error(
    monkeypatch: pytest.MonkeyPatch, value: str, reason: str
) -> None:
    plug_in(monkeypatch, "NoneSuchForCausalLM", value)
    with pytest.raises(
        UnsupportedModelError, match=f"converter .* for NoneSuchForCausalLM.*{reason}"
    ):
        convert.known_families()
