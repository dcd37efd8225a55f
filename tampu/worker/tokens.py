"""The commands of a worker that generate no text: embeddings, decisions, tokens, formats, adapters.

And what the model does, for watchers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from tampu.cancellation import check_cancelled
from tampu.chat.images import Item
from tampu.engine.adapters import Adapters
from tampu.engine.chat import known_tokens
from tampu.engine.estimate import estimate_memory
from tampu.engine.prompts import ChatPrompt, TextPrompt
from tampu.engine.snapshots import Snapshots
from tampu.errors import ContextLengthError, RequestError
from tampu.worker.loaded import Loaded
from tampu.worker.protocol import (
    ActedOnSlot,
    ActOnSlot,
    AdapterChanged,
    ChangeAdapter,
    CheckFormat,
    Decide,
    Decided,
    Decode,
    Decoded,
    Embed,
    Embedded,
    Encode,
    Encoded,
    EstimateMemory,
    FormatChecked,
    ListPrefixes,
    MemoryEstimated,
    Observe,
    Observed,
    Prefixes,
    Rerank,
)

_BLOCK = 1 << 16  # tokens; between two blocks, and often within one, other threads run


def token_ids(items: Sequence[Item]) -> tuple[int, ...]:
    """Return a prompt's tokens, with the placeholders of images."""
    return tuple(
        token for item in items for token in ((item,) if isinstance(item, int) else item.tokens)
    )


def embedded(loaded: Loaded, command: Embed) -> Iterator[Embedded]:
    """Yield the embeddings of texts, all together.

    Raises:
        ContextLengthError: for one that is too long and may not be cut.
    """
    tokenizer, context = loaded.model.tokenizer, loaded.model.context
    texts, dropped = [], 0
    for index, given in enumerate(command.inputs):
        if isinstance(given, TextPrompt):
            tokens = tokenizer.encode(given.text, add_special=not command.late_chunking)
        else:
            tokens = known_tokens(given.tokens, tokenizer)
        if command.late_chunking:
            texts.append(tokens)  # `embed` says what is too long
            continue
        if len(tokens) > context and not command.truncate:
            # As llama-server's message does, for clients that look for these words.
            what = f"input[{index}] is too large"
            raise ContextLengthError.of(len(tokens), context, what)
        texts.append(tokens[:context])
        dropped += len(tokens) - len(texts[-1])
    vectors = loaded.model.embed(
        texts,
        normalize=command.normalize,
        late_chunking=command.late_chunking,
        lora=command.lora,
    )
    vectors = vectors.astype("<f4")
    counts = tuple(map(len, texts))
    lengths = () if loaded.ready.has_pooling else counts
    yield Embedded(vectors.tobytes(), int(vectors.shape[1]), sum(counts), dropped, lengths)


def encoded(loaded: Loaded, command: Encode) -> Iterator[Encoded]:
    """Yield the tokens of a prompt, those of long ones in parts."""
    tokenizer = loaded.model.tokenizer
    tokens: Sequence[int]
    if command.detail == "text" and isinstance(command.prompt, ChatPrompt):
        text = loaded.requests.prompt_text(command.prompt)
        yield Encoded(0, pieces=text.encode("utf-8", "replace"))
        return
    if isinstance(command.prompt, TextPrompt):
        tokens = tokenizer.encode(
            command.prompt.text,
            add_special=command.add_special,
            parse_special=command.parse_special,
        )
    else:
        built = loaded.requests.prompt(command.prompt, context=sys.maxsize)
        tokens = token_ids(built.tokens)
    if command.detail == "count":
        yield Encoded(len(tokens))
        return
    texts: dict[int, bytes] = {}
    for begin in range(0, max(len(tokens), 1), _BLOCK):
        check_cancelled()
        block = tokens[begin : begin + _BLOCK]
        part = Encoded(len(block), _packed(block), has_more=begin + _BLOCK < len(tokens))
        if command.detail == "pieces":
            texts |= {token: tokenizer.token_bytes(token) for token in {*block} - texts.keys()}
            pieces = [texts[token] for token in block]
            control = {token: tokenizer.token_text(token) for token in block if not texts[token]}
            lengths = _packed([*map(len, pieces)])
            part = replace(part, pieces=b"".join(pieces), lengths=lengths, control=control)
        yield part


def _packed(numbers: Sequence[int]) -> bytes:
    """Return numbers as little-endian I32."""
    return np.array(numbers, "<i4").tobytes()


def decoded(loaded: Loaded, command: Decode) -> Iterator[Decoded]:
    """Yield the text of tokens."""
    tokenizer = loaded.model.tokenizer
    yield Decoded(tokenizer.decode(known_tokens(command.tokens, tokenizer)))


def format_checked(loaded: Loaded, command: CheckFormat) -> Iterator[FormatChecked]:
    """Yield that an output format can be used.

    Raises:
        GrammarError: if it cannot.
    """
    loaded.requests.check_format(command.format)
    yield FormatChecked()


def decided(loaded: Loaded, command: Decide) -> Iterator[Decided]:
    """Yield the answers to questions."""
    yield Decided(loaded.requests.decide(command.prompt, command.questions, command.lora))


def reranked(loaded: Loaded, command: Rerank) -> Iterator[Decided]:
    """Yield whether documents match a query."""
    found = loaded.requests.rerank(
        command.query, command.documents, command.instruction, command.lora
    )
    yield Decided(found)


def memory_estimated(_: Loaded, command: EstimateMemory) -> Iterator[MemoryEstimated]:
    """Yield what a model would take."""
    yield MemoryEstimated(estimate_memory(Path(os.fsdecode(command.path)), command.options))


def observed(loaded: Loaded, _: Observe) -> Iterator[Observed]:
    """Yield what the model has done since the last call."""
    yield Observed(loaded.observe())


def prefixes(loaded: Loaded, _: ListPrefixes) -> Iterator[Prefixes]:
    """Yield which prefixes are in the cache; none if another engine runs the model."""
    yield Prefixes(loaded.prefixes.listed())


def acted_on_slot(loaded: Loaded, command: ActOnSlot) -> Iterator[ActedOnSlot]:
    """Yield what was saved, restored or erased.

    Raises:
        RequestError: if another engine runs the model.
    """
    snapshots = getattr(loaded.model, "snapshots", None)
    if not isinstance(snapshots, Snapshots):
        raise RequestError("slots of this model cannot be saved: llama.cpp runs it")
    done = snapshots.act_on_slot(command.action, command.slot, Path(command.path))
    yield ActedOnSlot(done.tokens, done.size_bytes)


def adapter_changed(loaded: Loaded, command: ChangeAdapter) -> Iterator[AdapterChanged]:
    """Yield the names of the loaded adapters, after one was loaded or unloaded.

    Raises:
        RequestError: if another engine runs the model.
    """
    adapters = getattr(loaded.model, "adapters", None)
    if not isinstance(adapters, Adapters):
        raise RequestError("adapters of this model cannot be chosen: llama.cpp runs it")
    if command.path is None:
        adapters.unload(command.name)
    else:
        adapters.load(command.name, command.path)
    yield AdapterChanged(adapters.names)
