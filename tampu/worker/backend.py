"""What a model's process needs of the engine that computes in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tampu.chat.fim import Inserter
from tampu.chat.images import Item
from tampu.chat.prompt import PromptBuilder, Vocabulary
from tampu.runner.events import Event
from tampu.runner.request import GenerateOptions
from tampu.worker.protocol import Load, Ready


class Handle(Protocol):
    """A request that runs in the engine."""

    def cancel(self) -> None:
        """End it soon, with `Done("cancelled")`."""
        ...


class ByteVocabulary(Vocabulary, Protocol):
    """A tokenizer that also goes the other way, and tells a token's bytes."""

    @property
    def vocabulary_size(self) -> int:
        """How many tokens there are."""
        ...

    def control_tokens(self, texts: Iterable[str]) -> Mapping[str, int]:
        """Return the ids of the control tokens among these texts."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens."""
        ...

    def token_bytes(self, id: int) -> bytes:
        """Return the bytes that a token stands for."""
        ...


class RunningModel(Protocol):
    """What this process needs of an engine."""

    @property
    def context(self) -> int:
        """The context length of a slot in tokens."""
        ...

    @property
    def tokenizer(self) -> ByteVocabulary:
        """The model's tokenizer."""
        ...

    def see(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Return messages whose `images`, bytes of files, are as the model takes them."""
        ...

    def submit(
        self, prompt: Sequence[Item], options: GenerateOptions, sink: Callable[[Event], None]
    ) -> Handle:
        """Begin a request; `sink` receives its events on another thread."""
        ...

    def embed(self, texts: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        """Return the embeddings (texts, features) of texts given as tokens."""
        ...

    def warm_up(self) -> None:
        """Make what the first answer in some form, or about a picture, needs; on any thread."""
        ...

    def stuck(self, patience_s: float) -> str:
        """Return why it will give nothing more; empty: it works or rests.

        Args:
            patience_s: for how long what does not compute may make no progress.
        """
        ...


@dataclass(frozen=True, slots=True)
class Loaded:
    """A loaded model; `prompts` is None without a chat template, `inserter` if it cannot insert."""

    model: RunningModel
    prompts: PromptBuilder | None
    ready: Ready
    inserter: Inserter | None = None


class Loader(Protocol):
    """Loads a model; what it returns is closed at the end."""

    def __call__(
        self, load: Load, progress: Callable[[float], None], cancelled: Callable[[], bool]
    ) -> AbstractContextManager[Loaded]:
        """Load the model, or raise TampuError."""
        ...
