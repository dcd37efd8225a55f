"""The examples of decisions in our documentation, as they are but for the model's name."""

from __future__ import annotations

import ast
import re
from contextlib import closing
from pathlib import Path

import ollama
import openai
import pytest
from support.serving import Server

pytestmark = [pytest.mark.client, pytest.mark.server]


def test_the_decisions_of_our_documentation(native: Server) -> None:
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    section = page.split("\n## Decisions\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```python\n(.*?)^```$", section, re.M | re.S)
    text = "\n".join(blocks).replace('"qwen3"', '"tiny"').replace("ollama.Client()", "own")
    own = ollama.Client(native.url)
    openais = openai.OpenAI(base_url=f"{native.url}/v1", api_key="none", max_retries=0)
    answers = []
    with openais as client, closing(own._client):
        for call in ast.parse(text).body:
            assert isinstance(call, ast.Expr)
            names = {"client": client, "own": own}
            answers.append(eval(ast.unparse(call), names))
    first, second, third = answers
    assert [each.type for each in first.answers] == ["predicate", "choice"]
    labels = [each.label for each in second.answers[0].probabilities]
    assert labels == ["calm", "annoyed", "furious"]
    assert {*third.answers} == {"refund", "team", "anger"}
