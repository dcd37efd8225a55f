"""llama.cpp in this process, as a conversation takes an engine."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from tampu.backends.llamacpp import LlamaModel, LlamaRequest, load_llamacpp
from tampu.chat.prompt import PromptBuilder
from tampu.cli.repl.backend import Known
from tampu.cli.repl.current_model import Reading
from tampu.engine.completion import Stream
from tampu.runner.events import Event
from tampu.runner.request import generate_options
from tampu.store.model_info import ModelInfo
from tampu.tokenizer import Tokenizer
from tampu.worker.protocol import ModelOptions


class LlamaHandle:
    """A request under way; how far its prompt is read, llama.cpp does not tell."""

    progress = (0, 0)

    def __init__(self, request: LlamaRequest) -> None:
        self._request = request

    def cancel(self) -> None:
        """End the request before its next token."""
        self._request.cancel()


class LlamaEngine:
    """One model in llama.cpp."""

    def __init__(self, model: LlamaModel, info: ModelInfo) -> None:
        self.info = info
        self.context = model.context
        self.tokenizer: Tokenizer = model.tokenizer
        self._model = model

    def stream(self, prompt: str | Sequence[int], **options: Any) -> Reading:
        """Return the continuation of a prompt, piece by piece.

        Raises:
            RequestError: for an empty prompt, or a grammar that llama.cpp does not have.
            ContextLengthError: for a prompt longer than the context.
        """
        tokens = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        request = self._model.submit(tokens, generate_options(options), events.put)
        return Stream(events, LlamaHandle(request))

    def see(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Return messages that have no pictures.

        Raises:
            RequestError: if they have some.
        """
        return self._model.see(messages)

    def embed(self, texts: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        """Return the embeddings (texts, features) of texts given as tokens."""
        return self._model.embed(texts)


@contextmanager
def llama_engine(
    known: Known, options: ModelOptions
) -> Iterator[tuple[LlamaEngine, PromptBuilder | None]]:
    """Load a model into llama.cpp; it is freed at the end.

    Raises:
        TampuError: when it cannot be loaded.
    """
    with load_llamacpp(known.prepared.path, options) as (model, prompts, *_):
        yield LlamaEngine(model, known.info), prompts
