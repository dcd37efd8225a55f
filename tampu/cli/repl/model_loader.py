"""Where the models of `tampu run` come from: files and stores of this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tampu.cli.repl.backend import Known
from tampu.cli.repl.current_model import Loaded, Needs
from tampu.cli.repl.spinner import spinner
from tampu.errors import RequestError, SettingsError
from tampu.ml.kernels.repack_cache import RepackCache
from tampu.ml.kernels.tuning import Tuning
from tampu.ml.offload import Offload
from tampu.sandbox.client import ForkServerClient
from tampu.settings.parsers import existing_path
from tampu.settings.settings import DEFAULT_CONTEXT, ENGINES, Settings
from tampu.store.catalog import Catalog, prepare, resolve
from tampu.store.library import Library
from tampu.store.model_info import read_model_info
from tampu.worker.engines import LLAMACPP, choose_engine


class EngineShelf:
    """Loads models into engines of this process."""

    def __init__(
        self,
        settings: Settings,
        fork_server: ForkServerClient,
        trace: Path | None = None,
        engine: str | None = None,
    ) -> None:
        """Load models as the settings say.

        Args:
            settings: of the user.
            fork_server: for the sandboxes of the models.
            trace: a file for what the engine does; None: nobody looks.
            engine: native, llamacpp or auto; None: as the model or the settings say.

        Raises:
            SettingsError: if there is no such engine.
        """
        if engine not in (None, *ENGINES):
            raise SettingsError(f"--engine is {engine!r}; it must be one of {', '.join(ENGINES)}")
        self._settings = settings
        self._catalog = Catalog(library=Library.from_settings(settings))
        self._fork_server = fork_server
        self._trace = trace
        self._engine = engine

    def find(self, name: str) -> Known:
        """Return what is known of a model.

        Raises:
            ModelNotFoundError: saying which models there are.
            ModelFileError: if its file is damaged.
        """
        path = resolve(name, self._settings)
        is_path = existing_path(name) is not None
        info = read_model_info(path) if is_path else self._catalog.describe(name).info
        return Known(name, info, prepare(name, settings=self._settings))

    def load(self, known: Known, needs: Needs) -> Loaded:
        """Load a model, with a spinner if someone watches.

        Raises:
            TampuError: when it cannot be loaded.
        """
        longest = known.info.context
        if longest and needs.context and needs.context > longest:
            told = f"the model was trained for a context of {longest}, it gets that"
            print(told, file=sys.stderr)
        wanted = needs.context or self._settings.context or DEFAULT_CONTEXT
        context = min(wanted, longest or wanted)
        stated = str(known.prepared.parameters.get("engine", self._settings.engine))
        chosen = choose_engine(self._engine or stated, known.info.architecture)
        with spinner(f"loading {known.name}") as progress:
            if chosen == LLAMACPP:
                return self._load_llamacpp(known, needs, context)
            return self._load_native(known, needs, context, progress)

    def _load_native(
        self, known: Known, needs: Needs, context: int, progress: Callable[[float], None]
    ) -> Loaded:
        from tampu.engine.engine import Engine

        settings = self._settings
        with ExitStack() as stack:
            engine = stack.enter_context(
                Engine.load(
                    known.name,
                    context=context,
                    threads=needs.threads or settings.threads,
                    cache_type=settings.cache_type,
                    flash_attention=settings.flash_attention,
                    kernels=settings.kernels,
                    repack_cache=_repack_cache(settings),
                    tuning=Tuning(settings.fetch, settings.tuning),
                    offload=_offload(needs, settings),
                    use_mmap=needs.mapped is not False,
                    progress=progress,
                    settings=settings,
                    fork_server=self._fork_server,
                )
            )
            if self._trace:
                stack.enter_context(engine.trace(self._trace))
            return Loaded(engine, engine.requests, stack.pop_all().close)

    def _load_llamacpp(self, known: Known, needs: Needs, context: int) -> Loaded:
        from tampu.backends.llamacpp import load_llamacpp
        from tampu.worker.protocol import ModelOptions

        if self._trace:
            raise RequestError("--trace: with the llama.cpp engine there is no trace")
        settings, prepared = self._settings, known.prepared
        offload = _offload(needs, settings)
        options = ModelOptions(
            context=context,
            threads=needs.threads or settings.threads,
            cache_type=settings.cache_type,
            flash_attention=settings.flash_attention,
            engine=LLAMACPP,
            gpu_layers=-1 if offload.layers is None else offload.layers,
            main_gpu=offload.main,
            tensor_split=offload.split,
            use_mmap=needs.mapped is not False,
            template=prepared.template.source if prepared.template else "",
            parser=prepared.parser,
            adapters=tuple((str(path), scale) for path, scale in prepared.adapters),
            projector=str(prepared.projector) if prepared.projector else None,
        )
        with ExitStack() as stack:
            model, requests = stack.enter_context(
                load_llamacpp(prepared.path, options, self._fork_server)
            )
            return Loaded(model, requests, stack.pop_all().close)


def _repack_cache(settings: Settings) -> RepackCache | None:
    if settings.packed_weights is None:
        return None
    folder, limit = settings.packed_weights
    return RepackCache(Path(folder), limit)


def _offload(needs: Needs, settings: Settings) -> Offload:
    layers = settings.gpu_layers if needs.layers is None else needs.layers
    main = settings.main_gpu if needs.main is None else needs.main
    return Offload(None if layers is None or layers < 0 else layers, main, settings.tensor_split)
