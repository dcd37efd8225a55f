"""The catalog of a cluster: the models that are deployed, of all that this node has."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path

from tampu.errors import ModelNotFoundError
from tampu.settings.settings import Settings
from tampu.store.catalog import Catalog, Entry
from tampu.store.library import Library, bare_name
from tampu.store.local_model import LocalModel
from tampu.store.registry.missing import pull_missing
from tampu.store.registry.options import RemoteOptions


def node_catalog(models: Sequence[str], settings: Settings) -> Catalog:
    """Return all models of this node, and those of the names that are paths of files."""
    files = [path for path in map(Path, models) if path.is_file()]
    return Catalog(library=Library.from_settings(settings, files))


def find_on_node(model: str, settings: Settings, remote: RemoteOptions | None = None) -> Entry:
    """Return a model of this node, by its name or the path of its file.

    Args:
        model: the name or the path.
        settings: where the node has models.
        remote: how it is pulled if the node does not have it, once for all that ask on the node;
            None: it is not.

    Raises:
        TampuError: if the node does not have it, and it cannot be pulled; or it is damaged.
    """
    if remote is not None:
        pull_missing(model, settings, remote, lambda steps: deque(steps, maxlen=0))
    path, catalog = Path(model), node_catalog([model], settings)
    if not path.is_file():
        return catalog.describe(model)
    for each in catalog.library.listing().models:
        if not each.stored and each.path.samefile(path):
            return catalog.describe(each.name)
    raise ModelNotFoundError(f"{model} is not a valid model file")


class DeployedCatalog(Catalog):
    """The models that are deployed."""

    def __init__(self, models: Sequence[str], settings: Settings) -> None:
        """Allow these models alone.

        Raises:
            TampuError: if this node does not have one of them.
        """
        super().__init__(library=node_catalog(models, settings).library)
        self.deployed = {find_on_node(each, settings).name: each for each in models}

    def names(self) -> list[str]:
        """Return the names of the deployed models."""
        return [*self.deployed]

    def find(self, name: str) -> LocalModel:
        """Return the model of a name; ModelNotFoundError if it is not deployed."""
        found = super().find(name)
        if bare_name(found.name) not in self.deployed:
            there = ", ".join(self.deployed)
            raise ModelNotFoundError(f"model {name!r} is not deployed (there are: {there})")
        return found

    def entries(self) -> list[Entry]:
        """Return the deployed models, last modified first."""
        return [each for each in super().entries() if each.name in self.deployed]
