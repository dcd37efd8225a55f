"""The public Python API over one loaded model.

    with Engine.load("model.gguf") as engine:
        print(engine.generate("Once upon a time", max_tokens=50).text)

The engine computes on threads of its own, so any thread may call it, and several may at once: their
requests are batched together, up to `slots` of them.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from tampu.catalog import resolve
from tampu.chat.prompt import PromptBuilder
from tampu.chat.template import ChatTemplate
from tampu.completion import Completion, Handle, Stream, checked, completion, fit_prompt, too_long
from tampu.errors import RequestError
from tampu.loading import LoadedModel, LoadOptions, load_model
from tampu.modelinfo import ModelInfo
from tampu.runner.events import Done, Event, Text
from tampu.runner.layout import Inputs, text_inputs
from tampu.runner.loop import Runner
from tampu.runner.request import GenerateOptions, generate_options
from tampu.runner.sequence import Collector, Rows, Sink
from tampu.runner.sequence import Sequence as RunningSequence
from tampu.runner.text import TextStream
from tampu.sampling import Sampler
from tampu.tokenizer import Tokenizer

log = logging.getLogger("tampu")

Prompt: TypeAlias = str | Sequence[int]
Message: TypeAlias = Mapping[str, Any]


class Engine:
    """One loaded model.

    Attributes:
        info: what the file says of the model.
        context: the most tokens of one request, prompt and answer together.
        tokenizer: of the model.
        template: its chat template; None if the file has none.
        load_ns: how long loading took.
    """

    def __init__(self, model: LoadedModel, load_ns: int) -> None:
        """Take over a loaded model; `Engine.load` is the usual way."""
        self._model = model
        self.info: ModelInfo = model.info
        self.context = model.options.context
        self.tokenizer: Tokenizer = model.tokenizer
        metadata = model.info.metadata
        self.template = ChatTemplate.from_metadata(metadata)
        self._prompts = PromptBuilder.for_model(self.template, self.tokenizer, metadata)
        self.load_ns = load_ns
        self._ledger = model.scheduler.ledger
        self.runner = Runner(model.scheduler, model.graphs, model.tokenizer)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        context: int = 4096,
        slots: int = 1,
        threads: int | None = None,
        batch: int = 512,
        cache_type: str = "f16",
        flash_attention: bool | None = None,
        kernels: str = "on",
        progress: Callable[[float], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Self:
        """Load a model.

        Args:
            path: of a GGUF file, or the name of a model that is known.
            context: the most tokens of one request.
            slots: the most requests that are computed together.
            threads: of the CPU; None: one for each physical core, one alone for a tiny model.
            batch: the most tokens that are computed at once.
            cache_type: of keys and values: f32, f16, q8_0 or q4_0.
            flash_attention: fused attention always, never, or where it is faster (None).
            kernels: what the package's own C code computes: on, off, products or attention.
            progress: called with the part loaded, 0 to 1, from any thread.
            cancelled: asked from time to time whether to give up.

        Raises:
            ModelNotFoundError: if there is no such model.
            ModelFileError: for a file that is damaged, incomplete or no model.
            UnsupportedModelError: for an architecture or tokeniser that is not known.
            OutOfMemoryError: if it does not fit, with the numbers.
            LoadCancelledError: if `cancelled` says so.
            RequestError: for an option out of its range.
        """
        began = time.monotonic_ns()
        options = LoadOptions(
            context=context,
            slots=slots,
            threads=threads,
            batch=batch,
            cache_type=cache_type,
            flash_attention=flash_attention,
            kernels=kernels,
        )
        model = load_model(resolve(str(path)), options, progress=progress, cancelled=cancelled)
        return cls(model, time.monotonic_ns() - began)

    def close(self) -> None:
        """End all requests and free the model; twice is harmless."""
        self.runner.close()
        self._model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- tokens ----------------------------------------------------------------------------------

    def tokenize(
        self,
        text: str,
        add_special: bool = True,  # noqa: FBT001, FBT002 - as Hugging Face's
        parse_special: bool = True,  # noqa: FBT001, FBT002
    ) -> list[int]:
        """Return a text's token ids.

        Args:
            text: to encode.
            add_special: put the model's beginning token in front, if it wants one.
            parse_special: read control tokens written in the text as tokens.
        """
        return self.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, without control tokens."""
        return self.tokenizer.decode(ids)

    # -- generating ------------------------------------------------------------------------------

    def generate(self, prompt: Prompt, **options: object) -> Completion:
        """Return the model's continuation of a prompt.

        Args:
            prompt: text or token ids.
            options: the fields of `GenerateOptions`.

        Raises:
            RequestError: for an unknown option or a value out of its range.
            ContextLengthError: for a prompt longer than the context.
            ComputeError: if the model gives no usable result.
        """
        return completion(self.stream(prompt, **options))

    def stream(self, prompt: Prompt, **options: object) -> Stream:
        """Return the continuation piece by piece, `Done` last; closing the iterator cancels.

        Raises:
            As `generate`.
        """
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        handle = self.submit(prompt, generate_options(options), events.put)
        return Stream(events, handle)

    def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] | None = None,
        **options: object,
    ) -> Completion:
        """Return the model's next message in a conversation.

        Args:
            messages: with `role` and `content`, as in the chat APIs.
            tools: that the model may call, as in the chat APIs.
            options: the fields of `GenerateOptions`.

        Raises:
            RequestError: also if the model has no chat template, or the template refuses.
        """
        return completion(self.stream_chat(messages, tools=tools, **options))

    def stream_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] | None = None,
        **options: object,
    ) -> Stream:
        """Return the next message piece by piece, as `stream` does."""
        return self.stream(self._chat(messages, tools, options), **options)

    def chat_prompt(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] | None = None,
        truncate: bool = False,
    ) -> list[int]:
        """Return the token ids of a conversation, ready for the model's answer.

        Args:
            messages: with `role` and `content`, as in the chat APIs.
            tools: that the model may call, as in the chat APIs.
            truncate: drop the oldest messages of a conversation longer than the context.

        Raises:
            RequestError: if the model has no chat template, or the template refuses.
            ContextLengthError: if it is too long and may not be shortened.
        """
        if self._prompts is None:
            raise RequestError(f"{self.info.path.name} has no chat template: use generate")
        return self._prompts.tokens(messages, limit=self.context, truncate=truncate, tools=tools)

    def submit(self, prompt: Prompt, options: GenerateOptions, sink: Sink) -> Handle:
        """Begin a request.

        Args:
            prompt: text or token ids.
            options: limits, stop strings, sampling.
            sink: receives the events, on the runner's thread; it must not block.

        Raises:
            RequestError: for an empty prompt or a token that is not in the vocabulary.
            ContextLengthError: for a prompt longer than the context.
            RunnerDiedError: if the engine is closed.
        """
        given = self._tokens(prompt)
        tokens = fit_prompt(given, self.context, options)
        return self._begin(text_inputs(tokens), options, sink, dropped=len(given) - len(tokens))

    def _begin(
        self,
        inputs: Inputs,
        options: GenerateOptions,
        sink: Sink,
        *,
        collector: Collector | None = None,
        dropped: int = 0,
    ) -> Handle:
        """Make a sequence of inputs that fit the context, and hand it to the runner."""
        length = len(inputs.tokens)
        sampler = Sampler(options.sampling(), self.tokenizer.vocabulary_size)
        sampler.prime(inputs.tokens.tolist())
        tokens = np.zeros(self.context + 1, np.int32)
        tokens[:length] = inputs.tokens
        keys = tokens
        if inputs.keys is not inputs.tokens:
            keys = np.zeros(self.context + 1, np.int32)
            keys[:length] = inputs.keys
        sequence = RunningSequence(
            options=options,
            sampler=sampler,
            text=TextStream(options.stop, self.tokenizer.decoder(shown=options.shown)),
            sink=sink,
            tokens=tokens,
            keys=keys,
            length=length,
            prompt_length=length,
            holding=self._ledger.open(self.context, is_private=collector is not None),
            layout=inputs.layout,
            collector=collector,
            dropped=dropped,
        )
        self.runner.submit(sequence)
        return Handle(self.runner, sequence)

    # -- asynchronous ----------------------------------------------------------------------------

    async def astream(self, prompt: Prompt, **options: object) -> AsyncIterator[Text | Done]:
        """Yield what `stream` gives, without blocking the event loop."""
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Event] = asyncio.Queue()

        def sink(event: Event) -> None:
            try:
                loop.call_soon_threadsafe(events.put_nowait, event)
            except RuntimeError:  # the loop has ended, and with it whoever waited
                handle.cancel()

        handle = self.submit(prompt, generate_options(options), sink)
        try:
            while True:
                event = checked(await events.get())
                yield event
                if isinstance(event, Done):
                    return
        finally:
            handle.cancel()

    async def astream_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] | None = None,
        **options: object,
    ) -> AsyncIterator[Text | Done]:
        """Yield what `stream_chat` gives, without blocking the event loop."""
        async for event in self.astream(self._chat(messages, tools, options), **options):
            yield event

    async def agenerate(self, prompt: Prompt, **options: object) -> Completion:
        """Return what `generate` returns, without blocking the event loop."""
        return completion(iter([event async for event in self.astream(prompt, **options)]))

    async def achat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] | None = None,
        **options: object,
    ) -> Completion:
        """Return what `chat` returns, without blocking the event loop."""
        return await self.agenerate(self._chat(messages, tools, options), **options)

    # -- looking inside --------------------------------------------------------------------------

    def logits(
        self, prompt: Prompt, images: Sequence[object] = (), *, chunk: int | None = None
    ) -> npt.NDArray[np.float32]:
        """Return the logits of every position of a text.

        Args:
            prompt: text or token ids.
            images: pictures in the prompt; no architecture takes any yet.
            chunk: how many tokens to compute at a time; None: as many as fit.

        Returns:
            (positions, vocabulary).

        Raises:
            RequestError: for an empty prompt, unknown tokens, or images.
            ContextLengthError: for a prompt longer than the context.
        """
        if images:
            raise RequestError(f"{self.info.path.name} takes no images")
        if chunk is not None and chunk < 1:
            raise RequestError(f"chunk must be 1 or more, not {chunk}")
        return self._collect(prompt, wants_logits=True, chunk=chunk)

    def embed(self, texts: str | Sequence[Prompt]) -> npt.NDArray[np.float32]:
        """Return the embeddings of texts: pooled final hidden states, of length 1 each.

        Each text may also be its token ids. Pooling is what the file says (mean, first or last
        token), mean by default.

        Returns:
            (texts, features).

        Raises:
            As `logits`.
        """
        pooling = self.info.metadata.integer("pooling_type", 1)
        rows = []
        for text in [texts] if isinstance(texts, str) else texts:
            hidden = self._collect(text, wants_logits=False)
            pooled = {2: hidden[0], 3: hidden[-1]}.get(pooling, hidden.mean(axis=0))
            rows.append(pooled / max(float(np.linalg.norm(pooled)), 1e-12))
        if not rows:
            return np.empty((0, self.info.embedding_length), np.float32)
        return np.asarray(rows, np.float32)

    def _chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message] | None,
        options: Mapping[str, object],
    ) -> list[int]:
        return self.chat_prompt(messages, tools=tools, truncate=options.get("truncate") is True)

    def _collect(self, prompt: Prompt, *, wants_logits: bool, chunk: int | None = None) -> Rows:
        """Return the logits or hidden states of every token of a prompt."""
        tokens = self._tokens(prompt)
        if len(tokens) > self.context:
            raise too_long(len(tokens), self.context)
        rows: list[Rows] = []
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        collector = Collector(rows.append, wants_logits, chunk)
        nothing_more = GenerateOptions(max_tokens=0)
        handle = self._begin(text_inputs(tokens), nothing_more, events.put, collector=collector)
        completion(Stream(events, handle))
        return np.concatenate(rows)

    def _tokens(self, prompt: Prompt) -> npt.NDArray[np.int32]:
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        if not ids:
            raise RequestError("the prompt is empty: it must have at least one token")
        limit = self.tokenizer.vocabulary_size
        wrong = next((token for token in ids if not 0 <= token < limit), None)
        if wrong is not None:
            raise RequestError(f"token {wrong} is not in the vocabulary of {limit} tokens")
        return np.asarray(ids, np.int32)
