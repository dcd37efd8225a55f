"""The tokenizer of one model: text to tokens and back, the same for all families.

Special tokens in a text. Control tokens are parsed only if the caller requests it
(`parse_special`): text from a user must not be able to end a turn. User-defined tokens are always
parsed, as Hugging Face's tokenizers and llama.cpp do it, because they are text that the model
knows as one token. The begin and end of sequence are added only if the caller requests it
(`add_special`), for the first piece of a text that is tokenized in pieces.

Normalization changes the text between special tokens; those that an added token's flags declare as
normalized are searched for afterwards. Control tokens count by where their characters come from.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from tampu.errors import RequestError
from tampu.tokenizer.added import AddedToken
from tampu.tokenizer.blocks import slices
from tampu.tokenizer.decoding import TRACE, IncrementalDecoder, logger
from tampu.tokenizer.normalization import Normalizer
from tampu.tokenizer.ranges import NO_RANGES, Ranges
from tampu.tokenizer.special import SpecialMatcher
from tampu.tokenizer.vocabulary import HIDDEN_TYPES, Specials, TokenType, Vocabulary


class Encoder(Protocol):
    """Turns text into tokens; costly to build, so it is built when it is first needed."""

    def encode(self, text: str, *, after_special: bool) -> list[int]:
        """Return the ids of a text without special tokens.

        Args:
            text: not empty, as `Family.normalize` gave it.
            after_special: whether it is at the start or follows a special token, so that the
                space that the model puts in front is due.
        """
        ...


class Family(Protocol):
    """One kind of tokenizer with its vocabulary; cheap to build."""

    specials: Specials
    # Whether the first token of a text begins with a space that isn't in the text.
    adds_space: bool
    # Whether only the start of a text gets it, and not what follows a special token.
    only_first_space: bool
    normalizer: Normalizer
    # Whether special tokens are searched for in the normalized text, unless their flags say more.
    compares_normalized: bool

    def normalize(self, text: str) -> str:
        """Return a normalized text with the same number of characters, as the encoder wants it."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token, control tokens included; maybe part of a character."""
        ...

    def build_encoder(self) -> Encoder:
        """Build the encoder."""
        ...


@dataclass(frozen=True, slots=True)
class _Matchers:
    """Where special tokens are searched for: in the text as it is, and in the normalized text."""

    raw: SpecialMatcher
    normal: SpecialMatcher


