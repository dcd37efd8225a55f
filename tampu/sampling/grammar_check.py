"""Compiling a grammar for the first time: in a sandbox, because it is untrusted.

The sandbox has the vocabulary's control tokens but no other token than the 256 bytes, so it
is small and fast, and a grammar that crashes the compiler only ends this process. An accepted
grammar is compiled again where the answer is generated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from tampu.errors import GrammarError
from tampu.sampling.grammar import Grammar

_MESSAGE_LIMIT = 300
# Of llguidance's messages: the place in the grammar, the line that it shows, and regular
# expressions, which it quotes above their errors.
_POSITION = re.compile(r"(?:at )?(\d+)\(\d+\): ")
_IN_SCHEMA = "failed to compile JSON schema: "
_REGEX = re.compile(r"regex parse error:\n\s*(.*?)\n\s*\^*\s*\nerror: (.*)", re.DOTALL)
_MADE_HERE = re.compile("%json|%lark")
_WORDS = {
    "": "no token of the model fits",
    "NoExtensionBias": "no token of the model fits",
    "Empty grammar": "it is empty",
    "no start rule found": "there is no rule named start",
}

_tokenizers: dict[bytes, LLTokenizer] = {}  # of this process's model


def limits() -> LLParserLimits:
    """Return the limits of a grammar: a hundred MiB of memory, some milliseconds per step."""
    return LLParserLimits(
        max_lexer_states=50_000,
        max_grammar_size=200_000,
        max_items_in_row=20_000,  # alternatives that a rule begins with; by default 2,000
        verbose_errors=False,
    )


class Spellings:
    """The tokenizer interface that llguidance needs."""

    bos_token_id = None

    def __init__(
        self,
        tokens: Sequence[bytes],
        special: Sequence[int],
        eos: int,
        encode: Callable[[str], list[int]],
    ) -> None:
        """Take each token's bytes, the control tokens, and the end token."""
        self.tokens = tokens
        self.special_token_ids = special
        self.eos_token_id = eos
        self._encode = encode

    def __call__(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        return self._encode(text)


def llguidance_tokenizer(spellings: Spellings, ends: Sequence[int]) -> LLTokenizer:
    """Return llguidance's trie of a vocabulary."""
    return LLTokenizer(TokenizerWrapper(spellings), eos_token=list(ends))


def compiled(tokenizer: LLTokenizer, source: str) -> LLMatcher:
    """Return a matcher before any token.

    Raises:
        GrammarError: with llguidance's reason.
    """
    grammar = LLMatcher.grammar_from_lark(source)
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits())
    if matcher.is_error():
        raise GrammarError(f"{kind_of(source)}: {reason(matcher)}")
    return matcher


def kind_of(source: str) -> str:
    """Return the prefix of an error: where it is in the grammar, if that is known."""
    return "schema: /" if Grammar(source).is_schema else "grammar"


def reason(matcher: LLMatcher) -> str:
    """Return in one line why a matcher failed, in the words of the grammar's author."""
    message = re.split("<(?:backtrace|state|non-verbose)", matcher.get_error())[0]
    message, *shown = re.split(r"\n +\d+ \| ", message, maxsplit=1)
    position = _POSITION.match(message)
    if position:
        message = message.removeprefix(position.group()).removeprefix(_IN_SCHEMA)
    if pattern := _REGEX.search(message):
        message = f"invalid regular expression {pattern[1]!r}: {pattern[2]}"
    elif position and not _MADE_HERE.search("".join(shown)):
        message = f"line {position[1]}: {message.replace('lexer error', 'not understood')}"
    said = " ".join(message.partition(". Enable")[0].split())
    said = said if len(said) <= _MESSAGE_LIMIT else f"{said[:_MESSAGE_LIMIT]}..."
    return _WORDS.get(said, said)


def is_dead(matcher: LLMatcher) -> bool:
    """Return whether no token may follow, although the text is incomplete.

    llguidance then allows the end nevertheless, as a stop.
    """
    if matcher.is_error():
        return True
    whole = {"NoExtension", "EndOfSentence"}
    return matcher.is_stopped() and not (matcher.is_accepting() or matcher.stop_reason() in whole)


def request(source: str, size: int, special: Mapping[int, str], ends: Sequence[int]) -> bytes:
    """Return the request to try a grammar.

    Args:
        source: of the grammar.
        size: of the vocabulary.
        special: the control tokens.
        ends: those that end a text.
    """
    vocabulary = {"size": size, "special": list(special.items()), "ends": list(ends)}
    return json.dumps([vocabulary, source]).encode()


def serve(asked: bytes) -> bytes:
    """Try a grammar in the sandboxed process; return why it is refused, or nothing."""
    vocabulary, source = json.loads(asked)
    key = json.dumps(vocabulary).encode()
    if key not in _tokenizers:
        _tokenizers.clear()
        _tokenizers[key] = _of_bytes(**vocabulary)
    try:
        matcher = compiled(_tokenizers[key], source)
    except GrammarError as error:
        return str(error).encode()
    mask = matcher.compute_bitmask()
    if is_dead(matcher) or not any(mask):
        return f"{kind_of(source)}: it allows no text at all: {reason(matcher)}".encode()
    first = next(8 * at + bits.bit_length() - 1 for at, bits in enumerate(mask) if bits)
    if not matcher.consume_token(first):  # only now it counts the alternatives of the first rule
        return f"{kind_of(source)}: it is too complex: {reason(matcher)}".encode()
    return b""


def _of_bytes(size: int, special: list[tuple[int, str]], ends: list[int]) -> LLTokenizer:
    """Return a vocabulary of the 256 bytes and the control tokens in their places."""
    taken = {id for id, _ in special}
    free = (id for id in range(size + len(taken) + 256) if id not in taken)
    tokens = [b""] * (size + len(taken) + 256)
    for id, text in special:
        tokens[id] = text.encode()
    ids = [next(free) for _ in range(256)]
    for byte, id in enumerate(ids):
        tokens[id] = bytes([byte])

    def encode(text: str) -> list[int]:
        return [ids[byte] for byte in text.encode()]

    return llguidance_tokenizer(Spellings(tokens, sorted(taken), ends[0], encode), ends)
