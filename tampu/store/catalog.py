"""The catalog: all models by name, with the metadata of their files."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tampu.chat.renderers import own_template
from tampu.chat.template_loader import PromptTemplate, usable
from tampu.errors import ModelFileError, ModelNotFoundError, TampuError
from tampu.ml.device_map import Offload
from tampu.ml.gguf import read_gguf
from tampu.settings.model_settings import DEFAULT_CONTEXT
from tampu.settings.parsers import existing_path
from tampu.settings.settings import Settings
from tampu.store.gguf_files import SUFFIX
from tampu.store.library import Library, bare_name, built_in_paths
from tampu.store.local_model import LocalModel
from tampu.store.manifests import Media
from tampu.store.model import StoredDefaults, StoredModel
from tampu.store.model_info import ModelInfo, read_model_info, with_encoders, with_template

logger = logging.getLogger(__name__)

_MAX_VARIANTS = 32  # of one file; more are of models that were created anew


def resolve(
    name_or_path: str, settings: Settings | None = None, *, allow_unknown: bool = False
) -> Path:
    """Return the model file for a path or a model name.

    Args:
        name_or_path: of the model. The folder of a Hugging Face checkpoint is converted on first
            use.
        settings: where models are; None: those of the environment, read if needed.
        allow_unknown: convert a folder although it has unknown settings, with a warning.

    Raises:
        ModelNotFoundError: if there is none; the message lists the models.
        ModelFileError: if a checkpoint is damaged.
        UnsupportedModelError: if its architecture is not supported.
        StoreError: if a blob is missing.
    """
    path = _path(name_or_path)
    if path.is_file():
        return path
    settings = settings or Settings.from_environment()
    try:
        return Library.from_settings(settings).find(name_or_path).path
    except ModelNotFoundError:
        if path.is_dir():
            return _converted(path, settings.cache, allow_unknown=allow_unknown)
        if path.suffix == SUFFIX or name_or_path.startswith((".", "/", "~")):
            message = f"{name_or_path}: no such file"
            raise ModelNotFoundError(message) from None
        raise


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model with the parts and defaults that it is loaded with.

    Attributes:
        path: of the weights.
        adapters: files with their scales.
        projector: the projector's file; None: in the weights' file, or none.
        template: overrides the template in the weights' file.
        parser: Ollama's name of the output parser; empty: detected from the template.
        defaults: what the model sets for its requests.
        draft: the draft model's file; None: there is none.
    """

    path: Path
    adapters: tuple[tuple[Path, float], ...] = ()
    projector: Path | None = None
    template: PromptTemplate | None = None
    parser: str = ""
    defaults: StoredDefaults = StoredDefaults()  # noqa: RUF009 - frozen
    draft: Path | None = None

    @property
    def context(self) -> int:
        """The context length of its parameters, in tokens."""
        stated = self.defaults.parameters.get("num_ctx")
        return stated if isinstance(stated, int) else DEFAULT_CONTEXT

    @property
    def offload(self) -> Offload:
        """What its parameters say of GPUs; by default as many layers as fit."""
        parameters = self.defaults.parameters
        layers = parameters.get("num_gpu", -1)
        return Offload(
            layers if layers >= 0 else None,
            parameters.get("main_gpu"),
            cpu_cache=not parameters.get("kv_offload", True),
            cpu_experts=parameters.get("n_cpu_moe", 0),
        )


