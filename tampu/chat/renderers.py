"""RENDERER of a Modelfile: which template makes the prompts.

Ollama makes the prompts of newer models with code, which RENDERER names; the template of such a
model is only `{{ .Prompt }}`. The code follows the publisher's Jinja template, which the weights'
file usually has: that one is used here. Source of the names: Ollama's model/renderers/renderer.go.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tampu.chat.builtin_templates import CHATML, RENDERERS
from tampu.chat.template import KEY

if TYPE_CHECKING:
    from tampu.ml.metadata import Metadata

_BARE = re.compile(r"\s*(\{\{-?\s*\.Prompt\s*-?\}\}\s*)?")


def own_template(stated: str, renderer: str, metadata: Metadata) -> str:
    """Return the template to use instead of the one in the weights' file; "" for that one.

    Args:
        stated: the Modelfile's template; "" without one.
        renderer: the Modelfile's RENDERER; "" without one.
        metadata: of the weights' file.
    """
    if not renderer or not _is_bare(stated):
        return stated
    if _has_template(metadata):
        return ""
    return RENDERERS.get(renderer, stated)


def remarks(stated: str, renderer: str, metadata: Metadata) -> Iterator[str]:
    """Yield notes on a renderer for the user; the arguments are those of `own_template`."""
    if not renderer:
        return
    if not _is_bare(stated):
        yield f"RENDERER {renderer} is kept, but prompts are made by the TEMPLATE"
    elif _has_template(metadata):
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


def _has_template(metadata: Metadata) -> bool:
    """Return whether the weights' file has a template; it must be a string."""
    return isinstance(metadata.get(KEY), str) and metadata[KEY] != ""


def _is_bare(template: str) -> bool:
    """Return whether a template only passes on the prompt."""
    return _BARE.fullmatch(template) is not None