class Tokenizer:
    """Text to tokens and back; thread-safe.

    Attributes:
        vocabulary: the tokens and what they are.
        vocabulary_size: how many there are.
        bos: the token that begins a text, if there is one.
        eos: all tokens that end one.
        adds_bos: whether `encode` puts `bos` in front where special tokens are added.
        adds_eos: whether it puts the end of sequence at the end.
        adds_space: whether it puts a space in front of texts.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        family: Family,
        added: Mapping[int, AddedToken] | None = None,
    ) -> None:
        """Take the vocabulary, its family, and the flags of added tokens, if the file has them."""
        self.vocabulary = vocabulary
        self.vocabulary_size = len(vocabulary)
        specials = family.specials
        self.bos = specials.bos
        self.eos = specials.ends
        self.adds_bos = specials.adds_bos
        self.adds_eos = specials.adds_eos
        self.adds_space = family.adds_space
        self._prefix = [specials.bos] if specials.adds_bos and specials.bos is not None else []
        self._suffix = [specials.eos] if specials.adds_eos and specials.eos is not None else []
        self._family = family
        self._added = added
        self._lock = threading.Lock()
        self._built: Encoder | None = None

    def __repr__(self) -> str:
        return f"<Tokenizer {type(self._family).__name__} of {self.vocabulary_size} tokens>"

    def prepare(self) -> None:
        """Build what `encode` needs, unless it is built; may be called from another thread."""
        self._encoder()

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Return the tokens of a text.

        Args:
            text: anything; lone surrogates become U+FFFD.
            add_special: whether to add the begin and end of sequence that the model wants; True
                for a whole text or the first piece of one, be it empty.
            parse_special: whether control tokens that are written out in the text ("<|eot_id|>")
                become those tokens; if not, they are text like any other.
        """
        ids = [*self._prefix] if add_special else []
        matchers = self._all_specials if parse_special else self._user_defined
        ids += self._encode_parts(self._split(_well_formed(text), matchers))
        if add_special:
            ids += self._suffix
            self._warn_of_doubled_bos(ids)
        logger.log(TRACE, "encode %r -> %s", text, ids, extra={"text": text, "ids": ids})
        return ids

    @property
    def around(self) -> tuple[list[int], list[int]]:
        """The tokens that `encode` puts before and after a text."""
        return [*self._prefix], [*self._suffix]

    @property
    def begin_text(self) -> str:
        """What `encode` puts in front of a text: the begin token, and a space."""
        begin = "".join(map(self.token_text, self._prefix))
        return begin + " " if self.adds_space else begin

    def encode_pieces(
        self, pieces: Iterable[tuple[str, bool]], *, continues: bool = False
    ) -> list[int]:
        """Return the tokens of a text that comes in pieces, nothing added at either end.

        Args:
            pieces: text, and whether control tokens written out in it become those tokens. One
                that lies in several pieces counts only if it may in all of them. Apart from that
                the result is that of the joined pieces: words may span pieces.
            continues: whether they continue other text, without a space in front.
        """
        texts: list[str] = []
        hidden: list[tuple[int, int]] = []  # where no control token counts
        length = 0
        for piece, parses in pieces:
            texts.append(_well_formed(piece))
            if not parses:
                hidden.append((length, length + len(texts[-1])))
            length += len(texts[-1])
        parts = self._split("".join(texts), self._all_specials, Ranges(hidden), continues=continues)
        return self._encode_parts(parts, after_special=not continues)

    def encode_inside(self, text: str) -> list[int]:
        """Return the tokens of plain text that continues other text, without a space in front."""
        normal = self._normal(_well_formed(text), continues=True)
        return self._encoder().encode(normal, after_special=False) if normal else []

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """Return the text of tokens.

        A leading space that the model's own tokenizer adds when it encodes is removed.

        Args:
            ids: the tokens.
            special: whether control tokens are shown as written, or left out.
        """
        ids = list(ids)
        bytes_of = self._visible_bytes if special else self.token_bytes
        each = {token: bytes_of(token) for token in set(ids)}
        data = b"".join(map(each.__getitem__, ids))
        if self.adds_space:
            data = data.removeprefix(b" ")
        text = data.decode("utf-8", "replace")
        logger.log(TRACE, "decode %s -> %r", ids, text, extra={"text": text, "ids": ids})
        return text

    def decoder(
        self,
        *,
        special: bool = False,
        continues: bool = True,
        shown: Iterable[str] = (),
    ) -> IncrementalDecoder:
        """Return a decoder for the tokens of one text as they come.

        Args:
            special: as for `decode`.
            shown: texts of control tokens that are shown even if the others are not.
            continues: whether the text continues another, as an answer continues its prompt; a
                leading space is then kept. If not, the result is that of `decode`.
        """
        return IncrementalDecoder(
            self._visible_bytes if special else self._bytes_with(self.control_tokens(shown)),
            strip_space=self.adds_space and not continues,
        )

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes for which a token stands; b"" for control tokens.

        Raises:
            RequestError: if there is no such token.
        """
        return b"" if self.is_control(token) else self._family.token_bytes(token)

    def token_text(self, token: int) -> str:
        """Return a token as text for people: control tokens as written, broken bytes as U+FFFD."""
        return self._visible_bytes(token).decode("utf-8", "replace")

    def is_control(self, token: int) -> bool:
        """Return whether a token has no text: a control token or the unknown token."""
        self._check(token)
        return self.vocabulary.is_type(token, *HIDDEN_TYPES)

    def control_tokens(self, texts: Iterable[str]) -> dict[str, int]:
        """Return the ids of the control tokens among these texts."""
        wanted = set(texts)
        return {text: self._control[text] for text in wanted & self._control.keys()}

    def control_texts(self) -> dict[int, str]:
        """Return all control tokens with their texts."""
        return {token: self.vocabulary.texts[token] for token in self.vocabulary.ids(*HIDDEN_TYPES)}

    def all_token_bytes(self) -> list[bytes]:
        """Return the bytes of every token, b"" for control tokens; takes a while."""
        bytes_of, hidden = self._family.token_bytes, set(self.vocabulary.ids(*HIDDEN_TYPES))
        tokens = range(self.vocabulary_size)
        return [b"" if token in hidden else bytes_of(token) for token in tokens]

    def is_end(self, token: int) -> bool:
        """Return whether a token ends a text."""
        return token in self.eos

    def _visible_bytes(self, token: int) -> bytes:
        self._check(token)
        return self._family.token_bytes(token)

    def _normal(self, text: str, *, continues: bool = False) -> str:
        return self._family.normalize(self._family.normalizer(text, continues=continues))

    def _split(
        self,
        text: str,
        matchers: _Matchers,
        hidden: Ranges = NO_RANGES,
        *,
        continues: bool = False,
    ) -> Iterator[str | int]:
        """Yield the normalized texts between special tokens, and the ids of these.

        Args:
            text: anything without lone surrogates.
            matchers: the special tokens.
            hidden: where no control token counts.
            continues: whether the text continues another.
        """
        for begin, end, token in matchers.raw.find(text, self._counts(hidden)):
            if token is not None:
                yield token
                continue
            part = text[begin:end]
            normal = self._normal(part, continues=continues and begin == 0)
            if not matchers.normal.ids:
                if normal:
                    yield normal
                continue
            inner = hidden.within(begin, end)
            if inner and normal != self._family.normalize(part):
                inner = inner.mapped(self._family.normalizer.origins(part))
            for start, stop, found in matchers.normal.find(normal, self._counts(inner)):
                yield normal[start:stop] if found is None else found

    def _counts(self, hidden: Ranges) -> Callable[[int, int, int], bool] | None:
        """Return whether a special token counts from one position to another."""
        if not hidden:
            return None
        is_type = self.vocabulary.is_type
        return lambda token, begin, end: (
            is_type(token, TokenType.USER_DEFINED) or not hidden.overlap(begin, end)
        )

    def _encode_parts(self, parts: Iterable[str | int], *, after_special: bool = True) -> list[int]:
        """Return the tokens of texts without special tokens, and of these between them."""
        ids: list[int] = []
        encoder = self._encoder()
        follows = not self._family.only_first_space
        for part in parts:
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += encoder.encode(part, after_special=after_special)
            after_special = follows and isinstance(part, int)
        return ids

    def _check(self, token: int) -> None:
        if not 0 <= token < self.vocabulary_size:
            named = f"token {token}" if abs(token) < 2**63 else "a token of more than 63 bits"
            raise RequestError(
                f"{named} is outside the vocabulary; ids go from 0 to {self.vocabulary_size - 1}"
            )

    def _encoder(self) -> Encoder:
        if self._built is None:
            with self._lock:
                if self._built is None:
                    self._built = self._family.build_encoder()
        return self._built

    def _bytes_with(self, shown: Mapping[str, int]) -> Callable[[int], bytes]:
        visible = {token: text.encode() for text, token in shown.items()}
        if not visible:
            return self.token_bytes
        return lambda token: visible.get(token) or self.token_bytes(token)

    @cached_property
    def _control(self) -> dict[str, int]:
        return self.vocabulary.by_text(self.vocabulary.ids(*HIDDEN_TYPES))

    @cached_property
    def _user_defined(self) -> _Matchers:
        return self._matchers(TokenType.USER_DEFINED)

    @cached_property
    def _all_specials(self) -> _Matchers:
        return self._matchers(TokenType.USER_DEFINED, *HIDDEN_TYPES)

    def _matchers(self, *types: TokenType) -> _Matchers:
        flags = self._added or {}
        raw: dict[str, int] = {}
        normal: dict[str, int] = {}
        for text, id_ in self.vocabulary.by_text(self.vocabulary.ids(*types)).items():
            token = flags.get(id_) or AddedToken(id_)
            if token.normalized or (self._added is None and self._family.compares_normalized):
                normal[self._normal(text)] = id_
            else:
                raw[text] = id_
        normal.pop("", None)
        return _Matchers(SpecialMatcher(raw, flags), SpecialMatcher(normal, flags))

    def _warn_of_doubled_bos(self, ids: list[int]) -> None:
        if self._prefix and ids[1:2] == self._prefix:
            logger.warning(
                "the prompt begins with the token %r and gets another in front; "
                "leave it out of the prompt or don't add special tokens",
                self.token_text(ids[0]),
            )


def _well_formed(text: str) -> str:
    """Return the text with U+FFFD for unpaired surrogates, and pairs joined."""
    try:
        for part in () if text.isascii() else slices(text):
            part.encode("utf-16-le")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
