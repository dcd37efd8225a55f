"""The public Python API over one loaded model.

    with Engine.load("model.gguf") as engine:
        print(engine.generate("Once upon a time", max_tokens=50).text)

The engine computes on its own threads. Any thread may call it; up to `slots` requests are computed
together.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Self, overload

import numpy as np
import numpy.typing as npt

from tampu.chat.media import Item, PreparedMedia
from tampu.chat.output.reasoning import Think
from tampu.chat.template_loader import model_template
from tampu.engine.arguments import FilePath, checked
from tampu.engine.async_requests import AsyncRequests
from tampu.engine.backend import ReplySink, Running
from tampu.engine.captures import Captured, CapturedEmbeddings
from tampu.engine.capturing import CapturingModel
from tampu.engine.completion import ChatCompletion, Completion, RequestHandle, Stream, completion
from tampu.engine.draft_loader import load_with_draft
from tampu.engine.events import Reply
from tampu.engine.handlers import HANDLERS
from tampu.engine.handlers.generate import generate
from tampu.engine.hybrid import HybridEmbedding, embed_hybrid
from tampu.engine.input_processor import Prompt, flat
from tampu.engine.load_options import LoadOptions
from tampu.engine.model_loader import LoadedModel
from tampu.engine.prepared_options import prepared_options
from tampu.engine.python_requests import File, Message, PythonRequests, embedded_prompt, read_file
from tampu.engine.questions import RERANK_INSTRUCTION, Decisions, Question
from tampu.engine.request import NO_LORA, Lora
from tampu.engine.requests import (
    Decide,
    Embed,
    Generate,
    Pair,
    Rank,
    Rerank,
    Score,
    ScoredContinuation,
)
from tampu.engine.scoring import Continuation, Prompts, Scored, with_continuations
from tampu.engine.snapshots import Saved
from tampu.engine.steering import GivenSteering, steering_of
from tampu.errors import RequestError
from tampu.ml.device_map import Offload
from tampu.ml.vectors import UNIT
from tampu.runner.capture_options import capture_options
from tampu.runner.generate_options import GenerateOptions
from tampu.runner.layout import NumberedMedia
from tampu.runner.sequence import Sink
from tampu.runner.stats import Trace
from tampu.sampling.candidates import require_finite
from tampu.sandbox.client import ForkServerClient
from tampu.settings.settings import Settings
from tampu.store.catalog import Prepared


class Engine(CapturingModel, AsyncRequests):
    """One loaded model; its attributes are those of `NativeModel`, and these.

    Attributes:
        prepared: what the store has with it: adapters, parameters, system message.
        load_ns: how long loading took, in nanoseconds.
    """

    handlers = HANDLERS
    unsupported = "tampu's own engine has no handler for it"

    def __init__(
        self, model: LoadedModel, load_ns: int, found: Prepared, fork_server: ForkServerClient
    ) -> None:
        """Take over a loaded model; `Engine.load` is the usual way."""
        template = found.template or model_template(model.info.metadata)
        super().__init__(model, template, found.parser, fork_server)
        self.prepared, self.load_ns = found, load_ns
        self._python = PythonRequests(found.defaults, self.tokenizer, self.context)

    @classmethod
    @checked
    def load(
        cls,
        path: FilePath,
        options: LoadOptions | None = None,
        *,
        offload: Offload | None = None,
        progress: Callable[[float], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
        settings: Settings | None = None,
        fork_server: ForkServerClient | None = None,
        **values: Any,
    ) -> Self:
        """Load a model.

        Args:
            path: a GGUF file, a checkpoint's folder, or a model's name; a model from a store has
                its own template and adapters.
            options: how to load it; None: the keywords.
            offload: which layers go to GPUs; None: the model's own setting, else as many as fit.
            progress: called with the fraction loaded, 0 to 1, from any thread.
            cancelled: asked from time to time; once it returns True, loading is given up.
            settings: where models are; None: those of the environment, read if `path` is a name.
            fork_server: for the sandboxes, may be shared by engines; None: a new one.
            **values: options as keywords, by the names of `LoadOptions`. The default of `context`
                is the model's own setting, else 4096.

        Raises:
            ModelNotFoundError: if the model does not exist.
            ModelFileError: for a file that is damaged, incomplete or not a model.
            UnsupportedModelError: for an unknown architecture or tokenizer.
            OutOfMemoryError: if it does not fit; the message has the numbers.
            LoadCancelledError: if `cancelled` returned True.
            RequestError: for an option out of its range.
        """
        began = time.monotonic_ns()
        options, found = prepared_options(str(path), options, offload, settings, values)
        model = load_with_draft(found.path, options, progress=progress, cancelled=cancelled)
        return cls(model, time.monotonic_ns() - began, found, fork_server or ForkServerClient())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @checked
    def tokenize(
        self,
        text: str,
        add_special: bool = True,  # noqa: FBT001, FBT002 - as Hugging Face's
        parse_special: bool = True,  # noqa: FBT001, FBT002
    ) -> list[int]:
        """Return a text's token ids.

        Args:
            text: the text to encode.
            add_special: add the tokens that the model expects around a text, such as BOS.
            parse_special: encode control tokens that are written in the text as such.
        """
        return self.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    @checked
    def detokenize(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, without control tokens."""
        return self.tokenizer.decode(ids)

    # -- generating ------------------------------------------------------------------------------

    def generate(self, prompt: Prompt, **options: object) -> Completion:
        """Return the model's continuation of a prompt.

        Args:
            prompt: text or token ids.
            options: the fields of `GenerateOptions`, and `format`, the structure of the output:
                "json", a JSON schema, a class of pydantic (`parsed` of the result is an object of
                it), or a mapping with one of `regex`, `lark`, `gbnf`, `choices`.
                Without `max_tokens` an output has at most the tokens of ten contexts.

        Raises:
            RequestError: for an unknown option or a value out of its range.
            GrammarError: for a `format` that is invalid or not supported.
            ContextLengthError: for a prompt longer than the context.
            ComputeError: if the model's logits are invalid.
        """
        return completion(self.stream(prompt, **options), options.get("format"))

    @checked
    def stream(self, prompt: Prompt, **options: object) -> Stream:
        """Return an iterator over the output: `TextDelta` events, then `Done`.

        Closing or dropping the iterator cancels the request. Options and errors are those of
        `generate`; errors of the computation are raised while iterating.
        """
        events: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        return Stream(events, self._begin(prompt, options, events.put))

    def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] | None = None,
        think: Think = None,
        **options: object,
    ) -> ChatCompletion:
        """Return the model's next message in a conversation.

        Args:
            messages: with `role` and `content`, as in the chat APIs, and `images`, each an image
                or a video as `prepare_file` takes it, and `audio`, a list of sounds. `message` of
                a result is one of them.
            tools: functions that the model may call, as in the chat APIs.
            think: whether to reason first, or how hard: "low", "medium", "high" or "max"; None:
                the model's default.
            options: as for `generate`; `format` applies to the text after the reasoning.

        Raises:
            RequestError: if the model has no chat template, or the template rejects the
                conversation.
            TampuError: as for `generate`.
        """
        events = self.stream_chat(messages, tools=tools, think=think, **options)
        return completion(events, options.get("format"))

    @checked
    def stream_chat(self, messages: Sequence[Message], **options: object) -> Stream:
        """As `stream`, with `chat`'s arguments, and `ReasoningDelta` and `ToolCall` events too."""
        events: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        return Stream(events, self._begin_chat(messages, options, events.put))

    @checked
    def decide(
        self,
        input: str | Sequence[Message],
        questions: Sequence[Question],
        *,
        tools: Sequence[Message] | None = None,
        lora: Lora = NO_LORA,
        steering: GivenSteering = (),
    ) -> Decisions:
        """Return the probabilities of the answers to questions about an input; nothing is written.

        Args:
            input: a text, or messages as for `chat`.
            questions: 1 to 400 of `Predicate`, `Choice` and `Score`; the input is computed once.
            tools: functions that were offered in the conversation.
            lora: loaded adapters, as for `generate`.
            steering: changes of values inside the model, as for `generate`.

        Raises:
            RequestError: for invalid questions, and as for `chat`.
            ContextLengthError: if a question with the input is longer than the context.
        """
        messages = [{"role": "user", "content": input}] if isinstance(input, str) else input
        prompt = self._python.conversation(messages, {"tools": tools})
        changes = steering_of(steering)
        asked = Decide(prompt, tuple(questions), lora=dict(lora), steering=changes)
        return self.ask(asked).decisions

    @checked
    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        instruction: str = RERANK_INSTRUCTION,
        lora: Lora = NO_LORA,
        steering: GivenSteering = (),
    ) -> list[float]:
        """Return the probability, 0 to 1, that each document matches a query.

        A model with a rank head reads both together; any other is asked as Qwen3-Reranker was
        trained. `instruction` says what a match is, `lora` names loaded adapters, and `steering`
        changes values inside the model, as for `generate`.

        Raises:
            RequestError: if it has no rank head and no chat template, or takes no instruction.
            ContextLengthError: naming the document that is too long.
        """
        changes = steering_of(steering)
        asked = Rerank(query, tuple(documents), instruction, lora=dict(lora), steering=changes)
        found = self.ask(asked)
        return [decision.probabilities[0] for decision in found.decisions.answers]

    @checked
    def chat_prompt(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] | None = None,
        think: Think = None,
        truncate: bool = False,
    ) -> list[int | NumberedMedia]:
        """Return the prompt of a conversation in `chat`: token ids, and images.

        With `truncate`, the oldest messages are dropped if it is longer than the context.

        Raises:
            TampuError: as for `chat`.
        """
        chat = self._python.conversation(messages, {"tools": tools, "think": think})
        return self.requests.prompt(chat, truncate=truncate).tokens

    @checked
    def prepare_image(self, image: File) -> NumberedMedia:
        """Return an image prepared for the model, as an item of a prompt.

        Args:
            image: the path or the bytes of a PNG, JPEG, WebP, GIF or BMP file, an image of Pillow,
                or RGB pixels, uint8, (height, width, 3).

        Raises:
            RequestError: if the model takes no images, or cannot take this one; naming a file that
                cannot be read.
        """
        return self.media.prepare_image(read_file(image, "image"))

    @checked
    def prepare_audio(self, sound: File) -> PreparedMedia:
        """Return a sound prepared for the model, as an item of a prompt.

        Args:
            sound: the path or the bytes of a sound's file, or its samples: float32, (n,), mono,
                16,000 a second, between -1 and 1.

        Raises:
            RequestError: if the model takes no sounds, or cannot take this one; naming a file that
                cannot be read.
        """
        return self.media.prepare_audio(read_file(sound, "sound"))

    @checked
    def prepare_file(self, file: File) -> NumberedMedia | PreparedMedia:
        """Return an image as `prepare_image`, a video (MP4, WebM, AVI, ...), or a sound."""
        return self.media.prepare_file(read_file(file, "file"))

    @checked
    def submit(self, prompt: Prompt, options: GenerateOptions, sink: Sink) -> RequestHandle:
        """Begin a request; `sink` gets each event on the run loop's thread, and must not block.

        The output is not parsed: reasoning and tool calls are text.

        Raises:
            RequestError: for an empty prompt or a token that is not in the vocabulary.
            ContextLengthError: for a prompt longer than the context.
            RunnerDiedError: if the engine is closed.
        """
        return self.inputs.submit(prompt, options, sink)

    @checked
    def score(
        self,
        prompt: Prompt,
        continuations: Sequence[Continuation],
        lora: Lora = NO_LORA,
        steering: GivenSteering = (),
    ) -> list[ScoredContinuation]:
        """Return how probable each continuation of a prompt is; nothing is generated.

        Args:
            prompt: text, token ids, or `chat_prompt` of a conversation.
            continuations: texts or token ids. A text gets no BOS; where white space at the end of
                the prompt and merged tokens belong is said in docs/python.md.
            lora: loaded adapters, as for `generate`.
            steering: changes of values inside the model, as for `generate`.

        Raises:
            RequestError: for an empty prompt or continuation, and for unknown tokens.
            ContextLengthError: if the prompt with a continuation is longer than the context.
        """
        given = prompt if isinstance(prompt, str) else flat(prompt)
        prompts = with_continuations(self.tokenizer, given, continuations)
        shared = prompts[0][0] if prompts else ()
        changes = steering_of(steering)
        found = self.ask(Score(shared, prompts, lora=dict(lora), steering=changes))
        return [one for each in found.prompts for one in each.continuations]

    @checked
    def loglikelihood(
        self,
        shared: Sequence[Item],
        prompts: Prompts,
        lora: Lora = NO_LORA,
        steering: GivenSteering = (),
    ) -> list[Scored]:
        """Return log-probabilities of continuations of several prompts, all as token ids.

        Each prompt begins with `shared`, and has its continuations with it. `score` is for one.
        """
        changes = steering_of(steering)
        found = self.ask(Score(shared, prompts, lora=dict(lora), steering=changes))
        return [*map(Scored.of, found.prompts)]

    @checked
    def rank(
        self, pairs: Sequence[Pair], lora: Lora = NO_LORA, steering: GivenSteering = ()
    ) -> list[npt.NDArray[np.float32]]:
        """Return the scores (labels,) of queries with documents, by the model's rank head."""
        found = self.ask(Rank(pairs, lora=dict(lora), steering=steering_of(steering)))
        return [np.array(scores, np.float32) for scores in found.scores]

    @checked
    def snapshot(self, prompt: Prompt, path: FilePath) -> Saved:
        """Save what the cache has of a prompt's beginning in a file, as `Snapshots.save`."""
        return self.snapshots.save(prompt, path)

    @checked
    def restore_snapshot(self, path: FilePath) -> Saved:
        """Read such a file back into the cache, as `Snapshots.restore`."""
        return self.snapshots.restore(path)

    # -- looking inside --------------------------------------------------------------------------

    def detect_nan(self) -> None:
        """Check every value computed from now on for NaN and infinity; slow; errors name layers."""
        self.runner.graphs.detect_nan()

    @contextmanager
    @checked
    def trace(self, path: FilePath) -> Iterator[None]:
        """Trace the run loop inside the `with` block, for Perfetto or chrome://tracing."""
        with closing(Trace(Path(path))) as trace:
            self.runner.stats.trace = trace
            try:
                yield
            finally:
                self.runner.stats.trace = None

    @checked
    def logits(
        self,
        prompt: Prompt,
        images: Sequence[File] = (),
        *,
        chunk: int | None = None,
        steering: GivenSteering = (),
    ) -> npt.NDArray[np.float32]:
        """Return the logits at every position of a prompt, float32, (positions, vocabulary).

        Args:
            prompt: text or token ids.
            images: as `prepare_image` takes them; inserted after the prompt's first token.
            chunk: the maximum number of tokens computed at once; None: as many as fit.
            steering: changes of values inside the model, as for `generate`.

        Raises:
            RequestError: for an empty prompt, unknown tokens, or images.
            ContextLengthError: for a prompt longer than the context.
            ComputeError: if a logit is NaN or infinite.
        """
        files = [read_file(image, f"images[{i}]") for i, image in enumerate(images)]
        if chunk is not None and chunk < 1:
            raise RequestError(f"chunk must be 1 or more, not {chunk}")
        if files:
            given = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
            prompt = [*given[:1], *map(self.media.prepare_image, files), *given[1:]]
        options = GenerateOptions(max_tokens=0, steering=steering_of(steering))
        found = self.inputs.rows(prompt, options, wants_logits=True, chunk=chunk)
        require_finite(float(found.max()) if found.size else 0.0)
        return found

    @overload
    def embed(
        self,
        texts: str | Sequence[Prompt],
        *,
        normalize: bool = True,
        prompt: str | None = None,
        late_chunking: bool = False,
        lora: Lora = NO_LORA,
        steering: GivenSteering = (),
        capture: None = None,
    ) -> npt.NDArray[np.float32]: ...

    @overload
    def embed(
        self,
        texts: str | Sequence[Prompt],
        *,
        normalize: bool = True,
        prompt: str | None = None,
        late_chunking: bool = False,
        lora: Lora = NO_LORA,
        steering: GivenSteering = (),
        capture: Mapping[str, Any],
    ) -> CapturedEmbeddings: ...

    @checked
    def embed(
        self,
        texts: str | Sequence[Prompt],
        *,
        normalize: bool = True,
        prompt: str | None = None,
        late_chunking: bool = False,
        lora: Lora = NO_LORA,
        steering: GivenSteering = (),
        capture: Mapping[str, Any] | None = None,
    ) -> npt.NDArray[np.float32] | CapturedEmbeddings:
        """Return the embeddings of texts or token ids: pooled final hidden states of length 1.

        They are float32, (texts, features). The option `pooling` says how, else the file: mean (the
        default), first or last token. With none, (tokens, features), and without `normalize` they
        have any length. `prompt` names the model's prompt that is put before each text, such as
        "query"; else it is the file's default, and with "" none. With `late_chunking`
        (arXiv:2409.04701) the texts are computed as one, and
        each is the mean of its own tokens. `lora` and `steering` are as for `generate`. With
        `capture`, as there, the vectors come with the values of each text. Raises as `logits`.
        """
        given = [texts] if isinstance(texts, str) else texts
        request = Embed(
            tuple(map(embedded_prompt, given)),
            truncate=False,
            late_chunking=late_chunking,
            prompt=prompt,
            norm=UNIT if normalize else -1,
            lora=dict(lora),
            steering=steering_of(steering),
            capture=None if capture is None else capture_options(capture),
        )
        found = self.ask(request)
        vectors = found.array().copy()
        if capture is None:
            return vectors
        return CapturedEmbeddings(vectors, tuple(map(Captured.decoded, found.captured)))

    @checked
    def embed_hybrid(
        self, texts: str | Sequence[Prompt], *, prompt: str | None = None
    ) -> list[HybridEmbedding]:
        """Return a dense, a sparse and a multi-vector embedding of each text, as BGE-M3 has them.

        `prompt` is as for `embed`. Raises as `logits`, and RequestError for a model without them.
        """
        given = [texts] if isinstance(texts, str) else texts
        inputs = tuple(map(embedded_prompt, given))
        return embed_hybrid(self, Embed(inputs, truncate=False, prompt=prompt))

    def _begin(self, prompt: Prompt, given: Mapping[str, object], sink: ReplySink) -> Running:
        return self._started(self._python.plain(prompt, given), sink)

    def _begin_chat(
        self, messages: Sequence[Message], given: Mapping[str, object], sink: ReplySink
    ) -> Running:
        return self._started(self._python.chat(messages, given), sink)

    def _started(self, request: Generate, sink: ReplySink) -> Running:
        running = generate(self, request)
        running.begin(sink)
        return running
