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
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from tampu.catalog import Prepared, prepare
from tampu.chat.prompt import PromptBuilder
from tampu.chat.template import ChatTemplate
from tampu.completion import Completion, Handle, Stream, checked, completion
from tampu.errors import RequestError
from tampu.intake import Intake, Prompt
from tampu.loading import LoadedModel, LoadOptions, load_model
from tampu.ml.kernels.repack_cache import RepackCache
from tampu.modelinfo import ModelInfo
from tampu.nn import Picture
from tampu.offload import Offload
from tampu.runner.events import Done, Event, Text
from tampu.runner.layout import NumberedImage
from tampu.runner.loop import Runner
from tampu.runner.request import GenerateOptions, generate_options
from tampu.runner.sequence import Sink
from tampu.runner.trace import Trace
from tampu.store.parameters import as_options
from tampu.tokenizer import Tokenizer

log = logging.getLogger("tampu")

Message: TypeAlias = Mapping[str, Any]


class Engine:
    """One loaded model.

    Attributes:
        info: what the file says of the model.
        context: the most tokens of one request, prompt and answer together.
        tokenizer: of the model.
        template: its chat template; None if the file has none.
        load_ns: how long loading took.
        device_bytes: what it takes of devices besides the processor.
    """

    def __init__(self, model: LoadedModel, load_ns: int, found: Prepared | None = None) -> None:
        """Take over a loaded model; `Engine.load` is the usual way.

        Args:
            model: with its weights.
            load_ns: how long loading took.
            found: what belongs to it besides its file.
        """
        self._model = model
        self.info: ModelInfo = model.info
        self.context = model.options.context
        self.tokenizer: Tokenizer = model.tokenizer
        metadata = model.info.metadata
        self.prepared = found or Prepared(model.info.path)
        self._defaults = as_options(self.prepared.parameters)
        self.template = self.prepared.template or ChatTemplate.from_metadata(metadata)
        parser = self.prepared.parser
        self._prompts = PromptBuilder.for_model(self.template, self.tokenizer, metadata, parser)
        self.load_ns = load_ns
        self.device_bytes = sum(model.device_bytes.values())
        self.runner = Runner(model.scheduler, model.graphs, model.tokenizer)
        self._intake = Intake(model, self.runner)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        context: int | None = None,
        slots: int = 1,
        threads: int | None = None,
        batch: int = 512,
        cache_type: str = "f16",
        flash_attention: bool | None = None,
        kernels: str = "on",
        offload: Offload | None = None,
        use_mmap: bool = True,
        repack_cache: RepackCache | None = None,
        adapters: Sequence[tuple[str | Path, float]] = (),
        template: str = "",
        projector: str | Path | None = None,
        progress: Callable[[float], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Self:
        """Load a model.

        Args:
            path: of a GGUF file or a checkpoint's folder, or the name of a model that is known; one
                of a store comes with its own template and adapters.
            context: the most tokens of one request; None: what the model comes with, else 4096.
            slots: the most requests that are computed together.
            threads: of the CPU; None: one for each physical core, one alone for a tiny model.
            batch: the most tokens that are computed at once.
            cache_type: of keys and values: f32, f16, q8_0 or q4_0.
            flash_attention: fused attention always, never, or where it is faster (None).
            kernels: what the package's own C code computes: on, off, products, experts
                or attention.
            offload: which layers go to devices besides the processor; None: as many as the model
                comes with, else as fit.
            use_mmap: use weights where they are in the mapped file, if they can be; else copy all.
            repack_cache: where packed weights are kept for the next start; None: nowhere.
            adapters: low-rank adapters, GGUF files or PEFT's folders, and how much of each; 1 is as
                it was trained.
            template: Jinja, or Go's language, in place of the model's own; empty: that.
            projector: a file with the part that sees; None: the model's own, if it has one.
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
        found = prepare(str(path), adapters, template, projector)
        options = LoadOptions(
            context=found.context if context is None else context,
            slots=slots,
            threads=threads,
            batch=batch,
            cache_type=cache_type,
            flash_attention=flash_attention,
            kernels=kernels,
            mapped=use_mmap,
            repack_cache=repack_cache,
            offload=offload or found.offload,
        )
        model = load_model(
            found.path,
            options,
            adapters=found.adapters,
            projector=found.projector,
            progress=progress,
            cancelled=cancelled,
        )
        return cls(model, time.monotonic_ns() - began, found)

    def close(self) -> None:
        """End all requests and free the model; twice is harmless."""
        self.runner.close()
        self._intake.close()
        self._model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
        handle = self.submit(prompt, generate_options({**self._defaults, **options}), events.put)
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
            messages: with `role` and `content`, as in the chat APIs, and `images` for `look`.
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
    ) -> list[int | NumberedImage]:
        """Return the inputs of a conversation, ready for the model's answer.

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
        return self._prompts.tokens(
            self.see(self.prepared.begun(messages)),
            limit=self.context,
            truncate=truncate,
            tools=tools,
        )

    def look(self, image: bytes | Picture) -> NumberedImage:
        """Return a picture as the model takes it, for a prompt.

        Args:
            image: the bytes of a PNG, JPEG, WebP, GIF or BMP file, or pixels, RGB, U8,
                (height, width, 3).

        Raises:
            RequestError: if the model does not see, or this is no picture that it can take.
        """
        return self._intake.look(image)

    def see(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages whose `images` are as the model takes them; see `look`."""
        return [
            {**message, "images": [self.look(image) for image in message["images"]]}
            if message.get("images")
            else message
            for message in messages
        ]

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
        return self._intake.generate(prompt, options, sink)

    def warm_up(self) -> None:
        """Make what the first grammar and picture need; else those requests wait for it."""
        self._intake.warm_up()

    def stuck(self, patience_s: float) -> str:
        """Return what the run loop does for too long, and how long; empty: it moves or rests.

        Args:
            patience_s: what anything may take; steps may take longer, by what they took before.
        """
        return self.runner.pulse.stuck(patience_s)

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

        handle = self.submit(prompt, generate_options({**self._defaults, **options}), sink)
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

    def watch_values(self) -> None:
        """Look at every value that is computed from now on, to hunt a fault; this is slow.

        The error of a request whose logits are NaN or infinite then says in which layer that began.
        """
        self.runner.graphs.watch_values()

    @contextmanager
    def trace(self, path: str | Path) -> Iterator[None]:
        """Record what the run loop does meanwhile, in a file for Perfetto or chrome://tracing.

        Raises:
            RequestError: if the file cannot be written.
        """
        try:
            trace = Trace(Path(path))
        except OSError as error:
            raise RequestError(f"the trace cannot be written: {error}") from None
        with trace:
            self.runner.records.trace = trace
            try:
                yield
            finally:
                self.runner.records.trace = None

    def logits(
        self, prompt: Prompt, images: Sequence[bytes | Picture] = (), *, chunk: int | None = None
    ) -> npt.NDArray[np.float32]:
        """Return the logits of every position of a text.

        Args:
            prompt: text or token ids.
            images: pictures for `look`; they stand after the prompt's first token.
            chunk: how many tokens to compute at a time; None: as many as fit.

        Returns:
            (positions, vocabulary).

        Raises:
            RequestError: for an empty prompt, unknown tokens, or images.
            ContextLengthError: for a prompt longer than the context.
        """
        if chunk is not None and chunk < 1:
            raise RequestError(f"chunk must be 1 or more, not {chunk}")
        if images:
            given = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
            prompt = [*given[:1], *map(self.look, images), *given[1:]]
        return self._intake.rows(prompt, wants_logits=True, chunk=chunk)

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
            hidden = self._intake.rows(text, wants_logits=False)
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
    ) -> list[int | NumberedImage]:
        return self.chat_prompt(messages, tools=tools, truncate=options.get("truncate") is True)
