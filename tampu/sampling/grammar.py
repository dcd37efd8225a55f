"""The structure of an answer: JSON, a schema, a regular expression, a grammar, or choices.

A `Grammar` is checked data that travels between processes; `tampu.sampling.constraint` compiles it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tampu.errors import GrammarError
from tampu.sampling.exact_schema import ONE_LINE_RULES, SPACE_RULES, exact_rules, has_large_integers
from tampu.sampling.gbnf import lark_of_gbnf
from tampu.sampling.schema import MAX_BYTES, CheckedSchema, checked_schema

MAX_CHOICES = 10_000
ANSWER = "answer"  # what a grammar around this one calls it
_START = "start: "

# White space between tokens of JSON, as llama.cpp limits it: a space, or up to two line ends and an
# indentation. A model that wants nothing but white space still comes to the end of its answer.
# Branches of `oneOf` are alternatives: `schema_branches.py` looks whether they overlap.
_JSON_OPTIONS = {"whitespace_pattern": r"\x20|\x0A{1,2}[\x20\x09]{0,20}", "coerce_one_of": True}
_ONE_LINE = {
    "whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ",
    "coerce_one_of": True,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar in llguidance's dialect of Lark, which both engines take.

    Raises:
        GrammarError: from all constructors, if it is invalid, not supported or too large.

    Attributes:
        source: its text.
        ignored: what a schema asks for that is not enforced, one line for each keyword.
    """

    source: str
    ignored: tuple[str, ...] = field(default=(), compare=False)

    @property
    def is_schema(self) -> bool:
        """Whether it is a JSON schema and nothing else."""
        return self.source.startswith(f"{_START}%json ") and "\n" not in self.source

    @classmethod
    def json(cls) -> Grammar:
        """Any JSON object."""
        return cls.schema({"type": "object"})

    @classmethod
    def schema(cls, schema: object) -> Grammar:
        """JSON that matches a schema, its properties in the order of the schema."""
        checked = checked_schema(schema)
        if has_large_integers(checked.schema):
            return cls(_exact(checked), checked.ignored)
        return cls(_START + _json_expression(checked.schema), checked.ignored)

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """A text that a regular expression matches as a whole; without lookarounds."""
        return cls.lark(f"start: {lark_regex(pattern)}")

    @classmethod
    def lark(cls, text: str) -> Grammar:
        """A text of a grammar in llguidance's dialect of Lark, from its rule `start` on."""
        return cls(_sized(text))

    @classmethod
    def gbnf(cls, text: str) -> Grammar:
        """A text of a grammar as llama.cpp writes them, from its rule `root` on."""
        return cls.lark(lark_of_gbnf(_sized(text)))

    @classmethod
    def choices(cls, texts: Iterable[str]) -> Grammar:
        """One of several texts."""
        texts = list(texts)
        if not texts or not all(isinstance(text, str) for text in texts):
            raise GrammarError("choices: they must be texts, at least one")
        if len(texts) > MAX_CHOICES:
            raise GrammarError(f"choices: {len(texts)} are more than {MAX_CHOICES}")
        return cls.lark("start: CHOICE\nCHOICE: " + " | ".join(map(lark_text, texts)))

    def on_one_line(self) -> Grammar:
        """Return the same grammar with fixed white space in JSON.

        For an engine whose llguidance is too old to limit white space.
        """
        free, fixed = (
            json.dumps({"x-guidance": each})[1:-1] for each in (_JSON_OPTIONS, _ONE_LINE)
        )
        source = self.source.replace(free, fixed).replace(SPACE_RULES, ONE_LINE_RULES)
        return replace(self, source=source)

    def within(self, lark: str) -> Grammar:
        """Return a grammar around this one, which it names `answer`."""
        if self.is_schema:
            inner = self.source.removeprefix(_START)
        else:
            inner = f"%lark {{\n{self.source}\n}}"
        return Grammar(f"{_sized(lark)}\n{ANSWER}: {inner}", self.ignored)


def grammar_of(wanted: object) -> Grammar | None:
    """Return the grammar of a request's `format`; None if it has none.

    Args:
        wanted: None, "", "json", a JSON schema, or an object with one of the keys `regex`, `lark`,
            `gbnf`, `choices` and no others.

    Raises:
        GrammarError: for anything else, and as `Grammar`.
    """
    if isinstance(wanted, str) and wanted in ("", "json"):
        return Grammar.json() if wanted else None
    if wanted is None:
        return None
    if not isinstance(wanted, Mapping | bool):
        raise GrammarError('format must be "json", a JSON schema, or an object with a grammar')
    if isinstance(wanted, Mapping) and len(wanted) == 1:
        [(kind, value)] = wanted.items()
        if kind == "choices" and isinstance(value, Sequence) and not isinstance(value, str):
            return Grammar.choices(value)
        builders = {"regex": Grammar.regex, "lark": Grammar.lark, "gbnf": Grammar.gbnf}
        if kind in builders and isinstance(value, str):
            return builders[kind](value)
    return Grammar.schema(wanted)


def lark_json(schema: object) -> str:
    """Return the Lark expression of JSON that matches a schema."""
    checked = checked_schema(schema)
    if has_large_integers(checked.schema):
        return f"%lark {{\n{_exact(checked)}\n}}"
    return _json_expression(checked.schema)


def _exact(checked: CheckedSchema) -> str:
    return exact_rules(checked.schema, _json_expression)


def _json_expression(schema: Mapping[str, Any]) -> str:
    return "%json " + json.dumps({**schema, "x-guidance": _JSON_OPTIONS}, ensure_ascii=False)


def lark_text(text: str, tokens: Mapping[str, int] | None = None) -> str:
    """Return the Lark expression of a text.

    Args:
        text: the literal text.
        tokens: control tokens in it that must be generated as those tokens, by their texts.
    """
    if not tokens:
        return json.dumps(text, ensure_ascii=False)
    longest_first = sorted(tokens, key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, longest_first))})", text)
    written = [
        f"<[{tokens[part]}]>" if part in tokens else json.dumps(part, ensure_ascii=False)
        for part in parts
        if part
    ]
    return " ".join(written) or '""'


def lark_regex(pattern: str) -> str:
    """Return the Lark expression of a regular expression.

    Raises:
        GrammarError: if it is too long.
    """
    body = re.sub(r"\\.|/|\n", _slashed, _sized(pattern), flags=re.DOTALL)
    return f"/{body or '(?:)'}/"


def _slashed(match: re.Match[str]) -> str:
    return {"/": r"\/", "\n": r"\n", "\\\n": r"\n"}.get(match.group(), match.group())


def _sized(text: str) -> str:
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise GrammarError(f"grammar: it has {size} bytes; at most {MAX_BYTES} are allowed")
    return text
