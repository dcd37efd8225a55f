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

from tampu.chat.builtin_templates import (
    CHATML,
    COGITO,
    DEEPSEEK,
    FUNCTIONGEMMA,
    GEMMA4,
    GEMMA4_LARGE,
    GLM,
    LFM2,
    NEMOTRON,
    QWEN3_CODER,
    QWEN3_VL,
    QWEN3_VL_THINKING,
    QWEN35,
)

if TYPE_CHECKING:
    from tampu.ml.metadata import Metadata

_BARE = re.compile(r"\s*(\{\{-?\s*\.Prompt\s*-?\}\}\s*)?")
_KEY = "tokenizer.chat_template"
# The form of a family's prompts, for files without a template.
RENDERERS: dict[str, str] = {
    "cogito": COGITO,
    "deepseek3.1": DEEPSEEK,
    "functiongemma": FUNCTIONGEMMA,
    "gemma4": GEMMA4,
    "gemma4-large": GEMMA4_LARGE,
    "gemma4-small": GEMMA4,
    "glm-4.7": GLM,
    "lfm2": LFM2,
    "lfm2-thinking": LFM2,
    "nemotron-3-nano": NEMOTRON,
    "olmo3": CHATML,
    "olmo3-32b-think": CHATML,
    "olmo3-think": CHATML,
    "olmo3.1": CHATML,
    "qwen3-coder": QWEN3_CODER,
    "qwen3-vl-instruct": QWEN3_VL,
    "qwen3-vl-thinking": QWEN3_VL_THINKING,
    "qwen3.5": QWEN35,
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
    return RENDERERS.get(renderer, stated)


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
    elif form := RENDERERS.get(renderer):
        more = ", without tools; to have more, give a TEMPLATE" if form == CHATML else ""
        yield (
            f"RENDERER {renderer}: the weights' file has no template, so prompts have the "
            f"{'plain ' if more else ''}form of its family{more}"
        )
    else:
        yield (
            f"RENDERER {renderer} is kept, but neither it nor the weights' file has a template "
            "here: prompts are the bare text; give a TEMPLATE"
        )


def _is_bare(template: str) -> bool:
    """Whether a template only passes the prompt on."""
    return _BARE.fullmatch(template) is not None
