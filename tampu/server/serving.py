"""What the API families have in common: find a model, and have it answer a job."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from tampu.chat.output import AnswerParser, ChatFormat, Content, Part, ToolCall, chat_format
from tampu.errors import ModelNotFoundError, RequestError, RequestNotStartedError
from tampu.runner.events import Done, TextDelta, Usage
from tampu.runner.request import GenerateOptions
from tampu.server.admission import Admission
from tampu.server.events import (
    ContentDelta,
    EndReason,
    Event,
    Finished,
    PromptLogprobs,
    ReasoningDelta,
    Started,
    ToolCallDelta,
)
from tampu.server.generation_request import EmbeddingTask, GenerationRequest, Overrides, require
from tampu.server.metrics import Metrics
from tampu.server.model_defaults import ModelDefaults, model_defaults
from tampu.server.model_manager import ModelManager
from tampu.store.catalog import Catalog, Entry
from tampu.store.model_info import ModelInfo
from tampu.worker.client import Runner
from tampu.worker.protocol import (
    ChatPrompt,
    Decoded,
    Encoded,
    Prompt,
    Prompted,
    PromptScored,
)

T = TypeVar("T")


class Embeddings(msgspec.Struct, frozen=True):
    """Vectors, F32 (inputs, width), of length 1; how many tokens; when the model was ready."""

    vectors: npt.NDArray[np.float32]
    tokens: int
    ready_ns: int


class Serving:
    """The models that can be asked, and the way to ask them."""

    def __init__(
        self,
        models: ModelManager,
        vocabularies: ModelManager,
        catalog: Catalog,
        admission: Admission,
        metrics: Metrics,
        max_repeated_tokens: int | None = None,
    ) -> None:
        """Answer from these models, found in this catalog, as many at a time as are admitted.

        An answer without a limit ends when a token repeats more than `max_repeated_tokens` times.
        Tokens alone come from a model that is loaded, else from one loaded without its weights.
        """
        self.models = models
        self._vocabularies = vocabularies
        self.catalog = catalog
        self._profiles: dict[str, tuple[ModelInfo, str, ModelDefaults]] = {}
        self._admission = admission
        self._metrics = metrics
        self._max_repeated_tokens = max_repeated_tokens

    async def close(self) -> None:
        """Unload all models; requests under way end with an error."""
        await asyncio.gather(self.models.close(), self._vocabularies.close())

    def find(self, name: str | None) -> Entry:
        """Return the model of a name.

        Raises:
            RequestError: without a name.
            ModelNotFoundError: if there is no such model.
        """
        if not name:
            raise RequestError("model is required")
        try:
            return self.catalog.describe(name)
        except ModelNotFoundError as error:
            raise ModelNotFoundError(f"model '{name[:200]}' not found") from error

    def profile(self, entry: Entry) -> ModelDefaults:
        """Return what a model brings along.

        Raises:
            StoreError: if a store has lost a part of it.
        """
        kept = self._profiles.get(entry.name)
        if kept is None or kept[0] is not entry.info or kept[1] != entry.model.id:
            kept = (entry.info, entry.model.id, model_defaults(entry))
            self._profiles[entry.name] = kept
        return kept[2]

    async def generate(self, entry: Entry, job: GenerationRequest) -> AsyncGenerator[Event, None]:
        """Yield what happens while a job is done; closing it cancels the job.

        Raises:
            TampuError: when the model cannot be loaded, or the request fails.
        """
        came_s = time.monotonic()
        with self._admission.wait() as leave_queue:
            attempts = _events_with_retry(lambda: self._generated(entry, job))
            async with aclosing(self._metrics.watched(entry.name, attempts, came_s)) as events:
                async for event in events:
                    if not isinstance(event, Started):
                        leave_queue()
                    yield event

    async def _generated(self, entry: Entry, job: GenerationRequest) -> AsyncGenerator[Event, None]:
        async with self.models.use(entry, job.overrides, job.keep_alive_s) as model:
            ready_ns = time.monotonic_ns()
            if not job.prompts:
                yield Finished("load", Usage(), ready_ns)
                return
            options = job.limited(model.runner.ready.context, self._max_repeated_tokens)
            stored = entry.model.stored
            parser = stored.config.parser if stored else ""
            style = chat_format(entry.info.template, entry.info.architecture, parser)
            choices = [
                Choice(index, job, style, ready_ns).events(model.runner, prompt, asked)
                for index, (prompt, asked) in enumerate(_choices(job, options))
            ]
            async with aclosing(choices[0] if len(choices) == 1 else _merged(choices)) as events:
                async for event in events:
                    yield event

    async def embed(self, entry: Entry, job: EmbeddingTask) -> Embeddings:
        """Return embeddings.

        Raises:
            TampuError: when the model cannot be loaded, or the request fails.
        """
        with self._admission.wait():
            return await _with_retry(lambda: self._embedded(entry, job))

    async def _embedded(self, entry: Entry, job: EmbeddingTask) -> Embeddings:
        async with self.models.use(entry, job.overrides, job.keep_alive_s) as model:
            ready_ns = time.monotonic_ns()
            if not job.inputs:
                return Embeddings(np.empty((0, 0), np.float32), 0, ready_ns)
            found = await model.runner.embed(job.inputs, truncate=job.truncate)
            self._metrics.embedded(entry.name, found.tokens)
        vectors = np.frombuffer(found.vectors, "<f4").reshape(-1, found.width)
        return Embeddings(_shortened(vectors, job.dimensions), found.tokens, ready_ns)

    async def encode(
        self,
        entry: Entry,
        prompt: Prompt,
        *,
        add_special: bool = True,
        parse_special: bool = True,
    ) -> Encoded:
        """Return the tokens of a prompt; the model's weights need not be loaded for it.

        Raises:
            TampuError: when the file is not sound, or its template refuses.
        """

        async def encode() -> Encoded:
            async with self._vocabulary(entry) as runner:
                return await runner.encode(
                    prompt, add_special=add_special, parse_special=parse_special
                )

        return await _with_retry(encode)

    async def decode(self, entry: Entry, tokens: Sequence[int]) -> Decoded:
        """Return the text of tokens; the model's weights need not be loaded for it.

        Raises:
            TampuError: when the file is not sound, or there is no such token.
        """

        async def decode() -> Decoded:
            async with self._vocabulary(entry) as runner:
                return await runner.decode(tokens)

        return await _with_retry(decode)

    @asynccontextmanager
    async def _vocabulary(self, entry: Entry) -> AsyncIterator[Runner]:
        loaded = self.models.find(entry.name)
        keeper = self._vocabularies if loaded is None else self.models
        keep_alive_s = None if loaded is None else loaded.keep_alive_s
        async with keeper.use(entry, Overrides(), keep_alive_s) as model:
            yield model.runner


class Choice:
    """One answer on its way: from the pieces of a runner to events."""

    def __init__(
        self, index: int, job: GenerationRequest, style: ChatFormat, ready_ns: int
    ) -> None:
        self._index = index
        self._job = job
        self._style = style
        self._ready_ns = ready_ns
        self._parser: AnswerParser | None = None  # none: the answer is text as it stands
        self._held: list[TextDelta] = []  # pieces whose text the parser holds back
        self._calls = 0

    async def events(
        self, runner: Runner, prompt: Prompt, options: GenerateOptions
    ) -> AsyncGenerator[Event, None]:
        """Yield the events of this choice."""
        async with aclosing(runner.generate(prompt, options, self._job.form)) as events:
            async for event in events:
                match event:
                    case Prompted(tokens=tokens, begins_thought=thinks):
                        if isinstance(prompt, ChatPrompt):
                            self._parser = self._style.parser(self._job.tools, thinks=thinks)
                        yield Started(tokens, self._ready_ns, self._index)
                    case TextDelta(text=text):
                        self._held.append(event)
                        parts = self._parser.feed(text) if self._parser else _plain(text)
                        for part in self._events(parts):
                            yield part
                    case PromptScored(first=first, logprobs=logprobs):
                        yield PromptLogprobs(first, logprobs, self._index)
                    case Done():
                        parts = self._parser.finish() if self._parser else []
                        for part in self._events(parts, is_last=True):
                            yield part
                        yield self._end(event)

    def _end(self, done: Done) -> Finished:
        reason: EndReason = done.reason
        if self._calls and reason == "stop":
            reason = "tool_calls"
        return Finished(reason, done.usage, self._ready_ns, done.stop, self._index)

    def _events(self, parts: Sequence[Part], *, is_last: bool = False) -> Iterator[Event]:
        """Yield parts as events; the first text carries the tokens and scores that came with it."""
        if not parts and self._held and (is_last or self._held[-1].logprobs):
            parts = [Content("")]
        for part in parts:
            if not isinstance(part, ToolCall):
                yield self._text(
                    ContentDelta if isinstance(part, Content) else ReasoningDelta, part.text
                )
                continue
            if self._held:
                yield self._text(ContentDelta, "")
            if self._job.max_calls is None or self._calls < self._job.max_calls:
                call_id = f"call_{secrets.token_hex(4)}"
                yield ToolCallDelta(call_id, part.name, part.arguments, self._calls, self._index)
                self._calls += 1

    def _text(
        self, kind: type[ContentDelta] | type[ReasoningDelta], text: str
    ) -> ContentDelta | ReasoningDelta:
        held, self._held = self._held, []
        return kind(
            text,
            tuple(token for piece in held for token in piece.tokens),
            tuple(entry for piece in held for entry in piece.logprobs),
            self._index,
        )


async def _events_with_retry(
    attempt: Callable[[], AsyncGenerator[Event, None]],
) -> AsyncGenerator[Event, None]:
    """Yield the events of an attempt; of another if the model had died before it took it up.

    A request can come while a process dies, before the server knows of it.
    """
    has_begun = False
    try:
        async with aclosing(attempt()) as events:
            async for event in events:
                has_begun = True
                yield event
    except RequestNotStartedError:
        if has_begun:  # one of several choices
            raise
    else:
        return
    async with aclosing(attempt()) as events:
        async for event in events:
            yield event


async def _with_retry(attempt: Callable[[], Awaitable[T]]) -> T:
    """Return what an attempt gives; what another does, if the model had died before it took it."""
    try:
        return await attempt()
    except RequestNotStartedError:
        return await attempt()


def _choices(
    job: GenerationRequest, options: GenerateOptions
) -> Iterator[tuple[Prompt, GenerateOptions]]:
    """Yield the prompt and the options of each choice; with a seed each has one of its own."""
    for prompt in job.prompts:
        for number in range(job.choices):
            seed = None if options.seed is None else options.seed + number
            yield prompt, msgspec.structs.replace(options, seed=seed)


async def _merged(
    choices: Sequence[AsyncGenerator[Event, None]],
) -> AsyncGenerator[Event, None]:
    """Yield the events of all choices as they come; the first error ends them all."""
    events: asyncio.Queue[Event | None] = asyncio.Queue()

    async def forward(choice: AsyncGenerator[Event, None]) -> None:
        try:
            async with aclosing(choice):
                async for event in choice:
                    events.put_nowait(event)
        finally:
            events.put_nowait(None)

    tasks = [asyncio.create_task(forward(choice)) for choice in choices]
    running = len(tasks)
    try:
        while running:
            event = await events.get()
            if event is not None:
                yield event
                continue
            running -= 1
            for task in tasks:
                if task.done():
                    task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _shortened(vectors: npt.NDArray[np.float32], dimensions: int | None) -> npt.NDArray[np.float32]:
    """Return the first numbers of vectors, of length 1 again."""
    if dimensions is None:
        return vectors
    width = vectors.shape[1]
    require(
        holds=0 < dimensions <= width,
        message=f"dimensions must be 1 to {width} for this model, not {dimensions}",
    )
    cut = vectors[:, :dimensions]
    lengths = np.linalg.norm(cut, axis=1, keepdims=True)
    shortened: npt.NDArray[np.float32] = cut / np.maximum(lengths, 1e-12)
    return shortened


def _plain(text: str) -> list[Part]:
    return [Content(text)] if text else []
