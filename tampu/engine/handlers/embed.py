"""Embeddings of texts, images and sounds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import msgspec
import numpy as np

from tampu.chat.media import Item, length
from tampu.engine.backend import Handlers
from tampu.engine.captures import CaptureStore, check_size
from tampu.engine.completion import RequestHandle
from tampu.engine.native import NativeModel
from tampu.engine.pooling import MEAN, NONE, RANK, late_chunked, pooled
from tampu.engine.prompts import ItemsPrompt, TextPrompt, TokensPrompt
from tampu.engine.request_builder import RequestBuilder, known_tokens
from tampu.engine.requests import Embed, Embedded
from tampu.engine.scoring import AT_ONCE, run_all
from tampu.errors import ContextLengthError, RequestError
from tampu.ml import Backend
from tampu.ml.vectors import UNIT, check_finite, scaled, unit_vectors
from tampu.runner.events import Done, Event
from tampu.runner.generate_options import GenerateOptions
from tampu.runner.layout import NumberedMedia
from tampu.runner.pooled import compute_rows
from tampu.runner.sequence import RowCollector, Rows, Sink
from tampu.tokenizer.prompts import EmbeddingPrompts

_NO_POOLING = (
    "the model has no pooling, so a text has a vector for each of its tokens: POST "
    "/embeddings has these; or set TAMPU_POOLING to mean, cls or last"
)


def embed(model: NativeModel, request: Embed) -> Embedded:
    """Return the embeddings of texts, images and sounds.

    Raises:
        ContextLengthError: for an input that is too long and may not be cut.
        RequestError: if the model has none of the wanted kind.
    """
    name = model.info.name
    if model.decision_prompts is not None:
        raise RequestError(f"{name} has no embeddings: it answers questions (decide)")
    if model.pooling == RANK:
        raise RequestError(f"{name} has no embeddings: it ranks documents (rerank)")
    if model.pooling == NONE:
        _check_unpooled(request)
    texts, dropped = embedded_tokens(model.requests, request)
    if not texts:
        return Embedded(b"", model.info.embedding_length_out, 0)
    options = request.engine_options
    stores = _capture_stores(model, texts, request)
    if request.late_chunking:
        vectors = _late_chunks(model, texts, request)
    else:
        states = states_of(model, texts, options, model.pooling, stores)
        vectors = np.concatenate(states).astype(np.float32)
    captured = tuple(store.result().encoded() for store in stores)
    graphs = model.model.graphs
    if graphs.model.has_dense:
        vectors = compute_rows(graphs.backend, graphs.model.after_pooling, vectors)
    counts = tuple(map(length, texts))
    if model.pooling == NONE:
        return result(vectors, sum(counts), dropped, counts, captured)
    return result(sized(vectors, request), sum(counts), dropped, captured=captured)


def prompted(request: Embed, prompts: EmbeddingPrompts) -> Embed:
    """Return a request with one of the model's prompts in its texts.

    Raises:
        RequestError: for a prompt that the model does not have, or that cannot be put there.
    """
    before = prompts.find(request.prompt)
    if not before:
        return request
    if request.late_chunking:
        raise RequestError('late_chunking computes all inputs as one text: set prompt to ""')
    if request.prompt and not all(isinstance(each, TextPrompt) for each in request.inputs):
        raise RequestError("prompt is put before texts, not before tokens or images")
    inputs = tuple(
        msgspec.structs.replace(each, text=before + each.text)
        if isinstance(each, TextPrompt)
        else each
        for each in request.inputs
    )
    return msgspec.structs.replace(request, inputs=inputs)


def embedded_tokens(requests: RequestBuilder, request: Embed) -> tuple[list[Sequence[Item]], int]:
    """Return the tokens of each input, and how many more did not fit the context.

    With `late_chunking` they have no begin and end tokens, and none is cut. Texts have the model's
    prompt in front. What has images or sounds is never cut.

    Raises:
        ContextLengthError: for one that is too long and may not be cut.
        RequestError: as `prompted`; for an image or a sound that the model does not take.
    """
    request = prompted(request, requests.embedding_prompts)
    tokenizer, context = requests.tokenizer, requests.context
    texts: list[Sequence[Item]] = []
    dropped = 0
    for index, given in enumerate(request.inputs):
        tokens = _tokens(requests, given, late_chunking=request.late_chunking)
        if (count := length(tokens)) > context and not request.late_chunking:
            if not request.truncate or count > len(tokens):
                # As llama-server's message does, for clients that look for these words.
                what = f"{request.field}[{index}] is too large"
                error = ContextLengthError.of(count, context, what)
                raise error.without_truncation() if count > len(tokens) else error
            dropped += len(tokens) - context
            tokens = _cut(tokens, context, tokenizer.encode(""))
        texts.append(tokens)
    return texts, dropped


def _tokens(
    requests: RequestBuilder,
    given: TextPrompt | TokensPrompt | ItemsPrompt,
    *,
    late_chunking: bool,
) -> list[Item]:
    """Return the tokens of an input, with its images and sounds."""
    tokenizer = requests.tokenizer
    if isinstance(given, ItemsPrompt):
        return [*given.items]
    if not isinstance(given, TextPrompt):
        return [*known_tokens(given.tokens, tokenizer)]
    if not given.media:
        return [*tokenizer.encode(given.text, add_special=not late_chunking)]
    if late_chunking:
        raise RequestError("late_chunking is for texts alone, without images or sounds")
    return requests.prompt(given).tokens + tokenizer.around[1]


def sized(vectors: Rows, request: Embed) -> Rows:
    """Return vectors (texts, features) of any length, cut and scaled as a request wants.

    Raises:
        RequestError: if they have fewer `dimensions`.
    """
    if request.dimensions is not None:
        width = vectors.shape[1]
        if not 0 < request.dimensions <= width:
            raise RequestError(
                f"dimensions must be 1 to {width} for this model, not {request.dimensions}"
            )
        vectors = vectors[:, : request.dimensions]
    if request.norm == UNIT:
        return unit_vectors(vectors)
    return vectors if request.norm < 0 else scaled(vectors, request.norm)


def result(
    vectors: Rows,
    tokens: int,
    dropped: int = 0,
    lengths: tuple[int, ...] = (),
    captured: tuple[bytes, ...] = (),
) -> Embedded:
    """Return vectors (texts or tokens, features) as the result of a request."""
    data = np.ascontiguousarray(vectors, "<f4").tobytes()
    width = int(vectors.shape[1])
    return Embedded(data, width, tokens, dropped, lengths, captured=captured)


def _check_unpooled(request: Embed) -> None:
    """Refuse a request that needs pooling, for a model without."""
    if not request.may_be_unpooled:
        raise RequestError(_NO_POOLING)
    if request.dimensions is not None:
        raise RequestError("dimensions need pooling, and the model has none")


def _cut(tokens: list[Item], limit: int, around: Sequence[Item]) -> list[Item]:
    """Return the first tokens of a text, and the last of `around`, which are put around texts.

    As in transformers, what is put behind a text stays: a model may pool its last token.
    """
    ends = range(len(around), 0, -1)
    end = next((count for count in ends if tokens[-count:] == [*around[-count:]]), 0)
    return [*tokens[: limit - end], *tokens[len(tokens) - end :]]


def _capture_stores(
    model: NativeModel, texts: Sequence[Sequence[Item]], request: Embed
) -> list[CaptureStore]:
    """Return what keeps the values of each text that a request captures; nothing: it has none.

    Raises:
        RequestError: as `plan_capture`, for the size of all together too.
        OutOfMemoryError: if all of it does not fit into memory.
    """
    options = request.capture
    if options is None:
        return []
    if request.late_chunking:
        raise RequestError(f"{options.field} is not supported with late_chunking")
    plans = []
    for text in texts:
        media = [item for item in text if isinstance(item, NumberedMedia)]
        count = length(text)
        plans.append(model.inputs.plan_capture(options, count, count, media))
    check_size(options, plans)
    free = Backend.available_memory()
    for plan in plans:
        plan.check_memory(free)
        free -= plan.needed_bytes
    return [*map(CaptureStore, plans)]


def states_of(
    model: NativeModel,
    texts: Sequence[Sequence[Item]],
    options: GenerateOptions,
    pooling: str,
    stores: Sequence[CaptureStore] = (),
) -> list[Rows]:
    """Return the pooled hidden states (1, features) of each text, or (tokens, features).

    `stores` get the values that are captured of each text; without them nothing is.
    """
    rows: list[Rows] = [np.empty(0, np.float32)] * len(texts)

    def begin(index: int, sink: Sink) -> RequestHandle:
        hidden: list[Rows] = []

        def pool(event: Event) -> None:
            if isinstance(event, Done) and event.reason != "cancelled":
                rows[index] = pooled(np.concatenate(hidden), pooling)
            sink(event)

        collector = RowCollector(hidden.append, wants_logits=False)
        capture = stores[index].capture if stores else None
        return model.inputs.collect(texts[index], collector, pool, options, capture=capture)

    run_all(range(len(texts)), begin, at_once=AT_ONCE)
    check_finite(rows, "embeddings", "input")
    return rows


def _late_chunks(model: NativeModel, chunks: Sequence[Sequence[Item]], request: Embed) -> Rows:
    """Return the embeddings of texts that are computed as one."""
    field = request.field
    if model.pooling != MEAN:
        raise RequestError(f"late_chunking needs mean pooling; the model's is {model.pooling}")
    empty = next((index for index, chunk in enumerate(chunks) if not chunk), None)
    if empty is not None:
        raise RequestError(f"{field}[{empty}] is empty: with late_chunking each must have tokens")
    begin, end = model.tokenizer.around
    whole = [*begin, *chain.from_iterable(chunks), *end]
    if (count := length(whole)) > model.context:
        what = f"{field} with late_chunking is too large"
        raise ContextLengthError.of(count, model.context, what)
    hidden = model.inputs.rows(whole, request.engine_options, wants_logits=False)
    found = late_chunked(hidden, [*map(length, chunks)], len(begin))
    check_finite(found, "embeddings", "input")
    return found


HANDLERS: Handlers = {Embed: embed}
