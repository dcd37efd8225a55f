"""All parameters in one table: names, types, ranges, defaults and meanings.

It defines the options of sampling, generating and loading, Ollama's `options`, the fields of
OpenAI's requests, a Modelfile's `PARAMETER`, `/set parameter`, llama.cpp's parameters, and the
table in docs/parameters.md.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, TypeAlias

import numpy as np

from tampu.errors import RequestError
from tampu.settings.choices import ENGINES
from tampu.settings.model_settings import DEFAULT_CONTEXT
from tampu.settings.parsers import suggestion

MAX_STOPS = 16
MAX_STOP_LENGTH = 1024
_INT32, _INT64 = 2**31 - 1, 2**63 - 1
_FLOAT_MAX = sys.float_info.max
_EXACT = 2**53  # the largest integer that every JSON reader keeps
_TRUE, _FALSE = ("true", "1", "t"), ("false", "0", "f")

Value: TypeAlias = bool | int | float | str | list[str]


class Use(Enum):
    """What a parameter acts on."""

    SAMPLING = "sampling"  # llama.cpp has each of these, but for infill, under the same name
    GENERATION = "generation"
    LOADING = "loading"  # another value loads the model again
    MODEL = "model"  # a Modelfile may have it, a request may not
    NOTHING = "nothing"  # options of Ollama that have no effect here


class Special(Enum):
    """Which numbers outside the range a request or a Modelfile may use, and their meaning."""

    NONE = auto()
    NEGATIVE_IS_NONE = auto()
    NEGATIVE_IS_AUTO = auto()  # -1 to an engine
    ZERO_IS_DEFAULT = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter.

    Attributes:
        name: in `SamplingOptions`, `GenerateOptions` and `LoadOptions`.
        ollama: in Ollama's `options` and in Modelfiles.
        openai: the field at the top of OpenAI's requests; None: there is none.
        kind: int, float, bool, str (one of `choices`) or list (of strings).
        default: what holds where neither a request nor a Modelfile gives a value.
        low: the smallest value.
        high: the largest value.
        choices: the strings that it may be.
        special: numbers outside the range with a meaning of their own.
        use: what it acts on.
        doc: what it does, for the docs.
    """

    name: str
    ollama: str
    openai: str | None
    kind: type
    default: Any
    low: float
    high: float
    choices: tuple[str, ...]
    special: Special
    use: Use
    doc: str

    def check(self, value: object, name: str = "") -> Any:
        """Return a value with the right type.

        Args:
            value: from JSON or Python.
            name: what the caller calls the parameter; empty: as Ollama does.

        Raises:
            RequestError: for a wrong type or a value out of range; the message has the range.
        """
        if self.kind is list:
            if isinstance(value, list | tuple) and _are_stops(value):
                return list(value)
        elif self.kind is str:
            if value in self.choices:
                return value
        elif self.kind is bool:
            if isinstance(value, bool):
                return value
        else:
            number = _number(value, self.kind)
            if number is not None and self.low <= number <= self.high:
                return number
        allowed = self.range_text
        if self.kind is int and isinstance(value, int) and value > _INT64:
            allowed = f"an integer from {self.low:g} to {min(self.high, _INT64)}"
        raise RequestError(f"{name or self.ollama} must be {allowed}, not {_shown(value)}")

    def check_given(self, value: object, name: str = "") -> Any:
        """Return a value of a request or a Modelfile with the right type.

        Raises:
            RequestError: as `check`; the special numbers are fine.
        """
        number = None if self.special is Special.NONE else _number(value, int)
        if number is not None and self._is_special(number):
            return number
        return self.check(value, name)

    def check_loose(self, value: object, name: str = "") -> Any:
        """Check as `check_given`, but accept a string as a list of one."""
        is_one = self.kind is list and isinstance(value, str)
        return self.check_given([value] if is_one else value, name)

    def parse(self, text: str) -> Any:
        """Return the value of a text; a list has that one string.

        Raises:
            RequestError: as `check_given`.
        """
        value: object = [text] if self.kind is list else text
        if self.kind is bool and text.lower() in (*_TRUE, *_FALSE):
            value = text.lower() in _TRUE
        elif self.kind in (int, float):
            with suppress(ValueError):
                value = int(text, 10) if self.kind is int else float(text)
        return self.check_given(value)

    def meaning(self, value: Any) -> Any:
        """Return what a checked value of a request or a Modelfile means to an engine."""
        if self.special is Special.NONE or not self._is_special(value):
            return value
        return -1 if self.special is Special.NEGATIVE_IS_AUTO else None

    @property
    def range_text(self) -> str:
        """The allowed values, in words."""
        if self.kind is list:
            return f"at most {MAX_STOPS} strings of 1 to {MAX_STOP_LENGTH} characters"
        if self.kind is str:
            return f"one of {', '.join(self.choices)}"
        if self.kind is bool:
            return "true or false"
        what = "an integer" if self.kind is int else "a number"
        if self.high == math.inf:
            return f"{what} of {self.low:g} or more"
        return f"{what} from {self.low:g} to {self.high:.16g}"

    def _is_special(self, number: float) -> bool:
        if self.special is Special.ZERO_IS_DEFAULT:
            return number == 0
        return self.special is not Special.NONE and number < 0


