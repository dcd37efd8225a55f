"""The layers of a model that is being created: found, copied, converted or quantized."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tampu.convert import plan_conversion
from tampu.convert.adapters import CONFIG_FILE as ADAPTER_CONFIG
from tampu.convert.adapters import is_adapter, plan_adapter
from tampu.convert.cache import CONFIG_FILE, is_checkpoint
from tampu.convert.quant_mix import file_type
from tampu.convert.quantize import plan_quantization
from tampu.errors import ModelFileError, ModelNotFoundError, RequestError, UnsupportedModelError
from tampu.gguf_compat import architecture_of
from tampu.ml.gguf import GGUFFile, read_gguf
from tampu.ml.split_names import read_part_name
from tampu.store.draft import check_draft
from tampu.store.gguf_files import SUFFIX
from tampu.store.layer_writer import LayerWriter
from tampu.store.library import Library
from tampu.store.local_model import LocalModel
from tampu.store.locks import Lease
from tampu.store.manifests import (
    Descriptor,
    Media,
    ModelConfig,
)
from tampu.store.model import file_of
from tampu.store.model_info import ModelInfo, read_model_info
from tampu.store.modelfile import Modelfile
from tampu.store.names import Digest
from tampu.store.shards import weights_file
from tampu.store.store import Store

_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}", re.ASCII)
_NO_MODEL = "this is an adapter: give it with ADAPTER"


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateSpec:
    """A request to create a model.

    Attributes:
        modelfile: its sources and adapters are model names or paths.
        folder: base of relative paths; None: paths are not allowed, as for remote clients.
        files: uploaded blobs by file name, instead of sources.
        adapter_files: uploaded blobs by file name, instead of adapters.
        draft_files: uploaded blobs by file name, instead of a draft model.
        quantize: the type to quantize the weights to; None: unchanged.
        in_place: reference GGUF files where they are instead of copying them.
        allow_unknown: convert folders although they have unknown settings, with a warning.
    """

    modelfile: Modelfile = field(default_factory=Modelfile)
    folder: Path | None = None
    files: Mapping[str, Digest] = field(default_factory=dict)
    adapter_files: Mapping[str, Digest] = field(default_factory=dict)
    draft_files: Mapping[str, Digest] = field(default_factory=dict)
    quantize: str | None = None
    in_place: bool = False
    allow_unknown: bool = False


class LayerBuilder:
    """Collects the layers of a new model; errors are those of `create`.

    Attributes:
        layers: by media type.
        parameters: of the base model.
        config: of the base model.
        info: the metadata of the weights' file; set by `add_sources`.
    """

    info: ModelInfo

    def __init__(
        self, spec: CreateSpec, library: Library, store: Store, lease: Lease, writer: LayerWriter
    ) -> None:
        """Look up models in `library`, and write to `store` under a lease."""
        self._spec = spec
        self.layers: dict[Media, list[Descriptor]] = {}
        self.parameters: Mapping[str, Any] = {}
        self.config = ModelConfig()
        self._library = library
        self._store = store
        self._lease = lease
        self._writer = writer

    @property
    def weights(self) -> Path:
        """The file of the weights; the first, if they are split over several."""
        found = self.layers[Media.MODEL]
        files = [file_of(layer) or self._store.blobs.path(layer.digest) for layer in found]
        return weights_file(self._store.layout, files)

    def add_sources(self) -> None:
        """Add the weights and other sources."""
        spec = self._spec
        self._add_uploaded(spec.files, self._add_path)
        for text in spec.modelfile.sources:
            found = path_of_source(text, spec.folder)
            if found is None:
                self._add_model(self._library.find(text))
            else:
                with _named(found.name):
                    self._add_path(found)
        if not self.layers.get(Media.MODEL):
            raise RequestError("none of the sources contains the weights of a model")

    def add_adapters(self) -> None:
        """Add adapters; PEFT's are converted."""
        spec = self._spec
        self._add_uploaded(spec.adapter_files, self._add_adapter)
        for text in spec.modelfile.adapters:
            found = path_of_adapter(text, spec.folder)
            with _named(found.name):
                self._add_adapter(found)

    def add_draft(self) -> None:
        """Add the draft model; a checkpoint is converted."""
        try:
            self._add_uploaded(self._spec.draft_files, self._add_draft)
        except UnsupportedModelError as error:
            raise UnsupportedModelError(f"draft_files: {error}") from error
        text = self._spec.modelfile.draft
        if text is None:
            return
        found = path_of_source(text, self._spec.folder, "DRAFT")
        model = None if found else self._library.find(text)
        path = found or (model.path if model else Path())
        with _named(path.name):
            try:
                self._add_draft(path)
            except UnsupportedModelError as error:
                raise UnsupportedModelError(f"DRAFT {text}: {error}") from error

    # -- models ----------------------------------------------------------------------------------
    def _add_draft(self, path: Path) -> None:
        if path.is_dir():
            plan = plan_conversion(path, allow_unknown=self._spec.allow_unknown)
            layer = self._writer.written(Media.DRAFT, plan, "converting draft model")
        elif len(read_gguf(path).parts) > 1:
            raise ModelFileError("DRAFT", "a draft model must be one file, not several parts")
        else:
            layer = self._writer.add_file(Media.DRAFT, path)
        made = file_of(layer) or self._store.blobs.path(layer.digest)
        check_draft(read_gguf(made), read_gguf(self.weights))
        self.layers[Media.DRAFT] = [layer]

    def _add_model(self, model: LocalModel) -> None:
        if model.stored is None:
            for path in (model.path, *model.projectors):
                self._add_path(path)
            return
        stored = model.stored
        self.parameters, self.config = stored.parameters, stored.config
        for layer in stored.manifest.layers:
            if layer.media_type not in {*Media}:
                continue
            kind = Media(layer.media_type)
            if not (kind is Media.PARAMS or (kind is Media.MODEL and self._spec.quantize)):
                self.layers.setdefault(kind, []).append(self._writer.add_stored(stored, layer))
        try:
            if self._spec.quantize:
                self._add_weights(stored.model_path)
            else:
                self._look_at_weights()
        except ModelFileError as error:
            raise model.damaged(error) from error

    # -- files -----------------------------------------------------------------------------------

    def _add_path(self, path: Path) -> None:
        if path.is_dir():
            if is_adapter(path):
                raise ModelFileError(ADAPTER_CONFIG, _NO_MODEL)
            if not is_checkpoint(path):
                raise ModelNotFoundError(f"{path} is not a checkpoint: it has no config.json")
            plan = plan_conversion(
                path, self._spec.quantize, allow_unknown=self._spec.allow_unknown
            )
            self._set_weights(lambda: [self._writer.written(Media.MODEL, plan, "converting model")])
            return
        file = read_gguf(path)
        if file.metadata.string("general.type", default="model") == "adapter":
            raise ModelFileError("general.type", _NO_MODEL)
        if file.metadata.architecture == "clip":
            layer = self._writer.add_file(Media.PROJECTOR, path)
            self.layers.setdefault(Media.PROJECTOR, []).append(layer)
        else:
            self._add_weights(path)

    def _add_weights(self, path: Path) -> None:
        """Add weights in the spec's type; quantized ones become one file."""
        before = read_model_info(path).quantization
        wanted = file_type(self._spec.quantize).name if self._spec.quantize else before
        if before == wanted:
            parts = read_gguf(path).parts
            self._set_weights(lambda: [self._writer.add_file(Media.MODEL, p.path) for p in parts])
            return
        status = f"quantizing {before} model to {wanted}"
        plan = plan_quantization(path, wanted)
        self._set_weights(lambda: [self._writer.written(Media.MODEL, plan, status)])

    def _add_adapter(self, path: Path) -> None:
        if path.is_dir():
            plan = plan_adapter(
                path, read_gguf(self.weights), allow_unknown=self._spec.allow_unknown
            )
            layer = self._writer.written(Media.ADAPTER, plan, "converting adapter")
        else:
            kind = read_gguf(path).metadata.string("general.type", default="model")
            if kind != "adapter":
                raise ModelFileError("general.type", "this file is not an adapter")
            layer = self._writer.add_file(Media.ADAPTER, path)
        made = read_gguf(file_of(layer) or self._store.blobs.path(layer.digest))
        _check_adapter(made, read_gguf(self.weights), path.name)
        self.layers.setdefault(Media.ADAPTER, []).append(layer)

    def _add_uploaded(self, files: Mapping[str, Digest], add: Callable[[Path], None]) -> None:
        if files:
            with self._files(files) as paths:
                for name, path in paths.items():
                    with _named(name, is_sent=True):
                        add(path)

    @contextmanager
    def _files(self, files: Mapping[str, Digest]) -> Iterator[dict[str, Path]]:
        """Yield uploaded blobs as GGUF files by name, or as one folder under an empty name.

        Errors within a folder name the file already.
        """
        self._lease.add(files.values())
        for name, digest in files.items():
            if not _FILE_NAME.fullmatch(name):
                raise RequestError(f"{name[:80]!r} is not a valid file name")
            if not self._store.blobs.has(digest):
                raise ModelNotFoundError(f"the blob {digest} for {name} is missing: upload it")
        if all(name.lower().endswith(SUFFIX) for name in files):
            yield dict(self._weights_files(files))
            return
        if not {CONFIG_FILE, ADAPTER_CONFIG} & set(files):
            raise RequestError(
                f"files: give GGUF files only, or a checkpoint with its {CONFIG_FILE}"
            )
        with tempfile.TemporaryDirectory(prefix="tampu-create-") as folder:
            for name, digest in files.items():
                (Path(folder) / name).symlink_to(self._store.blobs.path(digest).resolve())
            yield {"": Path(folder)}

    def _weights_files(self, files: Mapping[str, Digest]) -> Iterator[tuple[str, Path]]:
        """Yield uploaded GGUF files; the shards of a split model as one."""
        models: dict[tuple[str, int], list[str]] = {}
        for name in sorted(files):
            stem, _, count = read_part_name(name)
            models.setdefault((stem, count), []).append(name)
        for names in models.values():
            paths = [self._store.blobs.path(files[name]) for name in names]
            yield names[0], weights_file(self._store.layout, paths)

    def _set_weights(self, make: Callable[[], list[Descriptor]]) -> None:
        if self.layers.get(Media.MODEL):
            raise RequestError("more than one source contains the weights of a model: give one")
        self.layers[Media.MODEL] = make()
        self._look_at_weights()

    def _look_at_weights(self) -> None:
        """Read the metadata of the weights' file here, where errors can name it."""
        if self.layers.get(Media.MODEL):
            self.info = read_model_info(self.weights)


