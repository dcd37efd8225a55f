"""Draft models: whether one can guess the tokens of another model."""

from __future__ import annotations

from tampu.errors import UnsupportedModelError
from tampu.ml.gguf import GGUFFile
from tampu.tokenizer.vocabulary import TOKENS

_MAX_PADDING = 128  # tokens: vocabularies of one family are padded differently; as in llama.cpp
_MODEL = "tokenizer.ggml.model"


def check_draft(draft: GGUFFile, target: GGUFFile) -> None:
    """Refuse a draft model whose tokens are not those of the model, or that is not smaller.

    Raises:
        UnsupportedModelError: saying what does not fit ("it has another vocabulary ...").
        ModelFileError: for a file without a vocabulary.
    """
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
    if draft.size_bytes >= target.size_bytes:
        raise UnsupportedModelError(
            f"it is not smaller than the model: {draft.size_bytes} bytes of "
            f"{target.size_bytes}; it would make answers slower"
        )