def prepare(
    name_or_path: str,
    adapters: Sequence[tuple[str | Path, float]] = (),
    template: str = "",
    projector: str | Path | None = None,
    settings: Settings | None = None,
    *,
    allow_unknown: bool = False,
    draft: str | None = None,
) -> Prepared:
    """Return a model with its parts and defaults.

    Args:
        name_or_path: as for `resolve`.
        adapters: additional adapters, GGUF files or PEFT folders, with their scales.
        template: overrides the model's own; empty: does not. One that does not compile is an error
            of conversations.
        projector: overrides the model's own.
        settings: as for `resolve`.
        allow_unknown: as for `resolve`, and for adapters' folders.
        draft: overrides the model's own draft model; as for `resolve`.

    Raises:
        As `resolve`.
    """
    if existing_path(name_or_path) is None:
        settings = settings or Settings.from_environment()
    path = resolve(name_or_path, settings, allow_unknown=allow_unknown)
    cache = None if settings is None else settings.cache
    given = [
        (
            adapter_file(Path(each).expanduser(), path, cache, allow_unknown=allow_unknown),
            scale,
        )
        for each, scale in adapters
    ]
    own = usable(template) if template else None
    chosen = Path(projector).expanduser() if projector else None
    drafting = None if draft is None else resolve(draft, settings)
    if settings is None or existing_path(name_or_path) is not None:
        return Prepared(path, tuple(given), chosen, own, draft=drafting)
    model = Library.from_settings(settings).find(name_or_path)
    chosen = chosen or next(iter(model.projector_paths), None)
    if chosen is None and model.projector_problem:
        logger.warning("%s", model.projector_problem)
    stored = model.stored
    if stored is None:
        return Prepared(path, tuple(given), chosen, own, draft=drafting)
    if own is None and (text := _own_template(stored, path)):
        own = usable(text)
    return Prepared(
        path,
        (*((each, 1.0) for each in stored.paths(Media.ADAPTER)), *given),
        chosen,
        own,
        stored.config.parser,
        stored.defaults,
        drafting or next(iter(stored.paths(Media.DRAFT)), None),
    )


def _path(text: str) -> Path:
    """Return a text as a path; an error if it can be neither a path nor a model name."""
    if not text.strip():
        raise ModelNotFoundError("the name of the model is empty")
    try:
        path = Path(text).expanduser()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:  # too long, unknown ~user, a NUL
        raise ModelNotFoundError(f"{text[:200]!r}: no such file") from error
    return path


def adapter_file(
    path: Path, model: Path, cache: Path | None = None, *, allow_unknown: bool = False
) -> Path:
    """Return an adapter's GGUF file; a PEFT folder is converted on first use.

    Args:
        path: the file or the folder.
        model: the file of its model.
        cache: where converted files are kept; None: as the environment says.
        allow_unknown: convert a folder although it has unknown settings, with a warning.

    Raises:
        ModelNotFoundError: if there is neither.
        ModelFileError: if the folder is not an adapter of the model.
    """
    if not path.exists():
        raise ModelNotFoundError(f"{path}: no such adapter")
    if not path.is_dir():
        return path
    from tampu.convert.cache import converted_adapter  # slow to import, rarely needed

    place = cache or Settings.from_environment().cache
    return converted_adapter(path, read_gguf(model), place, allow_unknown=allow_unknown)


def _converted(folder: Path, cache: Path, *, allow_unknown: bool) -> Path:
    """Return the GGUF file of a checkpoint, converted on first use."""
    from tampu.convert.cache import converted_file, is_checkpoint  # slow to import, rarely needed

    if not is_checkpoint(folder):
        message = f"{folder} is a folder without config.json: give a model file or a checkpoint"
        raise ModelNotFoundError(message) from None
    return converted_file(folder, cache, allow_unknown=allow_unknown)


@dataclass(frozen=True, slots=True)
class Entry:
    """A model of the catalog.

    Attributes:
        name: without the tag `:latest`.
        info: the metadata of its file.
        modified_s: in seconds since 1970.
        model: its location, and its entry in a store.
        adapter: the name of the adapter that was asked for, of a model with several; None: of none.
    """

    name: str
    info: ModelInfo
    modified_s: float
    model: LocalModel
    adapter: str | None = None

    @property
    def full_name(self) -> str:
        """Its name with the tag."""
        return self.model.name


