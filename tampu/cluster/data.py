"""Batches with Ray Data: classes for `Dataset.map_batches`, whose actors each have a model.

The columns are called as those of `ray.data.llm`. A row that fails has its reason in `error`, and
does not end the others.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import ray

from tampu.engine.engine import Engine
from tampu.errors import TampuError
from tampu.ml.library import loaded_backends
from tampu.settings.settings import disable_backtraces

Batch = dict[str, npt.NDArray[Any]]


class _Actor:
    """A model in an actor.

    It computes with as many threads as the actor has CPUs (`num_cpus` of `map_batches`).
    """

    def __init__(self, model: str, column: str, load: Mapping[str, Any]) -> None:
        loaded_backends()  # drivers that start read the environment
        disable_backtraces()
        cpus = ray.get_runtime_context().get_assigned_resources().get("CPU", 1)
        options = {"threads": max(math.floor(cpus), 1), **load}
        self._engine = Engine.load(model, **options)
        self._column = column

    def _rows(self, batch: Batch) -> list[Any]:
        return list(batch[self._column])


class Chat(_Actor):
    """Answers conversations; all rows of a batch, and those of a few batches, are asked at once."""

    def __init__(
        self,
        model: str,
        column: str = "messages",
        load: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Load a model; the arguments are `fn_constructor_kwargs` of `map_batches`.

        Args:
            model: the name of a model that each node has, or the path of a file.
            column: a text, or messages with `role` and `content`.
            load: the options of `Engine.load`, such as `slots`: how many rows are computed at once.
            options: of all requests, as `Engine.chat` takes them.

        Raises:
            TampuError: if it cannot be loaded.
        """
        super().__init__(model, column, {"slots": 8, **(load or {})})
        self._options = options

    async def __call__(self, batch: Batch) -> Batch:
        """Return a batch with the columns that answers have, beside its own."""
        rows = await asyncio.gather(*map(self._answer, self._rows(batch)))
        names = ("generated_text", "finish_reason", "num_input_tokens", "num_generated_tokens")
        found = zip(*rows, strict=True)
        return batch | {
            name: np.array(column) for name, column in zip((*names, "error"), found, strict=True)
        }

    async def _answer(self, row: Any) -> tuple[str, str, int, int, str]:
        try:
            answer = await self._engine.achat(_messages(row), **self._options)
        except TampuError as error:
            return "", "error", 0, 0, str(error)
        usage = answer.usage
        counts = usage.prompt_tokens, usage.generated_tokens
        return answer.text, answer.reason, *counts, ""


class Embed(_Actor):
    """Embeds texts, all rows of a batch together."""

    def __init__(
        self, model: str, column: str = "text", load: Mapping[str, Any] | None = None
    ) -> None:
        """Load a model; the arguments are those of `Chat`.

        Raises:
            TampuError: if it cannot be loaded.
        """
        super().__init__(model, column, load or {})
        self._features = self._engine.embed(["a"]).shape[1]

    def __call__(self, batch: Batch) -> Batch:
        """Return a batch with `embeddings`, float32, (rows, features), NaN where there is none."""
        texts = [str(row) for row in self._rows(batch)]
        try:
            found, reasons = self._engine.embed(texts), [""] * len(texts)
        except TampuError:  # one of them is at fault
            rows = [self._embedding(text) for text in texts]
            found, reasons = np.stack([each for each, _ in rows]), [reason for _, reason in rows]
        return batch | {"embeddings": found, "error": np.array(reasons)}

    def _embedding(self, text: str) -> tuple[npt.NDArray[np.float32], str]:
        try:
            return self._engine.embed(text)[0], ""
        except TampuError as error:
            return np.full(self._features, np.nan, np.float32), str(error)


def _messages(row: Any) -> list[dict[str, Any]]:
    """Return the messages of a row; Arrow gives a message all fields that some message has."""
    if isinstance(row, str):
        return [{"role": "user", "content": row}]
    return [{name: value for name, value in each.items() if value is not None} for each in row]
