"""Creates a model from a name, GGUF files, checkpoints and adapters, with a Modelfile's settings.

Blobs are written under a lease, the manifest last: until then the name keeps its old model, and
what a killed process leaves is collected as garbage.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator

import msgspec

from tampu.chat.output import PARSERS
from tampu.chat.renderers import remarks
from tampu.errors import ModelNotFoundError, RequestError, TampuError
from tampu.sampling.parameters import check_parameters
from tampu.store.create_sources import CreateSpec, LayerBuilder, path_of_adapter
from tampu.store.layer_writer import LayerWriter, Report
from tampu.store.library import Library
from tampu.store.local_model import Origin
from tampu.store.manifests import (
    CONFIG_TYPE,
    Descriptor,
    Manifest,
    Media,
    ModelConfig,
    encode_config,
)
from tampu.store.model import StoredModel
from tampu.store.model_info import chats_refused
from tampu.store.modelfile import Modelfile, check_template
from tampu.store.names import ModelName
from tampu.store.registry.progress import Progress

__all__ = ["CreateSpec", "Progress", "check_spec", "copy_model", "create", "creating"]

_ORDER = (
    Media.MODEL, Media.PROJECTOR, Media.ADAPTER, Media.DRAFT, Media.TEMPLATE, Media.SYSTEM,
    Media.PARAMS, Media.MESSAGES, Media.LICENSE,
)  # fmt: skip


def create(
    library: Library, name: ModelName, spec: CreateSpec, report: Report | None = None
) -> StoredModel:
    """Create a model and return it.

    Args:
        library: where names are looked up; the model is written to its store.
        name: of the model; an existing one is replaced at the very end.
        spec: the sources and settings.
        report: called with each step and its progress; an exception from it cancels the creation.

    Raises:
        RequestError: for an invalid parameter, template or spec.
        ModelNotFoundError: if a source does not exist.
        ModelFileError: if a source or the template is damaged.
        UnsupportedModelError: for an unsupported architecture or type.
        StoreError: if it cannot be written; the old model is untouched.
    """
    store = library.store
    if store is None:
        raise RequestError("no model folder is configured: set TAMPU_MODELS")
    report = report or (lambda _: None)
    check_spec(spec)
    with store.lease() as lease:
        writer = LayerWriter(store, lease, report, in_place=spec.in_place)
        builder = LayerBuilder(spec, library, store, lease, writer)
        builder.add_sources()
        builder.add_adapters()
        builder.add_draft()
        _add_texts(builder, writer, spec.modelfile)
        layers = [layer for kind in _ORDER for layer in builder.layers.get(kind, [])]
        config = _config(builder, spec.modelfile)
        head = encode_config(config)
        described = Descriptor(CONFIG_TYPE, store.blobs.put(head, lease), len(head))
        writer.report_existing()
        report(Progress("writing manifest"))
        made = store.write(name, Manifest(config=described, layers=layers))
    for warning in (*spec.modelfile.replaced, *_warnings(made, config, builder)):
        report(Progress(f"warning: {warning}"))
    report(Progress("success"))
    return made


def copy_model(library: Library, source: str, destination: str) -> None:
    """Give a model a second name; a file that is not in the store stays where it is.

    The built-in model is copied: its file goes with the package.

    Raises:
        ModelNotFoundError: if there is no such model.
        TampuError: as `create`; ModelNameError for a source that no model can have as its name.
    """
    name = ModelName.parse(destination)
    try:
        model = library.find(source)
    except ModelNotFoundError:
        ModelName.parse(source)
        raise
    library.check_new(name)
    if library.store and model.stored and model.origin is Origin.STORE:
        library.store.copy(model.stored.name, name)
        return
    spec = CreateSpec(
        modelfile=Modelfile(sources=(source,)), in_place=model.origin is not Origin.BUILT_IN
    )
    create(library, name, spec)


def creating(
    library: Library, name: ModelName, spec: CreateSpec
) -> Generator[Progress, None, None]:
    """Create a model on a thread and yield its steps, with the errors of `create`.

    Closing the iterator cancels the creation.
    """
    library.check_new(name)
    steps: queue.SimpleQueue[Progress | TampuError | None] = queue.SimpleQueue()
    cancelled = threading.Event()

    def report(step: Progress) -> None:
        if cancelled.is_set():
            raise RequestError("the creation was cancelled")
        steps.put(step)

    def work() -> None:
        try:
            create(library, name, spec, report)
            steps.put(None)
        except TampuError as error:
            steps.put(error)
        except BaseException as error:
            steps.put(RequestError(f"the creation failed: {error}"))
            raise

    thread = threading.Thread(target=work, name="tampu-create")
    thread.start()
    try:
        while (step := steps.get()) is not None:
            if isinstance(step, TampuError):
                raise step
            yield step
    finally:
        cancelled.set()
        thread.join()


def _warnings(made: StoredModel, config: ModelConfig, builder: LayerBuilder) -> Iterator[str]:
    yield from remarks(made.template, config.renderer, builder.info.metadata)
    if builder.info.template_problem and not made.template:
        yield chats_refused(builder.info.template_problem)
    if config.parser and config.parser not in PARSERS:
        shown = "".join(c for c in config.parser[:80] if c.isprintable())
        known = ", ".join(PARSERS)
        yield f"unknown PARSER {shown} has no effect, the template decides; known: {known}"


def check_spec(spec: CreateSpec) -> None:
    """Refuse an invalid spec before anything is read.

    Raises:
        RequestError: for no source, and an invalid parameter or template.
        ModelNotFoundError: for an adapter that does not exist.
    """
    if not spec.modelfile.sources and not spec.files:
        raise RequestError("the model has no source: give FROM, or files")
    check_parameters(spec.modelfile.parameters)
    if spec.modelfile.template:
        try:
            check_template(spec.modelfile.template)
        except RequestError as error:
            raise RequestError(f"TEMPLATE: {error}") from error
    for text in spec.modelfile.adapters:
        path_of_adapter(text, spec.folder)


def _add_texts(builder: LayerBuilder, writer: LayerWriter, modelfile: Modelfile) -> None:
    def set_text(kind: Media, text: str | None) -> None:
        if text is not None:
            builder.layers[kind] = [writer.text(kind, text.encode())] if text else []

    set_text(Media.TEMPLATE, modelfile.template)
    set_text(Media.SYSTEM, modelfile.system)
    parameters = {**builder.parameters, **check_parameters(modelfile.parameters)}
    if parameters:
        builder.layers[Media.PARAMS] = [writer.text(Media.PARAMS, msgspec.json.encode(parameters))]
    if modelfile.messages:
        messages = msgspec.json.encode(modelfile.messages)
        builder.layers[Media.MESSAGES] = [writer.text(Media.MESSAGES, messages)]
    for text in modelfile.licenses:
        layer = writer.text(Media.LICENSE, text.encode())
        licenses = builder.layers.setdefault(Media.LICENSE, [])
        if layer.digest not in {known.digest for known in licenses}:
            licenses.append(layer)


def _config(builder: LayerBuilder, modelfile: Modelfile) -> ModelConfig:
    """Return the config blob, from the weights' file and the Modelfile."""
    info, base = builder.info, builder.config
    return ModelConfig(
        model_format="gguf",
        model_family=info.architecture,
        model_families=[info.architecture],
        model_type=info.parameter_size,
        file_type=info.quantization,
        renderer=modelfile.renderer if modelfile.renderer is not None else base.renderer,
        parser=modelfile.parser if modelfile.parser is not None else base.parser,
        requires=modelfile.requires if modelfile.requires is not None else base.requires,
        context_length=info.context,
        embedding_length=info.embedding_length,
        base_name=info.metadata.string("general.basename", default=""),
        architecture="amd64",
        os="linux",
    )
