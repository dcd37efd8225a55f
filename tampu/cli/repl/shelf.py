"""Where the models of `tampu run` come from: files and stores of this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tampu.catalog import DEFAULT_CONTEXT, Catalog, prepare, resolve
from tampu.cli.repl.desk import Known, Loaded, Needs
from tampu.modelinfo import read_model_info
from tampu.offload import Offload
from tampu.settings import Settings


class EngineShelf:
    """Loads models into engines of this process."""

    def __init__(self, trace: Path | None = None) -> None:
        """Read the settings.

        Args:
            trace: a file for what the engine does; None: nobody looks.

        Raises:
            SettingsError: if they make no sense.
        """
        self._settings = Settings.from_environment()
        self._trace = trace

    def find(self, name: str) -> Known:
        """Return what is known of a model.

        Raises:
            ModelNotFoundError: saying which models there are.
            ModelFileError: if its file is damaged.
        """
        path = resolve(name)
        is_path = Path(name).expanduser().exists()
        info = read_model_info(path) if is_path else Catalog.of_user().describe(name).info
        return Known(name, info, prepare(name))

    def load(self, known: Known, needs: Needs) -> Loaded:
        """Load a model, with a spinner if someone watches.

        Raises:
            TampuError: when it cannot be loaded.
        """
        settings, longest = self._settings, known.info.context
        wanted = needs.context or settings.context or DEFAULT_CONTEXT
        if longest and needs.context and needs.context > longest:
            told = f"the model was trained for a context of {longest}, it gets that"
            print(told, file=sys.stderr)
        with waiting(f"loading {known.name}") as progress, ExitStack() as stack:
            from tampu.chat.prompt import PromptBuilder
            from tampu.engine import Engine

            engine = stack.enter_context(
                Engine.load(
                    known.name,
                    context=min(wanted, longest or wanted),
                    threads=needs.threads or settings.threads,
                    cache_type=settings.cache_type,
                    flash_attention=settings.flash_attention,
                    kernels=settings.kernels,
                    offload=_offload(needs, settings),
                    use_mmap=needs.mapped is not False,
                    progress=progress,
                )
            )
            if self._trace:
                stack.enter_context(engine.trace(self._trace))
            prompts = PromptBuilder.for_model(
                engine.template, engine.tokenizer, engine.info.metadata
            )
            return Loaded(engine, prompts, stack.pop_all().close)


def _offload(needs: Needs, settings: Settings) -> Offload:
    layers = settings.gpu_layers if needs.layers is None else needs.layers
    main = settings.main_gpu if needs.main is None else needs.main
    return Offload(None if layers is None or layers < 0 else layers, main, settings.tensor_split)


@contextmanager
def waiting(text: str) -> Iterator[Callable[[float], None]]:
    """Show a spinner on standard error if it is a terminal; yields what tells it how far it is."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status(text) as status:
        yield lambda fraction: status.update(f"{text} {fraction:.0%}")