@contextmanager
def _named(name: str, *, is_sent: bool = False) -> Iterator[None]:
    """Add a file's name to its errors; an error in an uploaded file is a bad request."""
    try:
        yield
    except ModelFileError as error:
        field = f"{name}: {error.field}" if name else error.field
        if is_sent:
            raise RequestError(f"{field}: {error.reason}") from error
        if error.field == "magic":  # its message has the path
            raise
        raise ModelFileError(field, error.reason) from error


def _check_adapter(adapter: GGUFFile, base: GGUFFile, name: str) -> None:
    """Refuse an adapter of another model.

    Weights that are fused, or have another name in this file, are compared when it is loaded.

    Raises:
        ModelFileError: for another architecture, or factors that do not fit their weight.
    """
    architecture = adapter.metadata.architecture
    if architecture not in (base.metadata.architecture, architecture_of(base)):
        told = f"is an adapter for {architecture}, the model is {base.metadata.architecture}"
        raise ModelFileError(name, told)
    for tensor, factor in adapter.tensors.items():
        weight = base.tensors.get(tensor.rpartition(".lora_")[0])
        side = -1 if tensor.endswith(".lora_a") else 0  # inputs, outputs
        if weight is None or not len(weight.shape) == len(factor.shape) == 2:
            continue
        if factor.shape[side] != weight.shape[side]:
            told = f"is an adapter for another model: {tensor} of shape {factor.shape} does not fit"
            raise ModelFileError(name, f"{told} a weight of shape {weight.shape}")


def path_of_adapter(text: str, folder: Path | None) -> Path:
    """Return the file or folder that an ADAPTER names; `folder` as for `path_of_source`.

    Raises:
        ModelNotFoundError: if it does not exist.
    """
    found = path_of_source(text, folder, "ADAPTER")
    if found is None:
        raise ModelNotFoundError(f"ADAPTER {text[:200]}: no such file or folder")
    return found


def path_of_source(text: str, folder: Path | None, word: str = "FROM") -> Path | None:
    """Return a source's file or folder; None if it is a model name.

    Args:
        text: what the Modelfile says.
        folder: the base of relative paths; None: paths are not allowed.
        word: the instruction, for messages.

    Raises:
        ModelNotFoundError: if it can only be a path and does not exist.
    """
    if folder is None:
        return None
    try:
        path = folder / Path(text).expanduser()
        if path.exists():
            return path
    except (OSError, RuntimeError):  # too long, or an unknown ~user
        pass
    if text.startswith((".", "/", "~")) or text.lower().endswith(SUFFIX):
        raise ModelNotFoundError(f"{word} {text[:200]}: no such file")
    return None