def _row(
    use: Use,
    name: str,
    kind: type,
    default: Any,
    low: float,
    high: float,
    doc: str,
    *,
    ollama: str = "",
    openai: str | None = "",
    special: Special = Special.NONE,
    choices: tuple[str, ...] = (),
) -> Parameter:
    ollama = ollama or name
    return Parameter(
        name=name, ollama=ollama, openai=ollama if openai == "" else openai, kind=kind,
        default=default, low=low, high=high, choices=choices, special=special, use=use, doc=doc,
    )  # fmt: skip


# fmt: off
_ROWS = (
    _row(Use.SAMPLING, "temperature", float, 0.8, 0, 100,
         "divides the logits; 0 always takes the best token"),
    _row(Use.SAMPLING, "top_k", int, 40, -1, _INT32,
         "keeps the k best tokens; 0 or -1 keeps all"),
    _row(Use.SAMPLING, "top_p", float, 0.9, 0, 1,
         "keeps the fewest best tokens whose probabilities sum to more than this; 1 keeps all"),
    _row(Use.SAMPLING, "min_p", float, 0.0, 0, 1,
         "keeps tokens with at least this fraction of the best token's probability; 0 keeps all"),
    _row(Use.SAMPLING, "typical_p", float, 1.0, 0, 1,
         "keeps the tokens closest to the distribution's entropy, up to this much probability; "
         "1 keeps all"),
    _row(Use.SAMPLING, "repeat_last_n", int, 64, -1, 1_000_000,
         "how many of the last tokens, including the prompt's, the three penalties count; 0 turns "
         "them off, -1 counts all"),
    _row(Use.SAMPLING, "repeat_penalty", float, 1.0, 0.01, 100,
         "divides a positive logit of a token among the last ones, multiplies a negative one"),
    _row(Use.SAMPLING, "presence_penalty", float, 0.0, -1000, 1000,
         "is subtracted from the logit of a token among the last ones"),
    _row(Use.SAMPLING, "frequency_penalty", float, 0.0, -1000, 1000,
         "is subtracted from the logit of a token for each time that it is among the last ones"),
    _row(Use.SAMPLING, "top_n_sigma", float, -1.0, -1, 100,
         "keeps the tokens at most this many standard deviations of the logits below the best; 0 "
         "or less keeps all"),
    _row(Use.SAMPLING, "xtc_probability", float, 0.0, 0, 1,
         "the probability that XTC leaves out the best tokens; 0: never"),
    _row(Use.SAMPLING, "xtc_threshold", float, 0.1, 0, 1,
         "XTC leaves out all tokens with this probability or more, except the least likely of "
         "them; above 0.5 it leaves out none"),
    _row(Use.SAMPLING, "dry_multiplier", float, 0.0, 0, 100,
         "a token that would continue a repetition of n tokens loses `dry_multiplier` × "
         "`dry_base`^(n − `dry_allowed_length`) of its logit; 0: nothing"),
    _row(Use.SAMPLING, "dry_base", float, 1.75, 1, 100, "see `dry_multiplier`"),
    _row(Use.SAMPLING, "dry_allowed_length", int, 2, 0, _INT32,
         "shorter repetitions lose nothing; see `dry_multiplier`"),
    _row(Use.SAMPLING, "dry_penalty_last_n", int, 64, -1, 1_000_000,
         "how many of the last tokens, including the prompt's, are searched for repetitions; "
         "0: none, -1: all"),
    _row(Use.SAMPLING, "dry_sequence_breakers", list, ("\n", ":", '"', "*"), 0, 0,
         "strings across which repetitions do not extend"),
    _row(Use.SAMPLING, "infill", bool, False, 0, 0,  # noqa: FBT003
         "llama.cpp's sampler for filling in: ends the answer rather than continuing it with an "
         "unlikely token", openai=None),
    _row(Use.GENERATION, "seed", int, None, -1, math.inf,
         "the same seed and the same logits give the same tokens (see `deterministic`); below 0 "
         "the seed is random",
         special=Special.NEGATIVE_IS_NONE),
    _row(Use.GENERATION, "max_tokens", int, None, 0, _EXACT,
         "the maximum number of tokens to generate; below 0: no limit but ten contexts",
         ollama="num_predict", openai="max_tokens", special=Special.NEGATIVE_IS_NONE),
    _row(Use.GENERATION, "stop", list, (), 0, 0, "strings that end the answer"),
    _row(Use.GENERATION, "keep", int, 4, -1, _INT32,
         "how many of the first tokens stay when the context is full and old ones are dropped; "
         "-1 keeps the whole prompt", ollama="num_keep"),
    _row(Use.GENERATION, "think_budget", int, None, 0, _INT32,
         "the maximum number of tokens of reasoning; below 0: no limit",
         special=Special.NEGATIVE_IS_NONE),
    _row(Use.GENERATION, "draft_tokens", int, None, 0, _INT32,
         "the maximum number of guessed tokens that a step verifies; 0: none, below 0: as many as "
         "make answers faster", ollama="draft_num_predict", openai=None,
         special=Special.NEGATIVE_IS_NONE),
    _row(Use.LOADING, "context", int, DEFAULT_CONTEXT, 4, _INT32,
         "the length of the context in tokens, at most that of the model's training",
         ollama="num_ctx"),
    _row(Use.LOADING, "batch", int, None, 1, 65_536,
         "the maximum number of prompt tokens computed in one step; 0: 512, or on GPUs with all "
         "layers up to 2,048, as measured when the model is loaded",
         ollama="num_batch", special=Special.ZERO_IS_DEFAULT),
    _row(Use.LOADING, "threads", int, None, 1, 512,
         "threads on the CPU; 0: one for each fast core",
         ollama="num_thread", special=Special.ZERO_IS_DEFAULT),
    _row(Use.LOADING, "gpu_layers", int, -1, -1, _INT32,
         "how many of the last layers go to devices other than the CPU; below 0: as many as fit",
         ollama="num_gpu", openai=None, special=Special.NEGATIVE_IS_AUTO),
    _row(Use.LOADING, "main_gpu", int, None, 0, 1024,
         "the device that gets layers first; by default the one with the most free memory",
         openai=None),
    _row(Use.LOADING, "n_cpu_moe", int, 0, 0, _INT32,
         "of how many of the first layers the experts stay on the CPU", openai=None),
    _row(Use.LOADING, "kv_offload", bool, True, 0, 0,  # noqa: FBT003
         "whether keys and values are on the devices of their layers, not on the CPU",
         openai=None),
    _row(Use.LOADING, "deterministic", bool, False, 0, 0,  # noqa: FBT003
         "whether the logits of a request are the same bits whatever else runs", openai=None),
    _row(Use.LOADING, "use_mmap", bool, True, 0, 0,  # noqa: FBT003
         "whether weights are used in place in the mapped file, where possible",
         openai=None),
    _row(Use.MODEL, "engine", str, "auto", 0, 0,
         "the engine that runs the model; in a Modelfile only", openai=None, choices=ENGINES),
    *(_row(Use.NOTHING, name, kind, None, 0, high, "no effect", openai=None)
      for name, kind, high in (
          ("penalize_newline", bool, 0), ("low_vram", bool, 0),
          ("f16_kv", bool, 0), ("logits_all", bool, 0), ("vocab_only", bool, 0),
          ("use_mlock", bool, 0), ("mirostat", int, 2), ("mirostat_tau", float, 1e6),
          ("mirostat_eta", float, 1e6), ("numa", bool, 0), ("tfs_z", float, 1e6))),
)
# fmt: on
PARAMETERS: Mapping[str, Parameter] = {row.name: row for row in _ROWS}
BY_OLLAMA: Mapping[str, Parameter] = {row.ollama: row for row in _ROWS}
BY_OPENAI: Mapping[str, Parameter] = {row.openai: row for row in _ROWS if row.openai}
DEFAULTS: Mapping[str, Any] = {row.name: row.default for row in _ROWS}


