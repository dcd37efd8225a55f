"""Draft models: whether one can guess the tokens of another model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tampu.errors import UnsupportedModelError
from tampu.ml.gguf import GGUFFile
from tampu.tokenizer.vocabulary import TOKENS, TYPES, TokenType

_MAX_PADDING = 128  # tokens: vocabularies of one family are padded differently; as in llama.cpp
_ASSISTANT = "-assistant"  # after the architecture of the model
_MODEL = "tokenizer.ggml.model"
_TEMPLATE = "tokenizer.chat_template"


def is_assistant(file: GGUFFile) -> bool:
    """Whether a file guesses the tokens of a model from this model's cache, and has none."""
    return file.metadata.architecture.endswith(_ASSISTANT)


def check_draft(draft: GGUFFile, target: GGUFFile) -> None:
    """Refuse a draft model with other tokens or another chat template, or that is not smaller.

    Raises:
        UnsupportedModelError: saying what does not fit ("it has another vocabulary ...").
        ModelFileError: for a file without a vocabulary.
    """
    if is_assistant(draft):
        _check_assistant(draft, target)
    kinds = [file.metadata.string(_MODEL) for file in (draft, target)]
    if kinds[0] != kinds[1]:
        raise UnsupportedModelError(
            f"it has another tokenizer than the model: {kinds[0]}, not {kinds[1]}"
        )
    own, wanted = (list(file.metadata.strings(TOKENS)) for file in (draft, target))
    if abs(len(own) - len(wanted)) > _MAX_PADDING:
        raise UnsupportedModelError(
            f"it has another vocabulary than the model: {len(own)} tokens, not {len(wanted)}"
        )
    for number, (ours, theirs) in enumerate(zip(own, wanted, strict=False)):
        if ours != theirs:
            raise UnsupportedModelError(
                f"it has another vocabulary than the model: token {number} is {ours!r}, "
                f"not {theirs!r}"
            )
    _check_template(draft, target)
    if draft.size_bytes >= target.size_bytes:
        raise UnsupportedModelError(
            f"it is not smaller than the model: {draft.size_bytes} bytes of "
            f"{target.size_bytes}; it would make answers slower"
        )


def _check_assistant(draft: GGUFFile, target: GGUFFile) -> None:
    """Refuse an assistant of another architecture, or of a model of another width."""
    architecture = draft.metadata.architecture.removesuffix(_ASSISTANT)
    if target.metadata.architecture != architecture:
        raise UnsupportedModelError(
            f"it guesses the tokens of '{architecture}', and the model is of "
            f"'{target.metadata.architecture}'"
        )
    own = draft.metadata.integer("embedding_length_out")
    wanted = target.metadata.integer("embedding_length")
    if own != wanted:
        raise UnsupportedModelError(
            f"it guesses the tokens of a model with hidden states of {own} features, not {wanted}"
        )


def _check_template(draft: GGUFFile, target: GGUFFile) -> None:
    """Refuse a draft model whose chat template writes turns with other control tokens.

    Templates of one family differ in details, so it is enough that the tokens of one are those of
    the other, or some of them.
    """
    own, wanted = (
        _marks(file, file.metadata.string(_TEMPLATE, default="")) for file in (draft, target)
    )
    if own and wanted and not (own <= wanted or wanted <= own):
        raise UnsupportedModelError(
            f"it has another chat template than the model: with {min(own - wanted)}, "
            f"not {min(wanted - own)}"
        )


def _marks(file: GGUFFile, template: str) -> set[str]:
    """Return the control tokens of a vocabulary that are in the text of a template."""
    tokens: Sequence[str] = file.metadata.strings(TOKENS)
    types = file.metadata.integers(TYPES, default=())
    control = np.flatnonzero(types[: len(tokens)] == TokenType.CONTROL).tolist()
    return {tokens[each] for each in control if tokens[each] and tokens[each] in template}