@dataclass(frozen=True, slots=True)
class _Described:
    """What is known of a file of weights while its time and size are these.

    Attributes:
        info: of the file itself.
        variants: its infos with the template of a store's model ("": its own), and with encoders
            of other files.
    """

    modified_s: float
    size_bytes: int
    info: ModelInfo
    variants: dict[tuple[str, frozenset[str]], ModelInfo] = field(default_factory=dict)

    def variant(self, template: str, modalities: Sequence[str]) -> ModelInfo:
        """Return the info of a model with this file, and encoders of these in others."""
        key = template, frozenset(modalities)
        if key not in self.variants:
            info = with_template(self.info, usable(template)) if template else self.info
            if len(self.variants) == _MAX_VARIANTS:
                self.variants.clear()
            self.variants[key] = with_encoders(info, modalities)
        return self.variants[key]


class Catalog:
    """Models by name, case-insensitively and with or without the tag `:latest`.

    Folders are scanned on every call; a file's metadata, and the templates of models with it, are
    cached until its time or size changes.
    An unknown name raises ModelNotFoundError with the known ones, a damaged manifest or a missing
    blob StoreError, and a file that is not a valid model ModelFileError.
    """

    def __init__(
        self,
        folder: Path | None = None,
        files: Sequence[Path] = (),
        *,
        library: Library | None = None,
    ) -> None:
        """Use a library; without one, a folder, single files and the built-in models."""
        self.library = library or Library(folder, files, built_in=built_in_paths())
        self._described: dict[Path, _Described] = {}

    def names(self) -> list[str]:
        """Return all names, without the tag `:latest`."""
        return [bare_name(model.name) for model in self.library.listing().models]

    def find(self, name: str) -> LocalModel:
        """Return the model of a name without opening its files."""
        return self.library.find(name)

    def describe(self, name: str) -> Entry:
        """Return the entry of a name."""
        return self._entry(self.find(name))

    def entries(self) -> list[Entry]:
        """Return all models with valid files, last modified first; others are logged."""
        listing = self.library.listing()
        for damaged in listing.damaged:
            logger.warning("not listed: %s: %s", damaged.path, damaged.reason)
        found = []
        for model in listing.models:
            try:
                found.append(self._entry(model))
            except TampuError as error:
                logger.warning("not listed: %s", error)
        return found

    def _entry(self, model: LocalModel) -> Entry:
        path = model.path
        try:
            cached = self._description(path)
            template = _own_template(model.stored, path, cached.info) if model.stored else ""
            info = cached.variant(template, self._modalities(model))
        except OSError as error:
            raise ModelNotFoundError(f"model {model.name!r} not found") from error
        except ModelFileError as error:
            raise model.damaged(error) from error
        return Entry(bare_name(model.name), info, model.modified_s, model)

    def _description(self, path: Path) -> _Described:
        """Return what a file has, read again if it changed."""
        status = path.stat()
        now = status.st_mtime, status.st_size
        cached = self._described.get(path)
        if cached is None or (cached.modified_s, cached.size_bytes) != now:
            cached = self._described[path] = _Described(*now, read_model_info(path))
        return cached

    def _modalities(self, model: LocalModel) -> list[str]:
        """Return what a model's projectors encode.

        A damaged one is refused when the model is loaded; here it counts as one of images.
        """
        found: set[str] = set()
        for path in model.projector_paths:
            try:
                found |= {*self._description(path).info.capabilities}
            except (OSError, ModelFileError):
                found.add("vision")
        return [each for each in ("vision", "audio") if each in found]


def _own_template(stored: StoredModel, path: Path, info: ModelInfo | None = None) -> str:
    """Return a model's own template; empty if the template in the weights' file applies."""
    renderer = stored.config.renderer
    if not renderer:
        return stored.template
    metadata = info.metadata if info else read_gguf(path).metadata
    return own_template(stored.template, renderer, metadata)
