"""The adapters of one model that requests may choose, loaded and unloaded while it runs."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from weakref import WeakKeyDictionary

from tampu.engine.arguments import FilePath, checked
from tampu.engine.model_loader import LoadedModel
from tampu.errors import RequestError
from tampu.ml.gguf import read_gguf
from tampu.ml.kernels.repack_cache import file_identity
from tampu.nn.lora import Pair, read_adapter
from tampu.runner.adapters import Adapter, Choice
from tampu.runner.generate_options import check_strength
from tampu.runner.loop import EngineLoop

MAX_CHOSEN = 8
"""The adapters of one request, at most: each takes memory for every token of a step."""


class Adapters:
    """Loads adapters for requests to choose; any thread may call it.

    One that is unloaded stays in memory until the requests that chose it have ended.
    """

    def __init__(self, model: LoadedModel, runner: EngineLoop) -> None:
        self._model = model
        self._runner = runner
        self._lock = threading.Lock()
        self._loaded: dict[str, Adapter] = {}
        self._matrices: WeakKeyDictionary[Adapter, Mapping[str, Pair]] = WeakKeyDictionary()
        self._numbers = itertools.count(1)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the loaded adapters, in the order of loading."""
        return tuple(self._loaded)

    @checked
    def load(self, name: str, path: FilePath) -> None:
        """Load an adapter; requests that come later may choose it.

        Args:
            name: no loaded adapter may have it.
            path: its GGUF file.

        Raises:
            ModelFileError: if it is damaged, not an adapter, or does not fit the model.
            UnsupportedModelError: for an unsupported kind of adapter or tensor.
            OutOfMemoryError: if it does not fit into memory.
            RequestError: for an empty name or one that is taken.
            RunnerDiedError: if the engine is closed.
        """
        if not name:
            raise RequestError("an adapter needs a name")
        file, graphs = read_gguf(Path(path)), self._model.graphs
        matrices = read_adapter(graphs.model, self._model.info.metadata.architecture, file)
        with self._lock:
            if name in self._loaded:
                raise RequestError(f"an adapter {name!r} is loaded already; unload it first")
            identity = [list(file_identity(part.path, part.size_bytes)) for part in file.parts]
            adapter = Adapter(name, next(self._numbers), identity=json.dumps(identity))
            self._matrices[adapter] = matrices
            try:
                self._runner.call(self._stack)
            except BaseException:
                del self._matrices[adapter]
                raise
            self._loaded[name] = adapter

    @checked
    def unload(self, name: str) -> None:
        """Unload an adapter; running requests keep it.

        Raises:
            RequestError: if no adapter of this name is loaded.
            RunnerDiedError: if the engine is closed.
        """
        with self._lock:
            self._find(name)
            del self._loaded[name]
            self._runner.call(self._stack)

    def chosen(self, lora: Mapping[str, float]) -> Choice:
        """Return the adapters that a request names, with their strengths.

        Raises:
            RequestError: for a name that is not loaded, too many names, or a strength that
                `check_strength` refuses.
        """
        if len(lora) > MAX_CHOSEN:
            raise RequestError(f"a request may choose {MAX_CHOSEN} adapters, not {len(lora)}")
        for name, scale in lora.items():
            check_strength(name, scale)
        return tuple((self._find(name), scale) for name, scale in lora.items() if scale)

    def _find(self, name: str) -> Adapter:
        adapter = self._loaded.get(name)
        if adapter is None:
            known = ", ".join(map(repr, self._loaded)) or "none"
            raise RequestError(f"no adapter {name[:100]!r} is loaded (loaded: {known})")
        return adapter

    def _stack(self) -> None:
        """Stack the adapters that are loaded or in use; on the loop's thread."""
        adapters = list(self._matrices)
        self._model.graphs.stack_adapters([self._matrices[each] for each in adapters])
        for place, adapter in enumerate(adapters, 1):
            adapter.place = place
