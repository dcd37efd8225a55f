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
from tampu.tokenizer.normalization import Normalizer, charsmap_steps
from tampu.tokenizer.sentencepiece import METASPACE, SPACE, Metaspace, read_metaspace
from tampu.tokenizer.vocabulary import SCORES, Defaults, TokenType, Vocabulary, read_specials

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_DEFAULTS = Defaults(bos=0, eos=2, unknown=3, adds_bos=True, adds_eos=True)


class Unigram:
    """The unigram family."""

    compares_normalized = False

    def __init__(self, metadata: Metadata, vocabulary: Vocabulary) -> None:
        """Read what the family needs.

        Raises:
            ModelFileError: if there are no scores, or a special token is wrong.
        """
        if not metadata.has(SCORES):
            raise ModelFileError(f"key '{SCORES}'", "is missing; unigram models need it")
        self._vocabulary = vocabulary
        self._spaces = read_metaspace(metadata, adds_space=True)
        if not metadata.has(METASPACE):  # llama.cpp's files
            self._spaces = Metaspace("always" if self._spaces.adds else "never", split=True)
        self.adds_space = self._spaces.adds
        self.only_first_space = self._spaces.only_first
        self.normalizer = Normalizer.of(metadata, [*charsmap_steps(metadata)])
        self._splits_words = not metadata.has(METASPACE) and metadata.boolean(
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
        """Build the library's object."""
        # Slow to import, and most models have another tokenizer.
        from tokenizers import Tokenizer, models, pre_tokenizers

        vocabulary = self._vocabulary
        pairs = list(zip(vocabulary.texts, vocabulary.scores.tolist(), strict=True))
        new = frozenset(vocabulary.new)
        for token in (*vocabulary.new, *vocabulary.ids(TokenType.UNUSED)):
            # No text has this, and its score isn't the lowest, from which that of unknown follows.
            if token in new or pairs[token][0] == f"[PAD{token}]":
                pairs[token] = (f"\uffff{token}\uffff", 0.0)
        tokenizer = Tokenizer(models.Unigram(pairs, unk_id=self._unknown))
        words = [pre_tokenizers.WhitespaceSplit()] if self._splits_words else []
        scheme = "always" if self.adds_space and self._splits_words else "never"
        space = pre_tokenizers.Metaspace(SPACE, scheme, split=self._spaces.split)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*words, space])
        return UnigramEncoder(tokenizer, None if self._splits_words else self._spaces)


class UnigramEncoder:
    """Encodes texts with the library."""

    def __init__(self, tokenizer: Tokenizer, spaces: Metaspace | None) -> None:
        """Take the library's object, and what texts get in front; None: it does that itself."""
        self._tokenizer = tokenizer
        self._spaces = spaces

    def encode(self, text: str, *, after_special: bool) -> list[int]:
        """Return the ids of a text."""
        if self._spaces is not None:
            text = text.replace(" ", SPACE)
            if after_special and self._spaces.is_due(text):
                text = SPACE + text
        ids: list[int] = []
        for block in blocks(text) if self._spaces is None else (text,):
            ids += self._tokenizer.encode(block, add_special_tokens=False).ids
        return ids
