"""Modules whose weights are declared as annotated attributes and bound by their GGUF names.

    class Layer(Module):
        norm: RMSNorm = gguf("ffn_norm")
        bias: Tensor | None = gguf("ffn_bias.weight")

An attribute of type float is the one number of a tensor, read when the model is bound.
An attribute of two types of modules, `A | B`, becomes the first of which the file has all parts,
and so does each entry of a list of them.
Binding is strict both ways: every tensor that is declared and not optional must be in the file (all
that are missing are named in one error), and the caller learns which tensors are unused.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar

from tampu.errors import ModelFileError
from tampu.ml import Tensor, Weights
from tampu.ml.buffer_types import WeightUse

M = TypeVar("M", bound="Module")


@dataclasses.dataclass(frozen=True, slots=True)
class _Declaration:
    """The names of an attribute's tensors in the file."""

    names: tuple[str, ...]
    count: str | None
    use: WeightUse
    start: str | None = None


def gguf(
    name: str = "",
    *,
    or_: str | tuple[str, ...] = (),
    count: str | None = None,
    start: str | None = None,
    use: WeightUse = WeightUse.ELEMENTS,
) -> Any:
    """Declare where an attribute's tensors are in the file.

    Args:
        name: the part of the tensors' names for this attribute; empty: no part of its own.
        or_: the name, or names in their order, to take when the file has nothing under the first.
        count: for a list of modules, the option that holds its length; the index follows the name.
        start: the option that holds the first index of a list; None: 0.
        use: for a tensor, what the model does with it.
    """
    others = (or_,) if isinstance(or_, str) else or_
    return _Declaration((name, *others), count, use, start)


@dataclasses.dataclass(frozen=True, slots=True)
class Hook:
    """What is done at the calls of one module while a graph is built.

    Attributes:
        on_input: returns the tensor that takes the place of the first argument.
        on_output: returns what takes the place of the result.
    """

    on_input: Callable[[Any], Any] = lambda given: given
    on_output: Callable[[Any], Any] = lambda result: result


class Module:
    """A part of a model; subclasses declare their weights with `gguf`.

    Attributes:
        hook: of this module; None: nothing is done.
    """

    hook: Hook | None = None

    def __init_subclass__(cls) -> None:
        """Let hooks take part in the calls, as those of PyTorch's modules do."""
        super().__init_subclass__()
        call = vars(cls).get("__call__")
        if call is not None:
            type.__setattr__(cls, "__call__", _hooked(call))


def _hooked(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method `__call__` that asks the hook of its module; its base's do not."""

    @functools.wraps(call)
    def hooked(self: Module, given: Any, *args: Any, **kwargs: Any) -> Any:
        hook = self.hook
        if hook is None or type(self).__call__ is not hooked:
            return call(self, given, *args, **kwargs)
        return hook.on_output(call(self, hook.on_input(given), *args, **kwargs))

    return hooked


def bind(kind: type[M], weights: Weights, options: object, prefix: str = "") -> M:
    """Return a model with each declared attribute set to its tensor or module.

    Args:
        kind: its class.
        weights: of the file.
        options: have the lengths of lists.
        prefix: of the names of all its tensors.

    Raises:
        ModelFileError: naming every tensor that is missing.
    """
    binding = _Binding(weights, options)
    model = binding.module(kind, prefix)
    if binding.missing:
        raise ModelFileError("tensors", f"missing from the file: {', '.join(binding.missing)}")
    return model


class _Binding:
    """One walk over the declarations of a model."""

    def __init__(self, weights: Weights, options: object) -> None:
        self.weights = weights
        self.options = options
        self.missing: list[str] = []
        self._declared: dict[type[Module], list[tuple[str, _Declaration, Any]]] = {}

    def module(self, kind: type[M], prefix: str) -> M:
        module = kind()
        for attribute, declaration, hint in self._parts(kind):
            setattr(module, attribute, self._value(declaration, hint, prefix))
        return module

    def _value(self, declaration: _Declaration, hint: Any, prefix: str) -> object:
        kinds, optional = _unwrap(hint)
        names = [prefix + name for name in declaration.names]
        there = [(name, kind) for name in names for kind in kinds if self._present(kind, name)]
        if not there and optional:
            return None
        first = there[0] if there else (names[0], kinds[0])
        whole = (each for each in there if self._complete(each[1], each[0]))
        name, wanted = next(whole, first) if len(kinds) > 1 else first
        if wanted is Tensor:
            return self._tensor(name, declaration.use)
        if wanted is float:
            return self.weights.number(name)
        if typing.get_origin(wanted) is list:
            (part,) = typing.get_args(wanted)
            first_index = int(getattr(self.options, declaration.start)) if declaration.start else 0
            length = _length(self.options, declaration.count)
            each = (
                _Declaration((f"{name}.{index}",), None, WeightUse.ELEMENTS)
                for index in range(first_index, first_index + length)
            )
            return [self._value(one, part, "") for one in each]
        return self.module(wanted, _dotted(name))

    def _parts(self, kind: type[Module]) -> list[tuple[str, _Declaration, Any]]:
        """Return the declarations of a class of modules; they are cached."""
        if kind not in self._declared:
            self._declared[kind] = _declarations(kind)
        return self._declared[kind]

    def _tensor(self, name: str, use: WeightUse) -> Tensor | None:
        if name in self.weights:
            return self.weights.use(name, use)
        self.missing.append(name)
        return None

    def _complete(self, kind: type[Module], name: str) -> bool:
        """Return whether the file has something under each name that a module must have."""
        prefix = _dotted(name)
        return all(
            any(self._present(k, prefix + inner) for inner in part.names for k in _unwrap(hint)[0])
            for _, part, hint in self._parts(kind)
            if not _unwrap(hint)[1]
        )

    def _present(self, wanted: Any, name: str) -> bool:
        """Return whether the file has any tensor of what is declared under this name."""
        if wanted in (Tensor, float):
            return name in self.weights
        if typing.get_origin(wanted) is list:
            return True
        prefix = _dotted(name)
        return any(
            self._present(kind, prefix + inner)
            for _, part, hint in self._parts(wanted)
            for inner in part.names
            for kind in _unwrap(hint)[0]
        )


def _declarations(kind: type[Module]) -> list[tuple[str, _Declaration, Any]]:
    hints = typing.get_type_hints(kind)
    found = {
        name: value
        for owner in reversed(kind.__mro__)  # a class overrides declarations of its base
        for name, value in vars(owner).items()
        if isinstance(value, _Declaration)
    }
    return [(name, found[name], hints[name]) for name in found]


def _unwrap(hint: Any) -> tuple[list[Any], bool]:
    """Return the types without None, and whether None was allowed."""
    if isinstance(hint, types.UnionType):
        parts = typing.get_args(hint)
        return [part for part in parts if part is not type(None)], type(None) in parts
    return [hint], False


def _dotted(name: str) -> str:
    return name + "." if name and not name.endswith(".") else name


def _length(options: object, count: str | None) -> int:
    if count is None:
        raise TypeError("a list of modules must declare its count")
    return int(getattr(options, count))
