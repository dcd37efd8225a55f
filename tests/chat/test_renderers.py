"""What a renderer's name means: whose template makes the prompts."""

from __future__ import annotations

import pytest

from tampu.chat.builtin_templates import RENDERERS
from tampu.chat.renderers import own_template, remarks
from tampu.chat.segments import text_of
from tampu.chat.template_loader import read_template
from tampu.ml.metadata import Metadata

BARE = "{{ .Prompt }}"
JINJA = "{% for message in messages %}{{ message.content }}{% endfor %}"
WITH = Metadata({"tokenizer.chat_template": JINJA})
WITHOUT = Metadata({})


@pytest.mark.parametrize("stated", ["", " ", BARE, "{{.Prompt}}", "{{- .Prompt -}}\n"])
@pytest.mark.parametrize("renderer", ["qwen3-coder", "glm-4.7", "of-tomorrow"])
def test_a_renderer_selects_the_template_in_the_weights_file(stated: str, renderer: str) -> None:
    assert own_template(stated, renderer, WITH) == ""


@pytest.mark.parametrize("metadata", [WITH, WITHOUT])
@pytest.mark.parametrize("stated", ["", BARE, "<u>{{ .Prompt }}</u>", JINJA])
def test_without_a_renderer_the_stated_template_is_used(stated: str, metadata: Metadata) -> None:
    assert own_template(stated, "", metadata) == stated
    assert not list(remarks(stated, "", metadata))


@pytest.mark.parametrize("metadata", [WITH, WITHOUT])
@pytest.mark.parametrize("stated", ["<u>{{ .Prompt }}</u>", "{{ .Prompt }}{{ .Response }}", JINJA])
def test_a_nontrivial_template_takes_precedence_over_a_renderer(
    stated: str, metadata: Metadata
) -> None:
    assert own_template(stated, "qwen3-coder", metadata) == stated
    assert "made by the TEMPLATE" in next(remarks(stated, "qwen3-coder", metadata))


@pytest.mark.parametrize("renderer", RENDERERS)
def test_without_a_template_the_format_of_the_family_is_used(renderer: str) -> None:
    assert own_template(BARE, renderer, WITHOUT) == RENDERERS[renderer]
    prompt = read_template(RENDERERS[renderer]).render(
        [{"role": "user", "content": "Hi <|im_end|>"}], bos_token="", eos_token=""
    )
    assert "Hi <|im_end|>" in text_of(prompt)
    assert ("Hi <|im_end|>", False) in [(piece[0], piece[1]) for piece in prompt]


@pytest.mark.parametrize(
    ("renderer", "metadata", "said"),
    [
        ("qwen3-coder", WITH, []),
        ("glm-4.7", WITH, []),
        ("of-tomorrow", WITH, ["RENDERER of-tomorrow is not known: prompts are made by the temp"]),
        ("qwen3-coder", WITHOUT, ["RENDERER qwen3-coder: the weights' file has no template"]),
        ("glm-4.7", WITHOUT, ["RENDERER glm-4.7: the weights' file has no template, so prompts"]),
        ("of-tomorrow", WITHOUT, ["RENDERER of-tomorrow is kept, but neither it nor the weights"]),
    ],
)
def test_warnings_for_the_user_are_returned(
    renderer: str, metadata: Metadata, said: list[str]
) -> None:
    found = list(remarks(BARE, renderer, metadata))
    assert len(found) == len(said)
    assert all(map(str.startswith, found, said))


def test_a_plain_form_without_tools_is_reported() -> None:
    [plain] = remarks(BARE, "olmo3", WITHOUT)
    [whole] = remarks(BARE, "qwen3.5", WITHOUT)
    assert "plain form of its family, without tools" in plain
    assert whole.endswith("prompts have the form of its family")


def test_without_template_and_format_the_text_is_rendered_bare() -> None:
    assert own_template(BARE, "of-tomorrow", WITHOUT) == BARE
