"""Ranking by models with a rank head: whether documents match a query (GGUF's pooling type 4).

Such a model reads a query and a document together, and its head gives scores of labels: one, whose
sigmoid is the probability of a match, or several, of which `yes` is a match.

The pair is in the template `tokenizer.chat_template.rerank` if the file has one (Qwen3-Reranker),
else as the model was trained with two texts: `[CLS] query [SEP] document [SEP]` for BERT,
`<s> query </s></s> document </s>` for others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tampu.engine.pooling import RANK, pooling_of
from tampu.engine.questions import RERANK_INSTRUCTION, Decision, Decisions
from tampu.engine.requests import Pair
from tampu.errors import ContextLengthError, RequestError
from tampu.ml.metadata import Metadata
from tampu.ml.vectors import check_finite
from tampu.tokenizer import Tokenizer

Labels = npt.NDArray[np.float32]
"""The scores of the labels."""


_TEMPLATE = "tokenizer.chat_template.rerank"
_PLACES = re.compile(r"(\{query\}|\{document\})")
_YES = "yes"


Ranker: TypeAlias = Callable[[Sequence[Pair]], Sequence[Sequence[float]]]
"""Returns the scores of the labels for each pair."""


@dataclass(frozen=True, slots=True)
class PairBuilder:
    """Makes pairs for one model.

    Attributes:
        tokenizer: the model's.
        template: with the places `{query}` and `{document}`; "": they are joined by tokens.
        begin: tokens before the query.
        between: tokens between the query and the document; the first of them ends the query.
        end: tokens after the document.
        labels: of the scores; empty: unknown.
    """

    tokenizer: Tokenizer
    template: str
    begin: list[int]
    between: list[int]
    end: list[int]
    labels: tuple[str, ...]

    @classmethod
    def for_model(cls, metadata: Metadata, tokenizer: Tokenizer) -> PairBuilder | None:
        """Return the builder for a model; None if the model does not rank by a head."""
        if pooling_of(metadata, None) != RANK:
            return None
        around = tokenizer.encode("")
        begin, end = around[:1] if len(around) > 1 else [], around[-1:]
        # llama.cpp's files say of ModernBERT's tokenizer, too, that it doubles the separator.
        is_single = metadata.string("tokenizer.ggml.model", "") == "bert"
        is_single = is_single or metadata.string("tokenizer.ggml.pre", "") == "modern-bert"
        doubles = metadata.boolean("tokenizer.ggml.add_sep_token", default=not is_single)
        between = end * 2 if doubles and not is_single else end
        labels = metadata.strings("classifier.output_labels", default=())
        return cls(tokenizer, metadata.string(_TEMPLATE, ""), begin, between, end, tuple(labels))

    def pairs(self, query: str, documents: Sequence[str], instruction: str) -> list[Pair]:
        """Return a query with each document.

        Raises:
            RequestError: for an instruction, if the model takes none.
        """
        if instruction != RERANK_INSTRUCTION and RERANK_INSTRUCTION not in self.template:
            raise RequestError("instruction: the model was trained without instructions")
        if self.template:
            template = self.template.replace(RERANK_INSTRUCTION, instruction)
            return [self._filled(template, query, document) for document in documents]
        encode = self.tokenizer.encode
        first = [*self.begin, *encode(query, add_special=False, parse_special=False), *self.between]
        # The end token of the first text is in its segment, and so is one that separates the two.
        return [
            Pair(
                [
                    *first,
                    *encode(document, add_special=False, parse_special=False),
                    *self.end,
                ],
                len(first),
                query,
                document,
            )
            for document in documents
        ]

    def _filled(self, template: str, query: str, document: str) -> Pair:
        texts = {"{query}": query, "{document}": document}
        pieces = [(texts.get(part, part), part not in texts) for part in _PLACES.split(template)]
        tokens = self.tokenizer.encode_pieces(pieces)
        return Pair(tokens, len(tokens), query, document)


def rank(
    builder: PairBuilder,
    ranker: Ranker,
    context: int,
    query: str,
    documents: Sequence[str],
    instruction: str,
) -> Decisions:
    """Return for each document the probabilities that it matches the query, and that it does not.

    `context` is the maximum number of tokens of a pair.

    Raises:
        RequestError: for an instruction that the model does not take, and for a model whose labels
            do not say what a match is.
        ContextLengthError: naming the document that is too long.
        ComputeError: if a score is NaN or infinite.
    """
    pairs = builder.pairs(query, documents, instruction)
    for index, pair in enumerate(pairs):
        if len(pair.tokens) > context:
            what = f"documents[{index}] with the query is too long"
            raise ContextLengthError.of(len(pair.tokens), context, what)
    found = [np.array(scores, np.float32) for scores in ranker(pairs)]
    check_finite(found, "scores", "documents")
    matches = [_match(scores, builder.labels) for scores in found]
    answers = tuple(Decision((match, 1 - match), 1.0) for match in matches)
    return Decisions(answers, sum(len(pair.tokens) for pair in pairs), 0)


def _match(scores: Labels, labels: Sequence[str]) -> float:
    """Return the probability of a match from the scores of the labels."""
    values = scores.astype(np.float64)
    if len(values) == 1 and len(labels) > 1:
        return float(values[0])  # llama.cpp's, the probability of the first label
    if len(values) == 1:
        return float(0.5 * (1 + np.tanh(0.5 * values[0])))  # the sigmoid, without an overflow
    if _YES not in labels or len(labels) != len(values):
        named = ", ".join(labels) or "no names"
        raise RequestError(
            f"the model classifies: its {len(values)} labels ({named}) do not have '{_YES}', so "
            "what a match is is not known"
        )
    powers = np.exp(values - values.max())
    return float(powers[labels.index(_YES)] / powers.sum())
