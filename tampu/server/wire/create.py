"""Ollama's native API: the struct of `POST /api/create`, and what the model is to be made of."""

from __future__ import annotations

from typing import Any

import msgspec

from tampu.errors import RequestError
from tampu.sampling.parameters import check_parameters
from tampu.server.wire.manage import NamedRequest
from tampu.store.create import Recipe
from tampu.store.modelfile import Message, Modelfile
from tampu.store.names import Digest

_REFUSED = ("modelfile", "path", "info", "remote_host", "draft_files", "draft_quantize")


class SaidMessage(msgspec.Struct, kw_only=True):
    """A message that a model is to begin with."""

    role: str
    content: str = ""


class CreateRequest(NamedRequest, kw_only=True):
    """`POST /api/create`: a Modelfile in JSON; files are blobs under the names they had."""

    source: str | None = msgspec.field(default=None, name="from")
    files: dict[str, str] | None = None
    adapters: dict[str, str] | None = None
    template: str | None = None
    license: str | list[str] | None = None
    system: str | None = None
    parameters: dict[str, Any] | None = None
    messages: list[SaidMessage] | None = None
    quantize: str | None = None
    quantization: str | None = None
    renderer: str | None = None
    parser: str | None = None
    requires: str | None = None
    stream: bool | None = None
    # Not supported, and never ignored.
    modelfile: Any = None
    path: Any = None
    info: Any = None
    remote_host: Any = None
    draft_files: Any = None
    draft_quantize: Any = None

    def recipe(self) -> Recipe:
        """Return what the model is to be made of.

        Raises:
            RequestError: naming the field that cannot be had.
            ModelNameError: for a digest that is none.
        """
        for name in _REFUSED:
            if getattr(self, name):
                raise RequestError(f"{name} is not supported; give from or files")
        licenses = [self.license] if isinstance(self.license, str) else self.license or []
        modelfile = Modelfile(
            sources=(self.source,) if self.source else (),
            parameters=check_parameters(self.parameters or {}),
            template=self.template,
            system=self.system,
            licenses=tuple(licenses),
            messages=tuple(Message(said.role, said.content) for said in self.messages or ()),
            renderer=self.renderer,
            parser=self.parser,
            requires=self.requires,
        )
        return Recipe(
            modelfile=modelfile,
            files=_digests(self.files),
            adapter_files=_digests(self.adapters),
            quantize=self.quantize or self.quantization,
        )


def _digests(files: dict[str, str] | None) -> dict[str, Digest]:
    return {name: Digest.parse(digest) for name, digest in (files or {}).items()}
