"""The adapters of a cluster: named when a model is deployed, or loaded while it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from tampu.errors import ModelNotFoundError
from tampu.server.serving.served_adapters import ServedAdapter
from tampu.settings.settings import Settings
from tampu.store.catalog import Entry, adapter_file

Declared = Mapping[str, Mapping[str, str]]
"""The adapters that a configuration names: their files by their names, by their models."""


class DeployedAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter that requests may choose.

    Attributes:
        name: by which they do.
        model: as the configuration names it.
        file: its file or folder, a path, or a name in each node's folder of adapters.
        number: of the change that loaded it; 0: the configuration names it.
        scale: its strength in requests that choose none.
    """

    name: str
    model: str
    file: str
    number: int = 0
    scale: float = 0.0

    @property
    def content(self) -> tuple[str, int]:
        """What its weights follow from."""
        return self.file, self.number


class AdapterList(msgspec.Struct, frozen=True, kw_only=True):
    """All adapters of an application.

    Attributes:
        version: higher after each change.
        declared: those of the configuration.
        adapters: that there are.
    """

    version: int = 0
    declared: Declared = {}
    adapters: tuple[DeployedAdapter, ...] = ()

    def find(self, name: str) -> DeployedAdapter | None:
        """Return the adapter of a name; None if there is none."""
        return next((each for each in self.adapters if each.name == name), None)

    def changed(self, *adapters: DeployedAdapter) -> AdapterList:
        """Return the next version, with these adapters."""
        return msgspec.structs.replace(self, version=self.version + 1, adapters=adapters)

    def with_declared(self, declared: Declared) -> AdapterList:
        """Return the next version, for another configuration.

        What was changed while it ran stays where the configuration says the same as before.
        """
        before, now = {*declared_adapters(self.declared)}, {*declared_adapters(declared)}
        names = {each.name for each in now - before}
        gone = {each.name for each in before - now}
        stay = [
            each
            for each in self.adapters
            if each.model in declared
            and each.name not in names
            and not (each.name in gone and each.number == 0)
        ]
        new = [each for each in declared_adapters(declared) if each.name in names]
        found = self.changed(*stay, *new)
        return msgspec.structs.replace(found, declared=declared)


def declared_adapters(declared: Declared) -> Iterator[DeployedAdapter]:
    """Yield the adapters that a configuration names."""
    for model, files in declared.items():
        for name, file in files.items():
            yield DeployedAdapter(name=name, model=model, file=file)


def adapter_on_node(name: str, file: str, entry: Entry, settings: Settings) -> ServedAdapter:
    """Return an adapter of a model, with its file on this node.

    Args:
        name: of the adapter.
        file: its file or folder: a path, or a name in the settings' folder of adapters.
        entry: the model.
        settings: of the node.

    Raises:
        TampuError: if the node does not have it, or a folder is not an adapter of the model.
    """
    path = (settings.adapters or Path()) / file
    if settings.adapters is None and not path.is_absolute():
        raise ModelNotFoundError(
            f"adapter {name!r}: {file} is not a path, and TAMPU_ADAPTERS, the folder of "
            "adapters, is not set"
        )
    found = adapter_file(path, Path(entry.info.path), settings.cache)
    return ServedAdapter(name, entry.name, found)
