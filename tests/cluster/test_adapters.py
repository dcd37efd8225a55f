"""The list of an application's adapters: what stays when another configuration is deployed."""

from __future__ import annotations

import pytest

from tampu.cluster.adapters import AdapterList, Declared, DeployedAdapter

LOADED = DeployedAdapter(name="late", model="a", file="late.gguf", number=7)


def deployed(declared: Declared, *loaded: DeployedAdapter) -> AdapterList:
    found = AdapterList().with_declared(declared)
    return found.changed(*found.adapters, *loaded)


def files(found: AdapterList) -> dict[str, str]:
    return {each.name: each.file for each in found.adapters}


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        pytest.param(
            {"a": {"x": "x.gguf"}, "b": {}}, {"x": "x.gguf", "late": "late.gguf"}, id="the same"
        ),
        pytest.param(
            {"a": {"x": "new.gguf"}}, {"late": "late.gguf", "x": "new.gguf"}, id="another file"
        ),
        pytest.param({"a": {}}, {"late": "late.gguf"}, id="no longer named"),
        pytest.param(
            {"a": {"x": "x.gguf", "late": "own.gguf"}},
            {"x": "x.gguf", "late": "own.gguf"},
            id="the name of a loaded one",
        ),
        pytest.param({"b": {"y": "y.gguf"}}, {"y": "y.gguf"}, id="another model"),
    ],
)
def test_what_was_loaded_stays_with_its_model(declared: Declared, expected: dict[str, str]) -> None:
    before = deployed({"a": {"x": "x.gguf"}, "b": {}}, LOADED)
    after = before.with_declared(declared)
    assert files(after) == expected
    assert after.version == before.version + 1
    assert after.declared == declared


def test_what_was_unloaded_stays_so_while_the_configuration_is_the_same() -> None:
    declared = {"a": {"x": "x.gguf", "y": "y.gguf"}}
    before = deployed(declared)
    unloaded = before.changed(*(each for each in before.adapters if each.name != "x"))
    assert files(unloaded.with_declared(declared)) == {"y": "y.gguf"}
    assert files(unloaded.with_declared({"a": {"x": "new.gguf"}})) == {"x": "new.gguf"}


def test_one_that_was_loaded_in_place_stays_when_it_is_no_longer_named() -> None:
    before = deployed({"a": {"x": "x.gguf"}})
    in_place = DeployedAdapter(name="x", model="a", file="other.gguf", number=3)
    assert files(before.changed(in_place).with_declared({"a": {}})) == {"x": "other.gguf"}
