"""Detects what chat templates support, once for each template."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import closing

from tampu.chat.sandboxed_template import SandboxedTemplate
from tampu.chat.template import KEY
from tampu.chat.template_caps import template_caps
from tampu.chat.template_loader import model_template, usable
from tampu.sandbox.client import ForkServerClient
from tampu.store.model_info import ModelInfo

_REMEMBERED = 64

Caps = Mapping[str, bool]


class TemplateCaps:
    """Remembers what templates can show."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Caps] = {}

    async def of(self, info: ModelInfo) -> Caps:
        """Return what the template of a model can show, as `template_caps`.

        Neither the model nor its vocabulary is loaded for it. A template that does not compile
        shows nothing.
        """
        if not info.template:
            return template_caps(None)
        key = (info.template, str(info.metadata.get(f"{KEY}.tool_use", "")))
        found = self._found.get(key)
        if found is None:
            found = await asyncio.to_thread(_caps_of, info)
            if len(self._found) >= _REMEMBERED:
                self._found.clear()
            self._found[key] = found
        return found


def _caps_of(info: ModelInfo) -> Caps:
    template = model_template(info.metadata)
    if template is None or template.source != info.template:
        template = usable(info.template)
    sandboxed = SandboxedTemplate(template, ForkServerClient())
    with closing(sandboxed):
        return template_caps(sandboxed)
