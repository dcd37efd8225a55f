"""Typed access to a checkpoint's config.json and its RoPE settings.

Missing and mistyped values are errors that name the key. Both RoPE layouts are read: the older
`rope_theta` and `rope_scaling`, and `rope_parameters` of transformers 5.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tampu.errors import ModelFileError, UnsupportedModelError

MAX_INTEGER = (1 << 31) - 1
MAX_LAYERS = 1024  # the engine's limit too
MAX_HEAD_SIZE = 1 << 16
_SCALING_KEYS = (
    "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings",
    "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate",
)  # fmt: skip


@dataclass
class Reading:
    """What a conversion has read of a JSON file: what remains is unknown or must be irrelevant."""

    keys: set[str] = field(default_factory=set)  # of the form `config.json: text_config: head_dim`
    sections: set[str] = field(default_factory=set)


class Config:
    """One JSON object of config.json; a value of null counts as absent.

    Every access is recorded in `reading`, which sections and changed copies share.
    """

    def __init__(
        self, values: Mapping[str, Any], where: str = "config.json", reading: Reading | None = None
    ) -> None:
        self.values = values
        self.where = where
        self.reading = Reading() if reading is None else reading

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def get(self, key: str, default: object = None) -> Any:
        """Return a value as it is in the file, `default` if the key is missing."""
        self.reading.keys.add(f"{self.where}: {key}")
        return self.values.get(key, default)

    def changed(self, values: Mapping[str, Any]) -> Config:
        """Return this object with other values."""
        return Config(values, self.where, self.reading)

    def error(self, key: str, reason: str) -> ModelFileError:
        """Return an error about the value of `key`."""
        return ModelFileError(f"{self.where}: {key}", reason)

    def integer(self, key: str, default: int | None = None, *, maximum: int = MAX_INTEGER) -> int:
        """Return a positive integer of at most `maximum`."""
        value = self._value(key, default)
        if type(value) is not int or not 0 < value <= MAX_INTEGER:
            raise self.error(key, f"{value!r} is not a positive integer")
        if value > maximum:
            raise self.error(key, f"{value} is more than the limit of {maximum}")
        return value

    def natural(self, key: str, default: int | None = None) -> int:
        """Return an integer of 0 or more."""
        return 0 if self._value(key, default) in (0, False) else self.integer(key, default)

    def layers(self, key: str = "num_hidden_layers", default: int | None = None) -> int:
        """Return a number of layers."""
        return self.integer(key, default, maximum=MAX_LAYERS)

    def head_size(self, key: str = "head_dim") -> int:
        """Return the head size: `key`, or the hidden size divided by the number of heads."""
        usual = self.integer("hidden_size") // self.integer("num_attention_heads")
        return self.integer(key, usual, maximum=MAX_HEAD_SIZE)

    def number(self, key: str, default: float | None = None) -> float:
        """Return a positive, finite number."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(key, f"{value!r} is not a number")
        if not (math.isfinite(value) and value > 0):
            raise self.error(key, f"{value!r} is not a positive number")
        return float(value)

    def string(self, key: str, default: str | None = None) -> str:
        """Return a string."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.error(key, f"{value!r} is not a string")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        """Return true or false."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.error(key, f"{value!r} is neither true nor false")
        return value

    def strings(self, key: str) -> list[str]:
        """Return a list of strings; empty if it is absent."""
        value = self._value(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(key, "is not a list of strings")
        return value

    def integers(self, key: str, default: list[int] | None = None) -> list[int]:
        """Return a list of integers."""
        value = self.get(key, default)
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise self.error(key, f"{value!r} is not a list of integers")
        return value

    def numbers(self, key: str) -> list[float]:
        """Return a list of finite numbers."""
        value = self._value(key, None)
        if not isinstance(value, list) or not all(
            type(item) in (int, float) and math.isfinite(item) for item in value
        ):
            raise self.error(key, f"{value!r} is not a list of numbers")
        return [float(item) for item in value]

    def section(self, key: str) -> Config:
        """Return an object inside this one."""
        value = self._value(key, None)
        if not isinstance(value, dict):
            raise self.error(key, "is not an object")
        where = f"{self.where}: {key}"
        self.reading.sections.add(where)
        return Config(value, where, self.reading)

    def with_defaults(self, defaults: Mapping[str, Any]) -> Config:
        """Return this object with values for absent keys."""
        stated = {key: value for key, value in self.values.items() if value is not None}
        return self.changed({**defaults, **stated})

    def require(self, key: str, allowed: Sequence[object], default: object) -> None:
        """Raise UnsupportedModelError unless the value is one of those allowed."""
        value = self.get(key, default)
        if value not in allowed:
            shown = " or ".join(repr(item) for item in allowed)
            raise UnsupportedModelError(
                f"{self.where}: {key} is {value!r}; only {shown} is supported"
            )

    def _value(self, key: str, default: object) -> object:
        value = self.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.error(key, "is missing")
        return value


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embeddings: the base frequency and the scaling for long contexts."""

    base: float
    kind: str  # none, linear, llama3 or yarn
    settings: Config = field(repr=False)

    def metadata(self, *, truncates: bool = True) -> dict[str, object]:
        """Return GGUF's keys. The factors of `llama3` are a tensor: see `rope_factors`.

        Args:
            truncates: whether the architecture rounds YaRN's correction range to whole dimensions.
        """
        keys: dict[str, object] = {"rope.freq_base": self.base}
        if self.kind in ("linear", "yarn"):
            keys["rope.scaling.type"] = self.kind
            keys["rope.scaling.factor"] = self.settings.number("factor")
        if self.kind == "yarn":
            keys |= _yarn_metadata(self.settings, truncates=truncates)
        return keys


def rope_settings(config: Config) -> Config:
    """Return the object with the RoPE settings, in the form of transformers 5.

    As there, `rope_scaling` replaces all of `rope_parameters`, and the base and the rotated part
    of a head are taken from the configuration itself only if that object lacks them.
    """
    key = next((key for key in ("rope_scaling", "rope_parameters") if config.get(key)), None)
    settings = config.section(key) if key else config.changed({})
    if key == "rope_scaling":
        config.get("rope_parameters")
        config.reading.sections.discard(f"{config.where}: rope_parameters")
    outer = {name: config.get(name) for name in ("rope_theta", "partial_rotary_factor")}
    return settings.with_defaults({k: v for k, v in outer.items() if v is not None})


def read_rope(
    config: Config,
    *,
    layers: str = "full_attention",
    base: float = 10_000.0,
    is_partial: bool = False,
) -> Rope:
    """Return the RoPE settings of one kind of layer (in few models they differ).

    Args:
        config: the text model's configuration.
        layers: the kind of layer, as `rope_parameters` and `layer_types` call it.
        base: the family's default base.
        is_partial: whether the architecture can rotate a part of each head only.
    """
    settings = rope_settings(config)
    if layers in settings:
        settings = settings.section(layers)
    base = settings.number("rope_theta", base)
    if not is_partial:
        settings.require("partial_rotary_factor", (None, 1, 1.0), None)
    kind = settings.string("rope_type", settings.string("type", "default"))
    for key in _SCALING_KEYS:  # those of other types are ignored by the reference, too
        settings.get(key)
    if kind in ("default", "mrope"):  # mrope: positions of several numbers, not a scaling
        return Rope(base, "none", settings)
    if kind not in ("linear", "llama3", "yarn"):
        raise UnsupportedModelError(
            f"{settings.where}: rope type {kind!r} is not supported; linear, llama3 and yarn are"
        )
    original = config.get("original_max_position_embeddings")
    original = original or config.get("max_position_embeddings")
    key = "original_max_position_embeddings"
    return Rope(base, kind, settings.with_defaults({key: original} if original else {}))


def _yarn_metadata(settings: Config, *, truncates: bool) -> dict[str, object]:
    settings.require("truncate", (truncates,), default=True)
    keys: dict[str, object] = {
        "rope.scaling.original_context_length": settings.integer("original_max_position_embeddings")
    }
    factor = settings.number("factor")
    usual = _magnitude(factor, 1.0)  # readers apply this factor by default
    magnitude = _attention_factor(settings, factor)
    if magnitude != usual:
        keys["rope.scaling.attn_factor"] = magnitude / usual
    for key in ("beta_fast", "beta_slow"):
        if key in settings:
            keys[f"rope.scaling.yarn_{key}"] = settings.number(key)
    return keys


def _attention_factor(settings: Config, factor: float) -> float:
    """Return the factor for rotated queries and keys (arXiv:2309.00071, section 3.4)."""
    if "attention_factor" in settings:
        return settings.number("attention_factor")
    if settings.get("mscale") and settings.get("mscale_all_dim"):
        all_of_them = _magnitude(factor, settings.number("mscale_all_dim"))
        return _magnitude(factor, settings.number("mscale")) / all_of_them
    return _magnitude(factor, 1.0)


def _magnitude(factor: float, strength: float) -> float:
    return 0.1 * strength * math.log(factor) + 1.0 if factor > 1 else 1.0
