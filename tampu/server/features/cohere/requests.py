"""Embeddings in Cohere's form: the struct of requests, and the response."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from tampu.chat.media import MediaFile
from tampu.engine.prompts import TextPrompt
from tampu.engine.requests import Embedded
from tampu.errors import RequestError, require
from tampu.server.fields.adapters import AdapterBody, chosen_adapters
from tampu.server.fields.conversation import check_media_count
from tampu.server.fields.media import decode_image
from tampu.server.fields.media_parts import Parts, media_prompt
from tampu.server.fields.options import MAX_INPUTS, ModelBody, embedding_call
from tampu.server.openai.embeddings import in_base64
from tampu.server.openai.fields import read_parts
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
    images: list[str] | None = None
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
        inputs=_read_inputs(body, defaults),
        dimensions=body.output_dimension,
        may_be_unpooled=False,
        lora=chosen_adapters(body.lora, body.lora_path) or {},
    )


def _read_inputs(body: CohereEmbedRequest, defaults: ModelDefaults) -> tuple[TextPrompt, ...]:
    """Return the texts of a request, or its images, or inputs of both."""
    given = {"texts": body.texts, "inputs": body.inputs, "images": body.images}
    fields = [name for name, value in given.items() if value is not None]
    require(len(fields) == 1, "texts: give them, or inputs, or images")
    [field] = fields
    inputs: list[Parts] = [[text] for text in body.texts or ()]
    inputs += [_parts(each, f"inputs[{index}]") for index, each in enumerate(body.inputs or ())]
    for index, image in enumerate(body.images or ()):
        inputs.append([decode_image(image, f"images[{index}]", is_uri=True)])
    require(0 < len(inputs) <= MAX_INPUTS, f"{field}: there must be 1 to {MAX_INPUTS}")
    check_media_count(sum(isinstance(part, MediaFile) for parts in inputs for part in parts))
    return tuple(media_prompt(parts, body.model or "", defaults) for parts in inputs)


def _parts(given: dict[str, Any], where: str) -> Parts:
    parts = given.get("content")
    if not isinstance(parts, list) or not parts:
        raise RequestError(f"{where}.content must be a list of parts")
    return [*read_parts(parts, f"{where}.content")]


def _texts(body: CohereEmbedRequest) -> list[str]:
    """Return the text of each input; "" if it has none."""
    if body.inputs is None:
        return body.texts or []
    parts = [each["content"] for each in body.inputs]
    return ["".join(part.get("text", "") for part in content) for content in parts]


def cohere_embeddings(body: CohereEmbedRequest, vectors: Vectors, tokens: int) -> dict[str, Any]:
    """Return the response; without `embedding_types` it has `float`."""
    kinds = dict.fromkeys(body.embedding_types or ["float"])
    return {
        "id": str(uuid4()),
        "response_type": "embeddings_by_type",
        "embeddings": {kind: _TYPES[kind](vectors) for kind in kinds},
        "texts": _texts(body),
        "meta": {"api_version": {"version": "2"}, "billed_units": {"input_tokens": tokens}},
    }
