"""The table of keywords in the documentation is the one that the code has."""

from __future__ import annotations

import re
from pathlib import Path

from tampu.sampling.grammar import Grammar
from tampu.sampling.schema_keywords import KEYWORDS

API = (Path(__file__).parents[2] / "docs/api.md").read_text()
SECTION = API.partition("## JSON schemas")[2].partition("## More")[0]


def test_each_keyword_has_a_row() -> None:
    rows = [line.split("|")[1] for line in SECTION.splitlines() if line.startswith("| `")]
    named = set(re.findall(r"`([^`]+)`", " ".join(rows)))
    assert KEYWORDS.keys() <= named


def test_the_warning_is_the_one_that_is_shown() -> None:
    schema = {"properties": {"tags": {"uniqueItems": True}}}
    [line] = Grammar.schema(schema).ignored
    assert f"format: {line}" in SECTION
