"""The adapters of a deployed model: named when it is deployed, loaded by each replica."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tampu.engine.scoring import NO_LORA, Lora
from tampu.errors import ModelNotFoundError
from tampu.server.model_manager import ManagedModel
from tampu.server.served_adapters import ServedAdapter, ServedAdapters
from tampu.settings.settings import Settings
from tampu.store.catalog import Entry, adapter_file
from tampu.worker.protocol import Decide, Embed, Generate, Request, Rerank


def adapters_on_node(
    adapters: Mapping[str, str], entry: Entry, settings: Settings
) -> ServedAdapters:
    """Return the adapters of a model, with their files on this node.

    Args:
        adapters: the file or folder of each, by its name: a path, or a name in the settings' folder
            of adapters.
        entry: the model.
        settings: of the node.

    Raises:
        TampuError: if the node does not have one, or a folder is not an adapter of the model.
    """
    found = ServedAdapters()
    for name, given in adapters.items():
        path = (settings.adapters or Path()) / given
        if settings.adapters is None and not path.is_absolute():
            raise ModelNotFoundError(
                f"adapter {name!r}: {given} is not a path, and TAMPU_ADAPTERS, the folder of "
                "adapters, is not set"
            )
        file = adapter_file(path, Path(entry.info.path), settings.cache)
        found.declare(ServedAdapter(name, entry.name, file))
    return found


class DeployedAdapters(ServedAdapters):
    """The adapters that requests to an ingress may choose; the replicas load them."""

    async def provide(self, model: ManagedModel, chosen: Lora) -> None:
        """Do nothing."""


def chosen_by(command: Request) -> Lora:
    """Return the adapters that a command is computed with."""
    match command:
        case Generate(options=options):
            return options.lora
        case Embed(lora=lora) | Decide(lora=lora) | Rerank(lora=lora):
            return lora
        case _:
            return NO_LORA
