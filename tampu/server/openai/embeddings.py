"""Embeddings, in OpenAI's form and llama-server's: the struct of requests, and the responses."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tampu.chat.media import MediaFile
from tampu.engine.requests import Embedded
from tampu.errors import require
from tampu.ml.vectors import UNIT
from tampu.server.fields.adapters import AdapterBody, chosen_adapters
from tampu.server.fields.captures import captured_field, read_capture
from tampu.server.fields.conversation import check_media_count
from tampu.server.fields.media_parts import Parts, media_prompt
from tampu.server.fields.options import embedding_call
from tampu.server.openai.fields import Message, read_inputs
from tampu.server.openai.media_prompts import joined_messages, read_media
from tampu.server.serving.generation_request import ModelCall
from tampu.server.serving.model_defaults import ModelDefaults

_MAX_NORM = 8


class EmbeddingRequest(AdapterBody, kw_only=True):
    """`POST /v1/embeddings`, and llama-server's `/embedding`.

    The input is a text, tokens, or a list of either; llama-server's forms are accepted too:
    objects, which may have images and sounds, and tokens beside texts. `messages` are vLLM's: they
    are one input. `late_chunking` is Jina's; `content` and `embd_normalize` are
    llama-server's, and `prompt_name` that of Text Embeddings Inference.
    """

    input: Any = None
    content: Any = None
    messages: list[Message] | None = None
    encoding_format: str | msgspec.UnsetType | None = msgspec.UNSET
    dimensions: int | None = None
    late_chunking: bool | None = None
    prompt_name: str | None = None
    embd_normalize: int = UNIT
    pooling: Any = None
    images: Any = None
    include: list[str] | None = None
    include_positions: list[int] | None = None
    include_heads: list[int] | None = None

    def given(self) -> tuple[Any, str]:
        """Return what is to be embedded, and the name of its field; a text "" for messages."""
        require(self.content is None or self.input is None, "content and input: give one of them")
        if self.messages is not None:
            is_alone = self.content is None and self.input is None
            require(is_alone, "messages and input: give one of them")
            return "", "messages"
        return (self.input, "input") if self.content is None else (self.content, "content")

    def objects(self) -> list[Any]:
        """Return the contents of messages, and the inputs that are objects."""
        if self.messages is not None:
            return [each.content for each in self.messages]
        given, _ = self.given()
        items = given if isinstance(given, list) else [given]
        return [each for each in items if isinstance(each, dict)]

    def media(self) -> list[Parts | None]:
        """Return the parts of each input with images and sounds, and of messages; else None."""
        if self.messages is not None:
            return [joined_messages(self.messages)]
        return read_media(*self.given())


def parse_embedding(
    body: EmbeddingRequest,
    given: Any,
    media: list[Parts | None],
    defaults: ModelDefaults,
    may_be_unpooled: bool,  # noqa: FBT001
) -> ModelCall[Embedded]:
    """Return what a request asks.

    Args:
        body: of the request.
        given: its texts and tokens.
        media: as the method of the request returns them; those take the place of texts.
        defaults: of the model.
        may_be_unpooled: as in `Embed`.

    Raises:
        RequestError: naming the field that is wrong.
    """
    _, field = body.given()
    formats = (None, msgspec.UNSET, "float", "base64")
    require(body.encoding_format in formats, "encoding_format must be float or base64")
    message = 'images is not supported here: give {"content": [parts]} in input, or messages'
    require(not body.images, message)
    in_range = -1 <= body.embd_normalize <= _MAX_NORM
    require(in_range, f"embd_normalize must be -1 to {_MAX_NORM}, not {body.embd_normalize}")
    require(body.pooling is None, "pooling is set where the model is loaded: TAMPU_POOLING")
    message = f"{field} must be a text, tokens, or a list of either"
    require(isinstance(given, str | list), message)
    check_media_count(sum(isinstance(each, MediaFile) for parts in media for each in parts or ()))
    inputs = tuple(
        plain if parts is None else media_prompt(parts, body.model or "", defaults)
        for parts, plain in zip(media, read_inputs(given, field), strict=True)
    )
    return embedding_call(
        body,
        defaults,
        inputs=inputs,
        dimensions=body.dimensions,
        norm=body.embd_normalize,
        late_chunking=bool(body.late_chunking),
        prompt=body.prompt_name,
        may_be_unpooled=may_be_unpooled,
        lora=chosen_adapters(body.lora, body.lora_path) or {},
        capture=read_capture(body, defaults),
    )


def embedding_list(found: Embedded, model: str, *, is_base64: bool) -> dict[str, Any]:
    """Return OpenAI's response."""
    vectors, tokens = found.array(), found.tokens

    def item(index: int, row: npt.NDArray[np.float32]) -> dict[str, Any]:
        vector = in_base64(row) if is_base64 else row.tolist()
        values = captured_field(found.captured[index]) if found.captured else {}
        return {"object": "embedding", "index": index, "embedding": vector, **values}

    return {
        "object": "list",
        "data": [item(index, row) for index, row in enumerate(vectors)],
        "model": model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def in_base64(vector: npt.NDArray[np.float32]) -> str:
    """Return a vector as OpenAI and Cohere encode it: little-endian F32."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


def vector_lists(found: Embedded) -> list[dict[str, Any]]:
    """Return llama-server's response: each input has a list of vectors."""
    vectors, lengths = found.array(), found.lengths
    ends = np.cumsum(lengths)[:-1] if lengths else np.arange(1, len(vectors))
    parts = np.split(vectors, ends)
    captured = found.captured or [b""] * len(parts)
    return [
        {"index": index, "embedding": part.tolist(), **captured_field(own)}
        for index, (part, own) in enumerate(zip(parts, captured, strict=True))
    ]
