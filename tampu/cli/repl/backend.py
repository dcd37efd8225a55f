"""Who answers in a conversation: a model in this program, or one of a server that runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tampu.chat.output import Content, Thinking
from tampu.chat.output.reasoning import Think
from tampu.runner.events import Usage
from tampu.store.catalog import Prepared
from tampu.store.model_info import ModelInfo
from tampu.store.modelfile import Modelfile


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a model before it is loaded.

    Attributes:
        name: that the user gave, or a path.
        info: what its file says.
        prepared: what belongs to it.
    """

    name: str
    info: ModelInfo
    prepared: Prepared


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be answered.

    Attributes:
        messages: the conversation, the question last; their `images` are photos.
        system: the system message; empty: none.
        parameters: by Ollama's names.
        think: whether to think first; None: as the model does by itself.
        format: what the answer must be like: "json", or a JSON schema; None: anything.
    """

    messages: Sequence[Mapping[str, Any]]
    system: str
    parameters: Mapping[str, Any]
    think: Think
    format: object


class Reply(Iterator[Thinking | Content], Protocol):
    """An answer that comes."""

    @property
    def usage(self) -> Usage | None:
        """What it cost; None before its end."""
        ...

    @property
    def progress(self) -> tuple[int, int]:
        """How many tokens of the prompt are read, and how many it has; (0, 0) if nobody knows."""
        ...

    def close(self) -> None:
        """Want no more of it."""
        ...


class Partner(Protocol):
    """A model that is meant, in memory or not; its methods raise TampuError."""

    @property
    def known(self) -> Known:
        """The model."""
        ...

    def answer(self, asked: Asked) -> Reply:
        """Begin an answer; a model without a template continues the question."""
        ...

    def load(self, parameters: Mapping[str, Any]) -> None:
        """Have the model in memory, as these parameters want it."""
        ...

    def change(self, name: str) -> Known:
        """Mean another model, and load it; if that fails all is as it was."""
        ...

    def embed(
        self, text: str, parameters: Mapping[str, Any], *, truncate: bool
    ) -> npt.NDArray[np.float32]:
        """Return the embedding of a text; one that is too long is cut if `truncate`."""
        ...

    def save(self, name: str, modelfile: Modelfile) -> None:
        """Make a model of this one."""
        ...

    def print_list(self, prefix: str) -> None:
        """Print the models whose names begin so."""
        ...

    def take_load_ns(self) -> int:
        """Return how long loading took since this was asked last, in nanoseconds."""
        ...

    def close(self) -> None:
        """Need the model no more."""
        ...
