"""What requests need of a loaded model, whichever engine runs it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Sized
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tampu.chat.images import Item
from tampu.chat.prompt import Vocabulary
from tampu.engine.ranking import Pair
from tampu.engine.scoring import NO_LORA, Lora, Prompts, Scored
from tampu.runner.events import Event
from tampu.runner.request import GenerateOptions


class Tokenizer(Vocabulary, Protocol):
    """The part of a tokenizer that requests use."""

    @property
    def vocabulary_size(self) -> int:
        """The number of tokens."""

    @property
    def eos(self) -> Collection[int]:
        """The tokens that end a text."""

    @property
    def begin_text(self) -> str:
        """What encoding puts in front of a text."""

    def control_tokens(self, texts: Iterable[str]) -> Mapping[str, int]:
        """Return the ids of the control tokens among these texts."""

    def control_texts(self) -> Mapping[int, str]:
        """Return the control tokens with their texts."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens."""

    def token_bytes(self, id: int) -> bytes:
        """Return the bytes of a token."""


class Handle(Protocol):
    """A running request of a backend."""

    @property
    def progress(self) -> tuple[int, int]:
        """The computed and the total prompt tokens; (0, 0): unknown."""

    @property
    def keys(self) -> npt.NDArray[np.int32]:
        """The prompt's tokens as the prefix cache compares them, I32, (n,); empty: unknown."""

    def cancel(self) -> None:
        """End it soon, with `Done("cancelled")`."""


class Backend(Protocol):
    """A loaded model of either engine. Any thread may call it."""

    @property
    def context(self) -> int:
        """The context length of a slot in tokens."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""

    def prepare_file(self, file: bytes, /) -> Sized:
        """Return an image or a video as the model takes it; its length is that of its inputs.

        Raises:
            RequestError: if the model takes none, or cannot take this one.
        """

    def submit(
        self, prompt: Sequence[Item], options: GenerateOptions, sink: Callable[[Event], None]
    ) -> Handle:
        """Begin a request; `sink` receives its events on another thread."""

    def embed(
        self,
        texts: Sequence[Sequence[int]],
        *,
        normalize: bool = True,
        late_chunking: bool = False,
        lora: Lora = NO_LORA,
    ) -> npt.NDArray[np.float32]:
        """Return the embeddings (texts, features) of texts given as tokens.

        With `normalize` they have length 1, if the model has pooling.
        With `late_chunking` they are computed as one text, and have no begin and end tokens.
        """

    def loglikelihood(
        self, shared: Sequence[Item], prompts: Prompts, lora: Lora = NO_LORA
    ) -> list[Scored]:
        """Return the log-probabilities of continuations of prompts that begin with `shared`."""

    def rank(self, pairs: Sequence[Pair], lora: Lora = NO_LORA) -> list[npt.NDArray[np.float32]]:
        """Return the scores (labels,) of queries with documents, by the model's rank head."""

    def warm_up(self) -> None:
        """Set up ahead of time what the first grammar and the first image will need."""

    def hang_reason(self, patience_s: float) -> str:
        """Return why the backend has failed; empty if it is running or idle.

        Args:
            patience_s: how long anything may take without progress.
        """
