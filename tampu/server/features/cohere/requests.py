"""Embeddings in Cohere's form: the struct of requests, and the response."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from tampu.engine.prompts import TextPrompt
from tampu.engine.requests import Embedded
from tampu.errors import RequestError, require
from tampu.server.fields.adapters import AdapterBody, chosen_adapters
from tampu.server.fields.options import MAX_INPUTS, ModelBody, embedding_call
from tampu.server.fields.tools import shortened
from tampu.server.openai.embeddings import in_base64
from tampu.server.serving.generation_request import ModelCall
from tampu.server.serving.model_defaults import ModelDefaults

Vectors = npt.NDArray[np.float32]


def _signs(vectors: Vectors) -> npt.NDArray[np.uint8]:
    return np.packbits(vectors > 0, axis=1)


_TYPES: Mapping[str, Callable[[Vectors], list[Any]]] = {
    "float": lambda vectors: vectors.tolist(),
    "base64": lambda vectors: [in_base64(row) for row in vectors],
    "ubinary": lambda vectors: _signs(vectors).tolist(),
    "binary": lambda vectors: (_signs(vectors).astype(np.int16) - 128).tolist(),
}
_TRUNCATE = {"NONE": False, "END": True}


class CohereEmbedRequest(AdapterBody, kw_only=True):
    """`POST /v2/embed`; `input_type` and `priority` have no effect."""

    texts: list[str] | None = None
    inputs: list[dict[str, Any]] | None = None
    images: Any = None
    input_type: str | None = None
    embedding_types: list[str] | None = None
    output_dimension: int | None = None
    max_tokens: Any = None
    priority: int | None = None
    truncate: str | bool | None = None  # type: ignore[assignment]  # Cohere's are words


def parse_cohere_embed(body: CohereEmbedRequest, defaults: ModelDefaults) -> ModelCall[Embedded]:
    """Return what a request asks.

    Raises:
        RequestError: naming the field that is wrong.
    """
    require(not body.images, "images are not supported: a text has an embedding")
    require(body.max_tokens is None, "max_tokens is not supported")
    for kind in body.embedding_types or ():
        known = f"embedding_types must be of {', '.join(_TYPES)}, not {kind[:50]!r}"
        require(kind in _TYPES, known)
    word = body.truncate
    is_known = word is None or word in _TRUNCATE
    require(is_known, f"truncate must be {' or '.join(_TRUNCATE)}, not {word!r:.50}")
    plain = ModelBody(
        model=body.model,
        options=body.options,
        keep_alive=body.keep_alive,
        truncate=None if word is None else _TRUNCATE[str(word)],
        truncation=body.truncation,
    )
    return embedding_call(
        plain,
        defaults,
        truncates=True,
        inputs=tuple(TextPrompt(text) for text in read_texts(body)),
        dimensions=body.output_dimension,
        may_be_unpooled=False,
        lora=chosen_adapters(body.lora, body.lora_path) or {},
    )


def read_texts(body: CohereEmbedRequest) -> list[str]:
    """Return the texts of a request, those of `inputs` with their parts joined."""
    require((body.texts is None) != (body.inputs is None), "texts: give them, or inputs")
    field = "inputs" if body.texts is None else "texts"
    texts = body.texts
    if texts is None:
        texts = [_text(each, f"inputs[{index}]") for index, each in enumerate(body.inputs or ())]
    require(0 < len(texts) <= MAX_INPUTS, f"{field}: there must be 1 to {MAX_INPUTS}")
    return texts


def _text(given: dict[str, Any], where: str) -> str:
    parts = given.get("content")
    require(isinstance(parts, list) and bool(parts), f"{where}.content must be a list of parts")
    found = []
    for index, part in enumerate(parts or ()):
        match part:
            case {"type": "text", "text": str(text)}:
                found.append(text)
            case _:
                place = f"{where}.content[{index}]"
                raise RequestError(f"{place} must be of the type text, not {shortened(part)}")
    return "".join(found)


def cohere_embeddings(body: CohereEmbedRequest, vectors: Vectors, tokens: int) -> dict[str, Any]:
    """Return the response; without `embedding_types` it has `float`."""
    kinds = dict.fromkeys(body.embedding_types or ["float"])
    return {
        "id": str(uuid4()),
        "response_type": "embeddings_by_type",
        "embeddings": {kind: _TYPES[kind](vectors) for kind in kinds},
        "texts": read_texts(body),
        "meta": {"api_version": {"version": "2"}, "billed_units": {"input_tokens": tokens}},
    }
