"""`tampu show`: the details of a model; no weights are loaded."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from tampu.cli.arguments import ModelOrFile
from tampu.cli.table import columns
from tampu.errors import RequestError
from tampu.settings.parsers import existing_path
from tampu.settings.settings import Settings
from tampu.store.library import Library
from tampu.text import valid_text

if TYPE_CHECKING:
    from pathlib import Path

    from tampu.store.model_info import ModelInfo
    from tampu.store.modelfile import Modelfile

logger = logging.getLogger(__name__)

_MAX_LINES = 2
_WIDTH = 76


def show_command(
    model: ModelOrFile,
    modelfile: Annotated[
        bool, typer.Option("--modelfile", help="Show only the Modelfile.")
    ] = False,
    parameters: Annotated[
        bool, typer.Option("--parameters", help="Show only the parameters.")
    ] = False,
    template: Annotated[
        bool, typer.Option("--template", help="Show only the prompt template.")
    ] = False,
    system: Annotated[bool, typer.Option("--system", help="Show only the system message.")] = False,
    licenses: Annotated[bool, typer.Option("--license", help="Show only the licenses.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also show all metadata and tensors.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, with all metadata.")] = False,
) -> None:
    """Show the details of a model, or one of them."""
    from tampu.chat.renderers import remarks
    from tampu.cli.show_sections import details, part_of
    from tampu.store.catalog import Catalog, resolve
    from tampu.store.model_info import chats_refused, read_model_info
    from tampu.store.modelfile import Modelfile, modelfile_of

    flags = {
        "modelfile": modelfile,
        "parameters": parameters,
        "template": template,
        "system": system,
        "license": licenses,
        "json": json,
    }
    asked = [name for name, is_set in flags.items() if is_set]
    if len(asked) > 1:
        raise RequestError(f"--{asked[0]} and --{asked[1]}: only one of them at a time")
    settings = Settings.from_environment()
    path = resolve(model, settings)
    is_path = existing_path(model) is not None
    entry = None if is_path else Catalog(library=Library.from_settings(settings)).describe(model)
    info = entry.info if entry else read_model_info(path)
    if asked and asked[0] != "json":
        print(part_of(asked[0], info, entry.model if entry else None))
        return
    own = modelfile_of(entry.model) if entry else Modelfile()
    for remark in remarks(own.template or "", own.renderer or "", info.metadata):
        logger.warning("%s: %s", model, remark)
    if entry and entry.model.projector_problem:
        logger.warning("%s", entry.model.projector_problem)
    if info.template_problem:
        logger.warning("%s: %s", model, chats_refused(info.template_problem))
    if json:
        print(as_json(info, own))
        return
    projectors = entry.model.projector_paths if entry else ()
    print(as_text(info, own, projector=next(iter(projectors), None)))
    if verbose:
        print(details(info))


def as_text(info: ModelInfo, own: Modelfile, projector: Path | None = None) -> str:
    """Return the details of a model in the layout of `ollama show`."""
    from tampu.cli.show_sections import in_sections, projector_rows
    from tampu.engine.load_options import AUTO, LLAMACPP, choose_engine
    from tampu.store.modelfile import parameter_texts

    rows = {
        "architecture": info.architecture,
        "parameters": info.parameter_size,
        "context length": str(info.context),
        "embedding length": str(info.embedding_length_out),
        "quantization": info.quantization,
        **({"requires": own.requires} if own.requires else {}),
        **({"tensors": str(info.tensors)} if info.tensors else {}),
        "engine": choose_engine(str(own.parameters.get("engine", AUTO)), info.loaded_as),
    }
    if rows["engine"] == LLAMACPP and find_spec("xllamacpp") is None:
        rows["engine"] += " (not installed: pip install 'tampu[llamacpp]')"
    sections = {
        "Model": columns(rows.items()),
        "Capabilities": list(info.capabilities),
        "Projector": columns(projector_rows(projector)) if projector else [],
        "Template": _first_lines(info.template),
        "Parameters": parameter_texts(own.parameters),
        "System": _first_lines(own.system or ""),
        "License": _first_lines("\n".join(own.licenses) or info.license),
    }
    return in_sections(sections)


def as_json(info: ModelInfo, own: Modelfile) -> str:
    """Return the details of a model as JSON; long arrays are null."""
    import msgspec

    from tampu.store.model_info import plain_metadata

    described = {
        "path": valid_text(str(info.path)),
        "size_bytes": info.size_bytes,
        "architecture": info.architecture,
        "parameters": info.parameters,
        "quantization": info.quantization,
        "context": info.context,
        "embedding_length": info.embedding_length,
        "embedding_length_out": info.embedding_length_out,
        "capabilities": info.capabilities,
        "tensors": info.tensors,
        "license": "\n".join(own.licenses) or info.license,
        "template": info.template,
        "template_problem": info.template_problem,
        "system": own.system or "",
        "options": own.parameters,
        "messages": own.messages,
        "metadata": plain_metadata(info.metadata, max_items=5),
    }
    return msgspec.json.format(msgspec.json.encode(described), indent=2).decode()


def _first_lines(text: str) -> list[str]:
    """Return the first lines of a text, followed by dots if there are more."""
    printable = "".join(c if c.isprintable() else "\n" if c == "\n" else " " for c in text)
    lines = [" ".join(line.split()) for line in printable.splitlines() if line.strip()]
    shown = [line if len(line) <= _WIDTH else line[: _WIDTH - 3] + "..." for line in lines]
    return shown[:_MAX_LINES] + (["..."] if len(shown) > _MAX_LINES else [])
