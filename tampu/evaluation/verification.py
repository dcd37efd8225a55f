"""Compares a model file with the checkpoint that it was made of: tokens, then layer by layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tampu.engine.arguments import checked
from tampu.errors import RequestError
from tampu.evaluation.subjects import Native, Rows
from tampu.text import read_text

TEXT = "The quick brown fox jumps over the lazy dog. 3 + 4 = 7; def f(x): return x**2  # ñ, 你好\n"
"""What is computed if no text is given: words, numbers, code, and letters of other languages."""
DEFAULT_LIMIT = 0.01
_MAX_TOKENS = 256
# The parts of a layer in the order in which it computes them.
_ORDER = (
    "hidden_states", "attentions", "attention_outputs", "mixer_outputs", "router_logits",
    "mlp_outputs", "layer_outputs",
)  # fmt: skip


class NamedToken(NamedTuple):
    """A token's id, and its text as the vocabulary spells it."""

    id: int
    text: str


@dataclass(frozen=True, slots=True)
class TokenDifference:
    """The first token of the text that differs.

    Attributes:
        position: its index.
        file: the file's token there; None: it has no more.
        checkpoint: the same of the checkpoint.
    """

    position: int
    file: NamedToken | None
    checkpoint: NamedToken | None


@dataclass(frozen=True, slots=True)
class PartError:
    """How far the values of one part are from those of the checkpoint.

    Attributes:
        part: a point of `tampu.nn.points` with its layer, as "mlp_outputs:3", or "logits".
        error: the norm of the difference, divided by that of the checkpoint's values.
        position: the token at which the difference is largest.
    """

    part: str
    error: float
    position: int


@dataclass(frozen=True, slots=True)
class Verification:
    """How far a model file is from its checkpoint.

    Attributes:
        file: the name of the file's model.
        checkpoint: the folder.
        limit: errors up to this are not counted as differences.
        tokens: how many were computed: the checkpoint's.
        token_difference: the first token that differs; None: all are the same.
        parts: the errors of all parts, in the order of their computation.
    """

    file: str
    checkpoint: str
    limit: float
    tokens: int
    token_difference: TokenDifference | None
    parts: tuple[PartError, ...]

    @property
    def first(self) -> PartError | None:
        """The first part whose error is over the limit; None: there is none."""
        return next((part for part in self.parts if not part.error <= self.limit), None)

    @property
    def is_same(self) -> bool:
        """Whether neither a token nor a part differs."""
        return self.token_difference is None and self.first is None


@checked
def verify(
    file: str | Path,
    checkpoint: str | Path,
    *,
    text: str | Path = TEXT,
    limit: float = DEFAULT_LIMIT,
    threads: int | None = None,
) -> Verification:
    """Compare a model file with the checkpoint that it was made of.

    Both compute the checkpoint's tokens of a text. The checkpoint is converted first, with the
    types that it has. The cache is F32. Both models are in memory at the same time.

    Args:
        file: a GGUF file or a model's name.
        checkpoint: a folder with config.json and safetensors.
        text: the text, or the path of a file with it; its first 256 tokens are used.
        limit: the relative error from which a part differs.
        threads: CPU threads; None: one for each fast core.

    Raises:
        RequestError: for a checkpoint that is not a folder, a text that is empty or cannot be read,
            and models of other layers or widths.
        TampuError: as `Engine.load`.
    """
    if not Path(checkpoint).is_dir():
        raise RequestError(f"{checkpoint} is not a folder with a checkpoint")
    if not limit > 0:
        raise RequestError(f"limit must be more than 0, not {limit}")
    written = read_text(text) if isinstance(text, Path) else text
    if not written:
        raise RequestError("the text is empty")
    with (
        closing(Native(str(file), _MAX_TOKENS, threads, "f32")) as ours,
        closing(Native(str(checkpoint), _MAX_TOKENS, threads, "f32")) as theirs,
    ):
        tokens = theirs.engine.tokenizer.encode(written, parse_special=False)[:_MAX_TOKENS]
        difference = _token_difference(ours, theirs, written)
        size = len(ours.vocabulary)
        if max(tokens, default=0) >= size:
            raise RequestError(f"{ours.name} has {size} tokens, and the checkpoint more")
        parts = tuple(_errors(ours, theirs, tokens))
        return Verification(ours.name, str(checkpoint), limit, len(tokens), difference, parts)


def _token_difference(ours: Native, theirs: Native, text: str) -> TokenDifference | None:
    """Return the first token that differs, of those that are compared."""
    mine, other = (_named(each, text) for each in (ours, theirs))
    for position, (file, checkpoint) in enumerate(zip_longest(mine, other)):
        if file is None or checkpoint is None or file.id != checkpoint.id:
            return TokenDifference(position, file, checkpoint)
    return None


def _named(model: Native, text: str) -> list[NamedToken]:
    tokenizer = model.engine.tokenizer
    tokens = tokenizer.encode(text, parse_special=False)[:_MAX_TOKENS]
    return [NamedToken(token, tokenizer.token_text(token)) for token in tokens]


def _errors(ours: Native, theirs: Native, tokens: Sequence[int]) -> Iterator[PartError]:
    """Yield the errors of all parts, in the order of their computation."""
    mine, other = (_values(each, tokens) for each in (ours, theirs))
    if mine.keys() != other.keys():
        more = sorted({f"{name}:{layer}" for layer, name in mine.keys() ^ other.keys()})
        raise RequestError(f"the models have other layers: only one of them has {more[0]}")
    named = {f"{_ORDER[part]}:{layer}": key for key in sorted(mine) for layer, part in [key]}
    pairs = [(name, mine[key], other[key]) for name, key in named.items()]
    count = len(tokens)
    pairs.append(("logits", ours.logits(tokens, count), theirs.logits(tokens, count)))
    for name, rows, wanted in pairs:
        if rows.shape != wanted.shape:
            shapes = f"{rows.shape[1]} and {wanted.shape[1]}"
            raise RequestError(f"the models have other widths: {name} has {shapes} values")
        yield _error(name, rows, wanted)


def _error(name: str, rows: Rows, wanted: Rows) -> PartError:
    difference = np.linalg.norm(rows.astype(np.float64) - wanted, axis=-1)
    scale = float(np.linalg.norm(wanted.astype(np.float64)))
    total = float(np.linalg.norm(difference))
    error = total / scale if scale else total
    return PartError(name, error, int(difference.argmax()))


def _values(model: Native, tokens: Sequence[int]) -> dict[tuple[int, int], Rows]:
    """Return the values of all points, by the layer and the place in `_ORDER`."""
    has = model.engine.runner.call(model.engine.model.graphs.find_points)
    names = sorted({point.name for point in has} & {*_ORDER})
    captured = model.engine.capture([*tokens], names)
    return {
        (layer, _ORDER.index(name)): _by_token(rows)
        for name in names
        for layer, rows in captured[name].items()
    }


def _by_token(values: Rows) -> Rows:
    """Return values with a row for each token; attention weights are (heads, tokens, keys)."""
    if values.ndim == 2:
        return values
    rows: Rows = values.swapaxes(0, 1).reshape(values.shape[1], -1)
    return rows
