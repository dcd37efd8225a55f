"""Stores with small models in them."""

from __future__ import annotations

from typing import Any

import msgspec

from tampu.store import Descriptor, Manifest, Media, ModelConfig, ModelName, Store
from tampu.store.manifests import CONFIG_TYPE, encode_config
from tampu.store.model import StoredModel

KINDS = {
    "model": Media.MODEL,
    "projector": Media.PROJECTOR,
    "adapter": Media.ADAPTER,
    "template": Media.TEMPLATE,
    "system": Media.SYSTEM,
    "params": Media.PARAMS,
    "messages": Media.MESSAGES,
    "license": Media.LICENSE,
}


def add_model(
    store: Store | None, name: str, config: ModelConfig = None, **layers: Any
) -> StoredModel:
    """Write a model whose layers have these contents, and return it."""
    layers = {"model": b"weights of " + name.encode(), **layers}
    with store.lease() as lease:
        descriptors = []
        for kind, content in layers.items():
            content = content if isinstance(content, bytes) else msgspec.json.encode(content)
            descriptors.append(
                Descriptor(KINDS[kind], store.blobs.put(content, lease), len(content))
            )
        head = encode_config(config or ModelConfig(model_format="gguf", model_family="llama"))
        described = Descriptor(CONFIG_TYPE, store.blobs.put(head, lease), len(head))
        manifest = Manifest(config=described, layers=descriptors)
        return store.write(ModelName.parse(name), manifest)


def names(store: Store | None) -> list[Any]:
    """The short names of a store's models, in alphabetical order."""
    return sorted(model.name.short for model in store.listing().models)


def files(store: Store | None) -> dict[Any, Any]:
    """All that lies in a store, but for what only locks: path -> content."""
    return {
        str(path.relative_to(store.root)): path.read_bytes()
        for path in sorted(store.root.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


def blob_names(store: Store | None) -> list[Any]:
    """The names of the files in the folder of blobs."""
    return sorted(path.name for path in store.layout.blobs.iterdir())
