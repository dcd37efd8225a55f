"""What the models' chat templates can show, found out once for each template."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import closing

from tampu.chat.sandboxed_template import SandboxedTemplate
from tampu.chat.template import KEY, ChatTemplate
from tampu.chat.template_caps import template_caps
from tampu.chat.template_loader import read_template
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

        Neither the model nor its vocabulary is loaded for it.

        Raises:
            ModelFileError: if the template is not valid.
        """
        if not info.template:
            return template_caps(None)
        key = (info.template, info.metadata.string(f"{KEY}.tool_use", default=""))
        found = self._found.get(key)
        if found is None:
            found = await asyncio.to_thread(_caps_of, info)
            if len(self._found) >= _REMEMBERED:
                self._found.clear()
            self._found[key] = found
        return found


def _caps_of(info: ModelInfo) -> Caps:
    is_own = info.template == info.metadata.string(KEY, default="")
    template = ChatTemplate.from_metadata(info.metadata) if is_own else None
    sandboxed = SandboxedTemplate(template or read_template(info.template), ForkServerClient())
    with closing(sandboxed):
        return template_caps(sandboxed)
