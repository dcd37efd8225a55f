"""The tokenizer that a model file describes."""

from __future__ import annotations

from collections.abc import Callable

from tampu.errors import UnsupportedModelError
from tampu.ml.gguf import Metadata
from tampu.tokenizer.added import read_added_tokens
from tampu.tokenizer.bytepair import BytePair
from tampu.tokenizer.charpair import CharacterPair
from tampu.tokenizer.sentencepiece import SentencePiece
from tampu.tokenizer.tokenizer import Family, Tokenizer
from tampu.tokenizer.unigram import Unigram
from tampu.tokenizer.vocabulary import Vocabulary, read_vocabulary
from tampu.tokenizer.wordpiece import WordPiece

_FAMILIES: dict[str, Callable[[Metadata, Vocabulary], Family]] = {
    "gpt2": BytePair,
    "gemma4": CharacterPair,
    "llama": SentencePiece,
    "bert": WordPiece,
    "t5": Unigram,
}


def load_tokenizer(metadata: Metadata) -> Tokenizer:
    """Return the tokenizer that `tokenizer.ggml.*` describes.

    Takes a few milliseconds; the dictionaries for encoding are built at the first `encode` or by
    `Tokenizer.prepare`.

    Raises:
        ModelFileError: naming the key and what is wrong with it.
        UnsupportedModelError: if the kind of tokenizer is not known.
    """
    name = metadata.string("tokenizer.ggml.model")
    if name not in _FAMILIES:
        raise UnsupportedModelError(
            f"the tokenizer {name!r} (tokenizer.ggml.model) is not known; "
            f"known: {', '.join(sorted(_FAMILIES))}"
        )
    vocabulary = read_vocabulary(metadata)
    family = _FAMILIES[name](metadata, vocabulary)
    return Tokenizer(vocabulary, family, read_added_tokens(metadata, len(vocabulary)))
