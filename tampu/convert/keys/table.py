"""A table of the keys of one file: each is used, irrelevant for a reason, or an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

TRAINING = "it concerns training only"
LIBRARY = "it concerns transformers' own Python code"
OUTPUT = "it selects what transformers returns"
NAMES = "it describes where the files come from"
TENSORS = "the tensors show it: biases and other optional weights are read where they exist"
TOKENS = "it is read with the tokenizer"
MARKS = "the tokenizer contains the token, and the vision model finds it by its text"
REQUEST = "requests set it"
GENERATED = "it is computed from other keys"


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one file, or of one kind of object, which no code reads through `Config`.

    Attributes:
        irrelevant: name, or pattern with `*` -> why its value does not change the numbers.
        names: pattern -> why a text, an object or a list with such a name does not change them;
            a number or a flag with it does.
        neutral: name -> the values, or entries of a list, with which it changes nothing; others
            are refused by name.
        used: names that are read elsewhere.
    """

    irrelevant: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    neutral: Mapping[str, Sequence[object]] = field(default_factory=dict)
    used: frozenset[str] = frozenset()

    def reason(self, key: str) -> str | None:
        """Return why a key is irrelevant; None if it is not listed."""
        if key in self.irrelevant:
            return self.irrelevant[key]
        return next(
            (
                why
                for name, why in self.irrelevant.items()
                if "*" in name and fnmatchcase(key, name)
            ),
            None,
        )

    def refused(self, key: str, value: object) -> str | None:
        """Return what is wrong with a key that no family reads; None if nothing is."""
        if value is None or key in self.used or self.reason(key) is not None:
            return None
        if key not in self.neutral:
            is_name = isinstance(value, str | dict | list) and bool(value)
            is_listed = is_name and any(fnmatchcase(key, pattern) for pattern in self.names)
            return None if is_listed else "is not known"
        known = self.neutral[key]
        entries = value if isinstance(value, list) and value else [value]
        if value in known or all(entry in known for entry in entries):
            return None
        return f"is {short(value)}; only {' or '.join(map(repr, known)) or 'null'} is supported"


def short(value: object) -> str:
    """Return a value as a message shows it."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
