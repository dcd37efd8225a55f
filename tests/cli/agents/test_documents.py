"""Settings files of other programs: one key changes, everything else stays."""

from __future__ import annotations

import json
import tomllib

import pytest

from tampu.cli.agents.documents import (
    MISSING,
    Change,
    Document,
    Item,
    JSONDocument,
    TOMLDocument,
)
from tampu.errors import SettingsError

TOML = """# my settings
model = "old"  # the best
[profiles.fast]
model = "small"

[model_providers.other]
base_url = "http://elsewhere"
"""
PROVIDER = Change(("model_providers", "tampu"), {"name": "tampu", "base_url": "http://here"})


def changed(kind: type[Document], text: str, *changes: Change) -> str:
    document = kind(text, "file")
    document.apply(changes)
    return document.text


def test_json_keeps_the_order_of_keys_and_its_indentation() -> None:
    text = '{\n    "b": 1,\n    "a": {"ü": 2}\n}\n'
    after = changed(JSONDocument, text, Change(("a", "x"), True))
    assert list(json.loads(after)) == ["b", "a"]
    assert '\n    "b"' in after
    assert "ü" in after
    assert after.endswith("}\n")
    assert changed(JSONDocument, "", Change(("a",), 1)) == '{\n  "a": 1\n}\n'


def test_an_object_of_a_list_is_replaced_by_its_key_and_no_other_one() -> None:
    text = '{"models": [{"id": "x", "old": 1}, {"id": "y"}]}'
    path = ("models", Item("id", "x"))
    after = changed(JSONDocument, text, Change(path, {"id": "x", "new": 2}))
    assert json.loads(after) == {"models": [{"id": "y"}, {"id": "x", "new": 2}]}
    assert JSONDocument(after, "file").get(path) == {"id": "x", "new": 2}


def test_what_becomes_empty_goes() -> None:
    both = '{"a": {"b": {"c": 1}}, "d": [{"id": "x"}]}'
    removed = (Change(("a", "b", "c")), Change(("d", Item("id", "x"))), Change(("none", "e")))
    assert json.loads(changed(JSONDocument, both, *removed)) == {}
    assert JSONDocument("{}", "file").get(("a", "b")) is MISSING


def test_toml_keeps_every_line_that_is_not_changed() -> None:
    after = changed(TOMLDocument, TOML, Change(("model",), "new"), PROVIDER)
    assert after.replace('model = "new"', 'model = "old"  # the best', 1).startswith(TOML)
    read = tomllib.loads(after)
    assert (read["model"], read["profiles"]) == ("new", {"fast": {"model": "small"}})
    assert read["model_providers"]["tampu"]["base_url"] == "http://here"
    again = changed(TOMLDocument, after, Change(("model",), "newer"), PROVIDER)
    assert tomllib.loads(again) == read | {"model": "newer"}


@pytest.mark.parametrize("before", ["", "# nothing yet", TOML])
def test_a_table_of_toml_goes_as_it_came(before: str) -> None:
    after = changed(TOMLDocument, before, PROVIDER)
    removed = changed(TOMLDocument, after, Change(PROVIDER.path))
    assert removed.strip() == before.strip()


@pytest.mark.parametrize(
    ("kind", "text", "change", "told"),
    [
        (JSONDocument, '{"a": 1, // b\n}', Change(("a",), 2), "JSON without comments"),
        (JSONDocument, "[1]", Change(("a",), 2), "not an object"),
        (JSONDocument, '{"a": 1}', Change(("a", "b"), 2), "'a' is not"),
        (TOMLDocument, "a = ", Change(("a",), 2), "not valid TOML"),
        (TOMLDocument, "model_providers = {x = {}}\n", PROVIDER, "file: "),
        (TOMLDocument, 'model = """\n[x]\n"""\n', Change(("model",), "a"), "file: "),
    ],
)
def test_what_cannot_be_changed_alone_is_refused(
    kind: type[Document], text: str, change: Change, told: str
) -> None:
    with pytest.raises(SettingsError, match=r"^file: ") as error:
        changed(kind, text, change)
    assert told in str(error.value)
