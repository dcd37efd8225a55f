"""SentencePiece's unigram model, `tokenizer.ggml.model` = "t5": XLM-RoBERTa, by the library.

A text is normalized by a table in the file (`precompiled_charsmap`), and each word gets U+2581 in
front. Of all ways to split it into tokens the one with the highest sum of scores is taken.

Source: Kudo, arXiv:1804.10959.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tampu.errors import ModelFileError
from tampu.ml.gguf import Metadata
from tampu.tokenizer.blocks import blocks
from tampu.tokenizer.sentencepiece import SPACE
from tampu.tokenizer.vocabulary import SCORES, Defaults, Vocabulary, read_specials

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_CHARSMAP = "tokenizer.ggml.precompiled_charsmap"
_DEFAULTS = Defaults(bos=0, eos=2, unknown=3, adds_bos=True, adds_eos=True)


class Unigram:
    """The unigram family."""

    adds_space = True

    def __init__(self, metadata: Metadata, vocabulary: Vocabulary) -> None:
        """Read what the family needs.

        Raises:
            ModelFileError: if there are no scores, or a special token is wrong.
        """
        if not metadata.has(SCORES):
            raise ModelFileError(f"key '{SCORES}'", "is missing; unigram models need it")
        self._vocabulary = vocabulary
        self._charsmap = b""
        if metadata.has(_CHARSMAP):
            self._charsmap = metadata.integers(_CHARSMAP).astype("uint8").tobytes()
        self._splits_words = metadata.boolean(
            "tokenizer.ggml.remove_extra_whitespaces", default=True
        )
        self.specials = read_specials(metadata, vocabulary, _DEFAULTS)
        if self.specials.unknown is None:
            raise ModelFileError("key 'tokenizer.ggml.unknown_token_id'", "is missing")
        self._unknown = self.specials.unknown

    def normalize(self, text: str) -> str:
        """Return the text as it is."""
        return text

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes for which a token stands."""
        return self._vocabulary.texts[token].replace(SPACE, " ").encode("utf-8", "surrogateescape")

    def build_encoder(self) -> UnigramEncoder:
        """Build the library's object.

        Raises:
            ModelFileError: if the table of the normalization is damaged.
        """
        # Slow to import, and most models have another tokenizer.
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

        pairs = zip(self._vocabulary.texts, self._vocabulary.scores.tolist(), strict=True)
        tokenizer = Tokenizer(models.Unigram(list(pairs), unk_id=self._unknown))
        if self._charsmap:
            try:
                tokenizer.normalizer = normalizers.Precompiled(self._charsmap)
            except Exception as error:
                raise _damaged() from error
        words = [pre_tokenizers.WhitespaceSplit()] if self._splits_words else []
        space = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*words, space])
        return UnigramEncoder(tokenizer)


class UnigramEncoder:
    """Encodes texts with the library."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str, *, after_special: bool) -> list[int]:  # noqa: ARG002
        """Return the ids of a text; `after_special` has no effect.

        Raises:
            ModelFileError: if the table of the normalization is damaged.
        """
        ids: list[int] = []
        for block in blocks(text):
            try:
                ids += self._tokenizer.encode(block, add_special_tokens=False).ids
            except BaseException as error:
                if type(error).__name__ != "PanicException":  # the library's, of no other kind
                    raise
                raise _damaged() from error
        return ids


def _damaged() -> ModelFileError:
    return ModelFileError(f"key '{_CHARSMAP}'", "is damaged: texts cannot be normalized by it")
