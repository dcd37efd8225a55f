"""A server within this program, for `tampu run` without another: its thread, and loading models.

It has the server's model manager, and neither HTTP nor another process: the first token would wait.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec

from tampu.cli.loop_thread import LoopThread
from tampu.cli.private_api import PrivateAPI
from tampu.cli.repl.spinner import prompt_bar
from tampu.cli.server_client import WARNINGS
from tampu.engine.backend import Backend
from tampu.engine.engine import Engine
from tampu.engine.load_options import LLAMACPP, LoadOptions, choose_engine, options_from_settings
from tampu.errors import ModelNotFoundError, RequestError, TampuError
from tampu.ml.library import loaded_backends
from tampu.ml.termination import explain_termination
from tampu.runner.steering_options import Steering
from tampu.sandbox.client import ForkServerClient
from tampu.server.serving.admission import Admission
from tampu.server.serving.generation_request import FOREVER
from tampu.server.serving.model_manager import ModelManager
from tampu.server.serving.serving import Serving
from tampu.settings.parsers import existing_path
from tampu.settings.settings import Settings, disable_backtraces
from tampu.store.catalog import Catalog, Entry, resolve
from tampu.store.library import Library
from tampu.store.local_model import LocalModel
from tampu.worker.client import WorkerProcess
from tampu.worker.main import load_model
from tampu.worker.protocol import Load
from tampu.worker.thread import WorkerThread

_MAX_QUEUE = 8
_MAX_MODELS = 2  # `/load` keeps the old model until the new one is loaded


class NoMetrics:
    """Counts nothing: no route exports metrics here, and prometheus_client is slow to import."""

    @contextmanager
    def request(self, model: str) -> Iterator[Callable[[object], None]]:  # noqa: ARG002
        """Count nothing of a request."""
        yield lambda _: None


class FileCatalog(Catalog):
    """The user's models, and files and checkpoints by their paths."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(library=Library.from_settings(settings))
        self._settings = settings

    def find(self, name: str) -> LocalModel:
        """Return the model of a name or a path.

        Raises:
            TampuError: as `resolve`.
        """
        if existing_path(name) is None:
            return super().find(name)
        path = resolve(name, self._settings)
        found = Library(files=[path]).listing().models
        if not found:
            raise ModelNotFoundError(f"{name}: give the first file of a split model")
        return replace(found[0], name=name)


class PrivateServer:
    """A server for one user, on a thread of this process.

    Attributes:
        models: the models in memory.
    """

    adds_prefix = False  # requests have the whole conversation, with the system message

    def __init__(
        self,
        settings: Settings,
        fork_server: ForkServerClient,
        *,
        engine: str | None = None,
        trace: Path | None = None,
        steering: tuple[Steering, ...] = (),
        slots: int = 1,
    ) -> None:
        """Start the thread; no model is loaded yet.

        Without an `engine`, the model's own applies, else the setting. `trace` is the file for a
        trace of the engine, `steering` changes all requests; `slots` is that of `LoadOptions`.
        """
        for name in ("tampu.server.fields", "tampu.server.ollama.requests"):
            logging.getLogger(name).setLevel(logging.ERROR)  # answers have the warnings
        loaded_backends()  # drivers that start read the environment
        disable_backtraces()
        explain_termination("Error: ")
        self._settings = settings
        self._fork_server = fork_server
        self._engine = engine
        self._trace = trace
        self._loading = ""
        self._worker: WorkerThread | None = None
        self._serving = self._new_serving(slots)
        self.models = self._serving.models
        self._api = PrivateAPI(self._serving, steering)
        self._loop = LoopThread("tampu-private-server")

    def __str__(self) -> str:
        return "this program"

    @property
    def status(self) -> str:
        """What a request waits for: loading, or the prompt; empty if neither."""
        return self._loading or prompt_bar(*self.progress)

    @property
    def progress(self) -> tuple[int, int]:
        """The processed tokens of the prompt and all its tokens; (0, 0) if unknown."""
        return self._worker.progress if self._worker else (0, 0)

    def ask(
        self,
        method: str,  # noqa: ARG002 - for HTTP
        path: str,
        body: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,  # noqa: ARG002 - for HTTP
    ) -> dict[str, Any]:
        """Return the last line of the response to a request, with the warnings of all.

        Raises:
            TampuError: if it fails.
        """
        lines = [*self.stream(path, dict(body or {}))]
        warnings = [warning for line in lines for warning in line.get(WARNINGS, ())]
        return lines[-1] | ({WARNINGS: warnings} if warnings else {})

    def stream(self, path: str, body: dict[str, Any]) -> Generator[dict[str, Any]]:
        """Yield the lines of the response to a request; closing the iterator cancels it.

        Raises:
            TampuError: if it fails.
        """
        lines: SimpleQueue[dict[str, Any] | TampuError | None] = SimpleQueue()

        async def forward() -> None:
            try:
                async with aclosing(self._api.answer(path, body)) as answer:
                    async for line in answer:
                        lines.put(msgspec.to_builtins(line))
            except TampuError as error:
                lines.put(error)
            finally:
                lines.put(None)

        forwarding = self._loop.start(forward())
        try:
            while (line := lines.get()) is not None:
                if isinstance(line, TampuError):
                    raise line
                yield line
            forwarding.result()
        finally:
            forwarding.cancel()

    def close(self) -> None:
        """Unload all models and end the thread."""
        if self._loop.is_closed:
            return
        self._loop.run(self._serving.close())
        self._loop.close()
        self._fork_server.restart()  # ends it

    def _new_serving(self, slots: int) -> Serving:
        options = msgspec.structs.replace(options_from_settings(self._settings), slots=slots)

        def models() -> ModelManager:
            return ModelManager(
                self._start,
                options=options,
                keep_alive_s=FOREVER,
                max_models=_MAX_MODELS,
                memory_bytes=self._settings.memory,
                told=(TampuError,),
            )

        catalog = FileCatalog(self._settings)
        return Serving(
            models(),
            models(),
            catalog,
            Admission(_MAX_QUEUE),
            NoMetrics(),
            max_repeated_tokens=self._settings.max_repeated_tokens or None,
            truncate=self._settings.truncate,
        )

    async def _start(self, entry: Entry, options: LoadOptions) -> WorkerProcess:
        if self._engine:
            engine = choose_engine(self._engine, entry.info.loaded_as)
            options = msgspec.structs.replace(options, engine=engine)
        if self._trace and options.engine == LLAMACPP:
            raise RequestError("--trace: the llama.cpp engine has no trace")

        def report(fraction: float) -> None:
            self._loading = f"loading {entry.name} {fraction:.0%}"

        report(0.0)
        worker = WorkerThread(self._load, self._fork_server)
        try:
            started = await worker.start(
                entry.info.path,
                options,
                name=entry.name,
                progress=report,
                hang_s=self._settings.hang_s,
            )
        finally:
            self._loading = ""
        self._worker = worker
        return started

    @contextmanager
    def _load(
        self, load: Load, progress: Callable[[float], None], cancelled: Callable[[], bool]
    ) -> Iterator[Backend]:
        with ExitStack() as stack:
            model = stack.enter_context(load_model(load, progress, cancelled, self._fork_server))
            if self._trace and isinstance(model, Engine):
                stack.enter_context(model.trace(self._trace))
            yield model
