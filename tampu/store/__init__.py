"""The model store: names, blobs, manifests, and transfers from and to registries.

Start with `Store`: `store.listing()`, `store.model(ModelName.parse("llama3.2"))`. To add a model,
take a lease, put the blobs, write the manifest:

    with store.lease() as lease:
        digest = store.blobs.put(b"...", lease)
        ...
        store.write(name, manifest)

Everything here is synchronous and independent of the HTTP server and the command line.
"""

from tampu.store.blobs import Blobs, BlobWriter
from tampu.store.locks import Lease
from tampu.store.manifests import Descriptor, Manifest, Media, ModelConfig
from tampu.store.model import StoredModel
from tampu.store.names import Digest, ModelName
from tampu.store.store import Store
from tampu.store.stored_models import DamagedEntry, Listing

__all__ = [
    "BlobWriter",
    "Blobs",
    "DamagedEntry",
    "Descriptor",
    "Digest",
    "Lease",
    "Listing",
    "Manifest",
    "Media",
    "ModelConfig",
    "ModelName",
    "Store",
    "StoredModel",
]