def names_of(*uses: Use) -> tuple[str, ...]:
    """Return the names of the parameters with these uses."""
    return tuple(row.name for row in _ROWS if row.use in uses)


def find_parameter(name: str, known: Collection[str] = BY_OLLAMA) -> Parameter:
    """Return a parameter by its name in Ollama's options.

    Raises:
        RequestError: for an unknown name.
    """
    if name in known:
        return BY_OLLAMA[name]
    raise RequestError(f"unknown parameter {name[:80]!r}: {suggestion(name, known)}")


def check_parameters(values: Mapping[str, object]) -> dict[str, Value]:
    """Return a Modelfile's parameters, each with the right type.

    Raises:
        RequestError: for an unknown name, a wrong type or a value out of range.
    """
    return {name: find_parameter(name).check_loose(value) for name, value in values.items()}


def engine_values(values: Mapping[str, object], *uses: Use) -> dict[str, Any]:
    """Return checked values of a request or a Modelfile under the engine's names.

    Args:
        values: by Ollama's names; unknown names and None do not count.
        uses: of the parameters that are wanted.

    Raises:
        RequestError: for a wrong type or a value out of range.
    """
    found = {}
    for name, value in values.items():
        row = BY_OLLAMA.get(name)
        if row is not None and value is not None:
            meant = row.meaning(row.check_given(value))
            if row.use in uses:
                found[row.name] = meant
    return found


