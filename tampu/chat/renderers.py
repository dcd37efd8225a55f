"""What RENDERER of a Modelfile means here: whose template makes the prompts.

Ollama makes the prompts of newer models by code that a renderer's name stands for; the template
that such a model comes with is only `{{ .Prompt }}`. The code follows the template that the model's
publisher wrote, in Jinja, which the weights' file usually holds: that one is used here. Source of
the names: Ollama's model/renderers/renderer.go.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tampu.ml.metadata import Metadata

_BARE = re.compile(r"\s*(\{\{-?\s*\.Prompt\s*-?\}\}\s*)?")
_KEY = "tokenizer.chat_template"
_CHATML = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
# The form of a family's prompts, for files without a template; "": it has no such simple one.
RENDERERS: dict[str, str] = {
    "cogito": "",
    "deepseek3.1": "",
    "functiongemma": "",
    "gemma4": "",
    "glm-4.7": "",
    "lfm2": _CHATML,
    "lfm2-thinking": _CHATML,
    "nemotron-3-nano": _CHATML,
    "olmo3": _CHATML,
    "olmo3-32b-think": _CHATML,
    "olmo3-think": _CHATML,
    "olmo3.1": _CHATML,
    "qwen3-coder": _CHATML,
    "qwen3-vl-instruct": _CHATML,
    "qwen3-vl-thinking": _CHATML,
    "qwen3.5": _CHATML,
}


def own_template(stated: str, renderer: str, metadata: Metadata) -> str:
    """Return the text of the template that goes before that of the weights' file; "" if none does.

    Args:
        stated: the Modelfile's template; "" without one.
        renderer: the Modelfile's name of what makes prompts; "" without one.
        metadata: of the weights' file.
    """
    if not renderer or not _is_bare(stated):
        return stated
    if metadata.string(_KEY, default=""):
        return ""
    return RENDERERS.get(renderer, "") or stated


def remarks(stated: str, renderer: str, metadata: Metadata) -> Iterator[str]:
    """Yield what a user should know of a renderer; the arguments are those of `own_template`."""
    if not renderer:
        return
    if not _is_bare(stated):
        yield f"RENDERER {renderer} is kept, but prompts are made by the TEMPLATE"
    elif metadata.string(_KEY, default=""):
        if renderer not in RENDERERS:
            known = ", ".join(RENDERERS)
            yield (
                f"RENDERER {renderer} is not known: prompts are made by the template in the "
                f"weights' file; known: {known}"
            )
    elif RENDERERS.get(renderer):
        yield (
            f"RENDERER {renderer}: the weights' file has no template, so prompts have the plain "
            "form of its family, without tools; to have more, give a TEMPLATE"
        )
    else:
        yield (
            f"RENDERER {renderer} is kept, but neither it nor the weights' file has a template "
            "here: prompts are the bare text; give a TEMPLATE"
        )


def _is_bare(template: str) -> bool:
    """Whether a template only passes the prompt on."""
    return _BARE.fullmatch(template) is not None
