"""The engines whose logits are compared: tampu and llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tampu.backends.llamacpp.files import llama_files
from tampu.bench.llama_cpp import LlamaCpp
from tampu.engine.engine import Engine
from tampu.errors import RequestError
from tampu.ml.machine import default_threads
from tampu.store.catalog import resolve

Rows = npt.NDArray[np.float32]


class Subject(Protocol):
    """Something that computes logits of one model."""

    @property
    def name(self) -> str:
        """Its name in tables."""

    def logits(self, tokens: Sequence[int], last: int) -> Rows:
        """Return the logits after each of the last tokens, float32, (last, vocabulary)."""


class Native:
    """tampu with one model; `close` frees it."""

    def __init__(self, model: str, context: int, threads: int | None, cache_type: str) -> None:
        """Load a model, with a context for one window.

        Raises:
            TampuError: as `Engine.load`, and for a model that does not predict tokens or has a
                shorter context.
        """
        self.engine = Engine.load(
            model, context=context, slots=1, threads=threads, cache_type=cache_type,
            spec_type="none",
        )  # fmt: skip
        self.name = self.engine.info.name
        try:
            self.engine.inputs.check_generates()
            if self.engine.context < context:
                raise RequestError(
                    f"{self.name} has a context of {self.engine.context} tokens: "
                    f"windows of {context} are too long"
                )
        except RequestError:
            self.close()
            raise

    @property
    def vocabulary(self) -> Sequence[str]:
        """The tokens of the vocabulary, as the file spells them."""
        return self.engine.info.metadata.strings("tokenizer.ggml.tokens")

    def logits(self, tokens: Sequence[int], last: int) -> Rows:
        """Return the logits after each of the last tokens, float32, (last, vocabulary)."""
        return self.engine.inputs.rows(tokens, wants_logits=True, last=last)

    def close(self) -> None:
        """Free the model."""
        self.engine.close()


@contextmanager
def llama_cpp(
    model: str, context: int, threads: int | None, library: Path | None
) -> Iterator[LlamaCpp]:
    """Load a model in llama.cpp, with its default options.

    Raises:
        RequestError: if llama.cpp isn't installed.
        ComputeError: if it cannot load the model.
    """
    with TemporaryDirectory(prefix="tampu-") as folder:
        text = llama_files(resolve(model), None, Path(folder)).text
        peer = LlamaCpp(
            text, threads=threads or default_threads(), context=context, library=library
        )
        with closing(peer):
            yield peer
