"""WordPiece, `tokenizer.ggml.model` = "bert": the tokenizer of embedding models, by the library.

GGUF inverts the spelling of the original vocabulary: a piece that begins a word has the prefix
U+2581 (in the original none), one that continues a word has none (in the original "##"), and
tokens in square brackets are unchanged. Here the original spelling is restored.

Whether text is lowercased: `tokenizer.ggml.normalizer.lowercase`, else whether the vocabulary has
no capitals; whether accents are stripped: `...strip_accents`, else as for capitals (that is what
the library's BERT normalizer does). `tokenizer.tampu.normalizer` comes before these keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tampu.errors import ModelFileError
from tampu.ml.gguf import Metadata
from tampu.tokenizer.blocks import blocks
from tampu.tokenizer.normalization import KEY as NORMALIZER
from tampu.tokenizer.normalization import Normalizer
from tampu.tokenizer.sentencepiece import SPACE
from tampu.tokenizer.vocabulary import (
    HIDDEN_TYPES,
    Defaults,
    Specials,
    TokenType,
    Vocabulary,
    read_specials,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_MAX_WORD = 100  # characters; a longer one is unknown, as in the original
_TIGHT = frozenset({".", "?", "!", ","})  # written without a space before them


class WordPiece:
    """The WordPiece family."""

    adds_space = True
    only_first_space = False
    compares_normalized = False

    def __init__(self, metadata: Metadata, vocabulary: Vocabulary) -> None:
        """Read what the family needs.

        Raises:
            ModelFileError: if there is no unknown token or a special token is wrong.
        """
        self._metadata = metadata
        self._vocabulary = vocabulary
        self.normalizer = Normalizer.of(metadata)
        self.specials = self._read_specials()
        if self.specials.unknown is None:
            raise ModelFileError("key 'tokenizer.ggml.unknown_token_id'", "is missing")
        self._unknown = self.specials.unknown

    def normalize(self, text: str) -> str:
        """Return the text as it is."""
        return text

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes for which a token stands, a space before each word."""
        original = _original(self._vocabulary.texts[token])
        if original.startswith("##"):
            original = original[2:]
        elif original not in _TIGHT:
            original = f" {original}"
        return original.encode("utf-8", "surrogateescape")

    def build_encoder(self) -> WordPieceEncoder:
        """Build the library's object."""
        # Slow to import, and most models have another tokenizer.
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

        texts = list(map(_original, self._vocabulary.texts))
        new = frozenset(self._vocabulary.new)
        has_capitals = any(text != text.lower() for text in texts if not _is_bracketed(text))
        lowers = self._metadata.boolean(
            "tokenizer.ggml.normalizer.lowercase", default=not has_capitals
        )
        strips = self._metadata.boolean("tokenizer.ggml.normalizer.strip_accents", default=lowers)
        tokenizer = Tokenizer(
            models.WordPiece(
                {text: token for token, text in enumerate(texts) if token not in new},
                unk_token=texts[self._unknown],
                max_input_chars_per_word=_MAX_WORD,
            )
        )
        if not self._metadata.has(NORMALIZER):  # else texts come normalized
            tokenizer.normalizer = normalizers.BertNormalizer(
                lowercase=lowers, strip_accents=strips
            )
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return WordPieceEncoder(tokenizer)

    def _read_specials(self) -> Specials:
        """Read the roles; BERT's names for begin and end are [CLS] and [SEP]."""
        vocabulary = self._vocabulary
        known = vocabulary.by_text(vocabulary.ids(*HIDDEN_TYPES, TokenType.NORMAL))
        values = dict(self._metadata)
        for role, names in (("bos", ("cls",)), ("eos", ("seperator", "separator", "sep"))):
            for name in names:
                value = values.get(f"tokenizer.ggml.{name}_token_id")
                if value is not None:
                    values.setdefault(f"tokenizer.ggml.{role}_token_id", value)
        defaults = Defaults(
            bos=known.get("[CLS]"),
            eos=known.get("[SEP]"),
            unknown=known.get("[UNK]"),
            adds_bos=True,
            adds_eos=True,
        )
        return read_specials(Metadata(values), vocabulary, defaults)


class WordPieceEncoder:
    """Encodes texts with the library."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str, *, after_special: bool) -> list[int]:  # noqa: ARG002
        """Return the ids of a text; `after_special` has no effect."""
        ids: list[int] = []
        for block in blocks(text):
            ids += self._tokenizer.encode(block, add_special_tokens=False).ids
        return ids


def _is_bracketed(text: str) -> bool:
    return text.startswith("[") and text.endswith("]")


def _original(text: str) -> str:
    if text.startswith(SPACE):
        return text[1:]
    return text if _is_bracketed(text) else f"##{text}"
