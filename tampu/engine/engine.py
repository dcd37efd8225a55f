"""The public Python API over one loaded model.

    with Engine.load("model.gguf") as engine:
        print(engine.generate("Once upon a time", max_tokens=50).text)

The engine computes on its own threads. Any thread may call it; up to `slots` requests are computed
together.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from tampu.chat.media import PreparedMedia
from tampu.chat.output.reasoning import Think
from tampu.chat.template_loader import model_template
from tampu.engine.arguments import FilePath, checked
from tampu.engine.async_requests import AsyncRequests
from tampu.engine.backend import ReplySink, Running
from tampu.engine.capturing import CapturingModel
from tampu.engine.completion import ChatCompletion, Completion, RequestHandle, Stream, completion
from tampu.engine.draft_loader import load_with_draft
from tampu.engine.embedding_model import EmbeddingModel
from tampu.engine.events import Reply
from tampu.engine.handlers import HANDLERS
from tampu.engine.handlers.generate import generate
from tampu.engine.input_processor import Prompt
from tampu.engine.load_options import LoadOptions
from tampu.engine.model_loader import LoadedModel
from tampu.engine.prepared_options import prepared_options
from tampu.engine.python_requests import File, Message, PythonRequests, read_file
from tampu.engine.requests import Generate
from tampu.engine.scoring_model import ScoringModel
from tampu.engine.snapshots import Saved
from tampu.ml.device_map import Offload
from tampu.runner.generate_options import GenerateOptions
from tampu.runner.layout import NumberedMedia
from tampu.runner.sequence import Sink
from tampu.sandbox.client import ForkServerClient
from tampu.settings.settings import Settings
from tampu.store.catalog import Prepared


class Engine(CapturingModel, ScoringModel, EmbeddingModel, AsyncRequests):
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
        return self.media.prepare_image(read_file(image, "image", "images"))

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
        return self.media.prepare_audio(read_file(sound, "sound", "audio"))

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
    def snapshot(self, prompt: Prompt, path: FilePath) -> Saved:
        """Save what the cache has of a prompt's beginning in a file, as `Snapshots.save`."""
        return self.snapshots.save(prompt, path)

    @checked
    def restore_snapshot(self, path: FilePath) -> Saved:
        """Read such a file back into the cache, as `Snapshots.restore`."""
        return self.snapshots.restore(path)

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