def keyword_values(values: Mapping[str, object], known: Collection[str]) -> dict[str, Any]:
    """Return keywords of a Python function under the engine's names, and what special numbers mean.

    Raises:
        RequestError: for an unknown name.
    """
    found = {}
    for name, value in values.items():
        if name not in known:
            row = BY_OLLAMA.get(name)
            is_ollama = row is not None and row.name in known
            near = f"did you mean {row.name}?" if row and is_ollama else suggestion(name, known)
            raise RequestError(f"unknown option {name[:80]!r}: {near}")
        if isinstance(value, np.generic):
            value = value.item()
        row = PARAMETERS.get(name)
        number = None if row is None or row.special is Special.NONE else _number(value, int)
        found[name] = value if row is None or number is None else row.meaning(number)
    return found


def _shown(value: object) -> str:
    if isinstance(value, int) and abs(value) >= 2**64:
        return "a number of more than 64 bits"  # Python refuses to write those of many digits
    return f"{value:g}" if isinstance(value, float) else f"{value!r:.40}"


def _number(value: object, kind: type) -> Any:
    """Return a number of this kind; None for anything else. JSON has 3.0 for 3."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if kind is float:
        return float(value) if abs(value) <= _FLOAT_MAX else None
    is_integer = abs(value) <= _INT64 and int(value) == value
    return int(value) if is_integer else None


def _are_stops(texts: Sequence[object]) -> bool:
    return len(texts) <= MAX_STOPS and all(
        isinstance(text, str) and 0 < len(text) <= MAX_STOP_LENGTH for text in texts
    )
