"""Ollama's native API: the structs of requests that create, copy, delete and transfer models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tampu.errors import RequestError
from tampu.sampling.parameters import check_parameters
from tampu.server.ollama.output import LineWriter, to_line
from tampu.store.create import CreateSpec
from tampu.store.model import StoredMessage
from tampu.store.modelfile import Modelfile
from tampu.store.names import Digest, ModelName

_REFUSED = ("modelfile", "path", "info", "remote_host", "draft_quantize")


class NamedRequest(msgspec.Struct, kw_only=True):
    """A request about one model; `name` is the older spelling of `model`."""

    model: str | None = None
    name: str | None = None

    def parsed(self) -> ModelName:
        """Return the model's name.

        Raises:
            RequestError: if it is missing.
            ModelNameError: if it is invalid.
        """
        text = self.model or self.name
        if not text:
            raise RequestError("model is required")
        return ModelName.parse(text)


class TransferRequest(NamedRequest, kw_only=True):
    """`POST /api/pull` and `POST /api/push`; user names and passwords are ignored."""

    insecure: bool | None = None
    stream: bool | None = None
    username: str | None = None
    password: str | None = None


class CopyRequest(msgspec.Struct, kw_only=True):
    """`POST /api/copy`."""

    source: str
    destination: str


class InitialMessage(msgspec.Struct, kw_only=True):
    """A message that the model's conversations start with."""

    role: str
    content: str = ""


class CreateRequest(NamedRequest, kw_only=True):
    """`POST /api/create`: a Modelfile in JSON; files are blobs under the names they had."""

    source: str | None = msgspec.field(default=None, name="from")
    files: dict[str, str] | None = None
    adapters: dict[str, str] | None = None
    draft_files: dict[str, str] | None = None
    template: str | None = None
    license: str | list[str] | None = None
    system: str | None = None
    parameters: dict[str, Any] | None = None
    messages: list[InitialMessage] | None = None
    quantize: str | None = None
    quantization: str | None = None
    renderer: str | None = None
    parser: str | None = None
    requires: str | None = None
    stream: bool | None = None
    # Unsupported; a request with one of them is refused.
    modelfile: Any = None
    path: Any = None
    info: Any = None
    remote_host: Any = None
    draft_quantize: Any = None

    def spec(self) -> CreateSpec:
        """Return the spec of the model.

        Raises:
            RequestError: naming an unsupported field.
            ModelNameError: for an invalid digest.
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
            messages=tuple(StoredMessage(said.role, said.content) for said in self.messages or ()),
            renderer=self.renderer,
            parser=self.parser,
            requires=self.requires,
        )
        return CreateSpec(
            modelfile=modelfile,
            files=_digests(self.files),
            adapter_files=_digests(self.adapters),
            draft_files=_digests(self.draft_files),
            quantize=self.quantize or self.quantization,
        )


class ProgressWriter(LineWriter):
    """Progress as lines of JSON; without streaming the last one alone."""

    def write(self, event: msgspec.Struct) -> bytes:
        """Return the line of a step."""
        return to_line(event)

    def whole(self, events: Sequence[msgspec.Struct]) -> msgspec.Struct:
        """Return the last step."""
        return events[-1]


def _digests(files: dict[str, str] | None) -> dict[str, Digest]:
    return {name: Digest.parse(digest) for name, digest in (files or {}).items()}
