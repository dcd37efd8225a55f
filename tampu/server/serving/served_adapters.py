"""The adapters that requests to a server may choose, and the models that they belong to."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sized
from dataclasses import dataclass
from pathlib import Path

from tampu.engine.management import ChangeAdapter
from tampu.engine.sent_paths import sent_path
from tampu.errors import NotFoundError, RequestError
from tampu.runner.generate_options import check_strength
from tampu.server.serving.managed_model import ManagedModel
from tampu.server.serving.model_manager import ModelManager
from tampu.store.catalog import Entry, adapter_file

MAX_ADAPTERS = 1000


@dataclass(slots=True, eq=False)
class ServedAdapter:
    """An adapter that requests may choose.

    Attributes:
        name: by which they do, also as the name of a model.
        base: the name of its model in the catalog.
        path: its GGUF file.
        scale: its strength in requests that choose none; 0: they do not have it.
    """

    name: str
    base: str
    path: Path
    scale: float = 0.0

    @property
    def modified_s(self) -> float:
        """When its file was written, in seconds since 1970; 0: it is not here any more."""
        try:
            return self.path.stat().st_mtime
        except OSError:
            return 0.0


class ServedAdapters:
    """Adapters by name; for one event loop.

    They are loaded into the process of a model when a request first needs them, also after it was
    unloaded or has crashed.
    """

    def __init__(self, cache: Path | None = None) -> None:
        """Begin without any; `cache` is where converted ones are kept."""
        self._adapters: dict[str, ServedAdapter] = {}
        self._cache = cache

    def find(self, name: str) -> ServedAdapter | None:
        """Return the adapter of a name; None if there is none."""
        return self._adapters.get(name)

    def of(self, entry: Entry) -> list[ServedAdapter]:
        """Return those of a model, in the order of their numbers."""
        return [each for each in self._adapters.values() if each.base == entry.name]

    def every(self) -> list[ServedAdapter]:
        """Return those of all models."""
        return [*self._adapters.values()]

    def choice(self, entry: Entry, wanted: Mapping[str, float]) -> dict[str, float]:
        """Return the adapters of a request, by name.

        Args:
            entry: the model, or an adapter of it.
            wanted: what the request chose: names, or numbers among those of the model.

        Raises:
            RequestError: for one that the model does not have, and one that is chosen twice,
                and for a strength that none may have.
        """
        known = self.of(entry)
        names = {each.name for each in known}
        found: dict[str, float] = {}
        for key, scale in wanted.items():
            is_number = key not in names and key.isdigit() and int(key) < len(known)
            name = known[int(key)].name if is_number else key
            if name not in names:
                have = ", ".join(map(repr, names)) or "none"
                raise RequestError(
                    f"lora (or lora_path): {entry.full_name} has no adapter {key[:100]!r} "
                    f"(it has: {have})"
                )
            if name in found:
                raise RequestError(f"lora: the adapter {name!r} is there twice, as {key!r} too")
            check_strength(name, scale)
            found[name] = scale
        if entry.adapter is not None:
            return {entry.adapter: 1.0} | found
        return found or {each.name: each.scale for each in known if each.scale}

    def declare(self, adapter: ServedAdapter) -> None:
        """Let requests choose an adapter that is not loaded yet."""
        self._adapters[adapter.name] = adapter

    def withdraw(self, name: str) -> None:
        """Let requests no longer choose an adapter; an unknown one is fine."""
        self._adapters.pop(name, None)

    async def load(
        self, models: ModelManager, entry: Entry, name: str, path: Path, *, in_place: bool
    ) -> None:
        """Load an adapter into a model's process, and keep it for later ones.

        Args:
            models: have the model, or load it.
            entry: the model.
            name: of the adapter.
            path: its GGUF file or its folder.
            in_place: whether it takes the place of one of the same name.

        Raises:
            TampuError: if it cannot be loaded, or the name is taken.
        """
        if not path.exists():
            raise NotFoundError(f"lora_path: the folder of adapters has no {path.name!r}")
        async with models.use(entry, {}, None) as model:
            file = await asyncio.to_thread(adapter_file, path, Path(entry.info.path), self._cache)
            if in_place and name in self._adapters:
                await self.remove(name, model)
            await self._add(model, ServedAdapter(name, entry.name, file))

    async def unload(self, models: ModelManager, name: str) -> None:
        """Unload an adapter; requests that run keep it.

        Raises:
            NotFoundError: if there is none of this name.
        """
        adapter = self.find(name)
        if adapter is None:
            raise NotFoundError(f"adapter {name[:100]!r} not found")
        await self.remove(name, models.find(adapter.base))

    async def set_scales(self, scales: Mapping[str, float]) -> None:
        """Set the strengths of adapters in requests that choose none."""
        for name, scale in scales.items():
            self._adapters[name].scale = scale

    async def _add(self, model: ManagedModel, adapter: ServedAdapter) -> None:
        taken = self.find(adapter.name)
        check_may_add(adapter.name, taken.base if taken else None, self._adapters)
        self._adapters[adapter.name] = adapter
        try:
            await self.provide(model, {adapter.name: 1.0})
        except BaseException:
            del self._adapters[adapter.name]
            raise

    async def remove(self, name: str, model: ManagedModel | None) -> None:
        """Unload an adapter; requests that run keep it.

        Args:
            name: of the adapter.
            model: its model, if it is in memory.
        """
        del self._adapters[name]
        if model is None or not model.runner.is_alive:
            return
        async with model.adapter_turn:
            if name in model.adapters:
                model.adapters.remove(name)
                await model.runner.ask(ChangeAdapter(name))

    async def provide(self, model: ManagedModel, chosen: Mapping[str, float]) -> None:
        """Have a model's process load what a request chose and it has not.

        Raises:
            TampuError: if one cannot be loaded.
        """
        for name in chosen:
            async with model.adapter_turn:
                adapter = self.find(name)
                if adapter is None or name in model.adapters:
                    continue
                await model.runner.ask(ChangeAdapter(name, sent_path(adapter.path)))
                model.adapters.add(name)


def check_may_add(name: str, taken_by: str | None, known: Sized) -> None:
    """Check that an adapter may be added.

    Args:
        name: of the adapter.
        taken_by: the model of another one of this name; None: there is none.
        known: all others.

    Raises:
        RequestError: if the name is taken, or there are too many.
    """
    if taken_by is not None:
        raise RequestError(f"an adapter {name!r} of {taken_by} is loaded already")
    if len(known) >= MAX_ADAPTERS:
        raise RequestError(f"there are {MAX_ADAPTERS} adapters: unload one first")
