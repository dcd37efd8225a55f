"""Compares two models, or two engines with one model, by their predictions in the same text."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tampu.bench import PEER, check_peer
from tampu.bench.llama_cpp import LlamaCpp
from tampu.engine.arguments import checked
from tampu.errors import RequestError
from tampu.evaluation.statistics import Divergence, Estimate, Positions
from tampu.evaluation.subjects import Native, Subject, llama_cpp
from tampu.evaluation.windows import DEFAULT_CONTEXT, Windows, windows
from tampu.text import read_text
from tampu.tokenizer import Tokenizer

log = logging.getLogger("tampu")

_WORST = 5
_BEFORE = 12  # tokens of the text that are shown before a position


@dataclass(frozen=True, slots=True)
class Difference:
    """A position at which the two distributions are far from each other.

    Attributes:
        position: its index in the arrays of `Positions`.
        kl: the divergence there, in nats.
        before: the end of the text before it.
        token: the text's next token.
        best_a: the most probable one in A.
        best_b: the same in B.
    """

    position: int
    kl: float
    before: str
    token: str
    best_a: str
    best_b: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """How far the predictions of B are from those of A.

    Attributes:
        a: the name of A.
        b: the name of B, with its engine if that is llama.cpp.
        context: the tokens of a window; `tampu.evaluation.windows` says how they are formed.
        windows: how many were computed.
        scored: the tokens that were scored, of all windows together.
        perplexity_a: the perplexity of the text in A.
        perplexity_b: the same in B.
        kl: the Kullback-Leibler divergence of B's distributions from A's.
        same_top: the part of the positions at which both have the same most probable token.
        worst: the positions with the largest divergence, the largest first; zeros left out.
        positions: the values at each position.
    """

    a: str
    b: str
    context: int
    windows: int
    scored: int
    perplexity_a: Estimate
    perplexity_b: Estimate
    kl: Divergence
    same_top: Estimate
    worst: tuple[Difference, ...]
    positions: Positions


@checked
def compare(
    a: str | Path,
    b: str | Path | None = None,
    *,
    text: str | Path,
    peer: str | None = None,
    context: int = DEFAULT_CONTEXT,
    max_windows: int | None = None,
    threads: int | None = None,
    cache_type: str = "f16",
    library: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Compare the predictions of two models with one vocabulary in a text.

    Both models are in memory at the same time.

    Args:
        a: the reference: a GGUF file, a checkpoint's folder or a model's name.
        b: the other one; None: the same as A, computed by `peer`.
        text: the text, or the path of a file with it.
        peer: "llama.cpp": it computes B, with its own defaults; None: tampu does.
        context: the tokens of a window; the text must have two.
        max_windows: how many windows are computed at most; None: all.
        threads: CPU threads; None: one for each fast core.
        cache_type: of tampu's KV cache.
        library: llama.cpp's library; None: that of the xllamacpp package.
        progress: called with the windows that are computed, and their number.

    Raises:
        RequestError: for a file that cannot be read, a text that is too short, vocabularies that
            differ, and a model that does not predict tokens or has a shorter context.
        TampuError: as `Engine.load`; as llama.cpp, if it cannot load the model.
    """
    check_peer(peer)
    if b is None and peer is None:
        raise RequestError(f"compare {a} with what? Give a second model, or peer={PEER!r}")
    if max_windows is not None and max_windows < 1:
        raise RequestError(f"max_windows must be 1 or more, not {max_windows}")
    written = read_text(text) if isinstance(text, Path) else text
    other_model = str(a if b is None else b)
    with closing(Native(str(a), context, threads, cache_type)) as ours:
        tokenizer = ours.engine.tokenizer
        tokens = tokenizer.encode(written, parse_special=False)
        cut = windows(tokens, context, tokenizer.bos if tokenizer.adds_bos else None, max_windows)
        opened: AbstractContextManager[Native | LlamaCpp]
        if peer is None:
            opened = closing(Native(other_model, context, threads, cache_type))
        else:
            opened = llama_cpp(other_model, context, threads, library)
        with opened as other:
            name = other.name
            if isinstance(other, Native):
                _check_tokens(ours, other, tokens, written)
            else:
                _check_count(ours, other)
                name = f"{Path(other_model).name} in {name}"
            positions = _positions(cut, ours, other, progress)
            return _summary(ours.name, name, cut, positions, tokenizer)


def _check_count(a: Native, b: LlamaCpp) -> None:
    """Check that llama.cpp has a vocabulary of the same size.

    Raises:
        RequestError: if it differs.
    """
    size = a.engine.tokenizer.vocabulary_size
    if b.vocabulary != size:
        raise RequestError(
            f"{a.name} has {size} tokens, and the model in {b.name} {b.vocabulary}: only models "
            "with the same vocabulary can be compared"
        )


def _check_tokens(a: Native, b: Native, tokens: Sequence[int], text: str) -> None:
    """Check that two models have one vocabulary; warn if they encode the text differently.

    Raises:
        RequestError: naming the first token that differs.
    """
    ours, theirs = a.vocabulary, b.vocabulary
    if list(ours) != list(theirs):
        pairs = enumerate(zip(ours, theirs, strict=False))
        differs = [f"token {at} is {x!r} and {y!r}" for at, (x, y) in pairs if x != y]
        raise RequestError(
            f"{a.name} and {b.name} have different vocabularies: {len(ours)} and {len(theirs)} "
            f"tokens{''.join(f'; {each}' for each in differs[:1])}; only models with the same "
            "vocabulary can be compared"
        )
    if b.engine.tokenizer.encode(text, parse_special=False) != list(tokens):
        log.warning("%s encodes the text differently: both get the tokens of %s", b.name, a.name)


def _positions(
    cut: Windows, a: Subject, b: Subject, progress: Callable[[int, int], None] | None
) -> Positions:
    parts = []
    for index, window in enumerate(cut.tokens):
        given = [int(token) for token in window[:-1]]
        first, second = (each.logits(given, cut.per_window) for each in (a, b))
        parts.append(Positions.of(window[cut.first :], first, second))
        if progress is not None:
            progress(index + 1, len(cut.tokens))
    return Positions.joined(parts)


def _summary(
    a: str, b: str, cut: Windows, positions: Positions, tokenizer: Tokenizer
) -> Comparison:
    order = np.argsort(-positions.kl, kind="stable")[:_WORST]
    worst = [int(at) for at in order if positions.kl[at] > 0]
    return Comparison(
        a=a,
        b=b,
        context=cut.tokens.shape[1],
        windows=len(cut.tokens),
        scored=len(positions.tokens),
        perplexity_a=Estimate.perplexity(positions.logprobs_a),
        perplexity_b=Estimate.perplexity(positions.logprobs_b),
        kl=Divergence.of(positions.kl),
        same_top=Estimate.mean(positions.same_best.astype(np.float64)),
        worst=tuple(_difference(at, cut, positions, tokenizer) for at in worst),
        positions=positions,
    )


def _difference(at: int, cut: Windows, positions: Positions, tokenizer: Tokenizer) -> Difference:
    window, offset = divmod(at, cut.per_window)
    before = cut.text[window, max(0, cut.first + offset - _BEFORE) : cut.first + offset]
    return Difference(
        position=at,
        kl=float(positions.kl[at]),
        before=tokenizer.decode([int(token) for token in before]),
        token=tokenizer.token_text(int(positions.tokens[at])),
        best_a=tokenizer.token_text(int(positions.best_a[at])),
        best_b=tokenizer.token_text(int(positions.best_b[at])),
    )
