"""llama.cpp's samplers, called in the library that the xllamacpp package brings."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
_DRY = "_Z30llama_sampler_init_dry_testingffiiRKSt6vectorIS_IiSaIiEESaIS1_EE"


class _Token(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int32), ("logit", ctypes.c_float), ("p", ctypes.c_float))


class _Tokens(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.POINTER(_Token)),
        ("size", ctypes.c_size_t),
        ("selected", ctypes.c_int64),
        ("sorted", ctypes.c_bool),
    )


class _Vector(ctypes.Structure):
    """A std::vector: where it begins, where it ends, and where its memory ends."""

    _fields_ = (("begin", ctypes.c_void_p), ("end", ctypes.c_void_p), ("limit", ctypes.c_void_p))


@cache
def _library() -> ctypes.CDLL:
    import xllamacpp

    return ctypes.CDLL(xllamacpp.xllamacpp.__file__)


class _ModelParameters(ctypes.Structure):
    """llama.cpp's `llama_model_params`, whatever they are; there is room for more of them."""

    _fields_ = (("bytes", ctypes.c_char * 1024),)


@contextmanager
def vocabulary(path: Path) -> Iterator[ctypes.c_void_p]:
    """Yield the vocabulary of a model's file."""
    library = _library()
    library.llama_model_default_params.restype = _ModelParameters
    library.llama_model_load_from_file.argtypes = (ctypes.c_char_p, _ModelParameters)
    library.llama_model_load_from_file.restype = ctypes.c_void_p
    library.llama_model_get_vocab.restype = ctypes.c_void_p
    parameters = library.llama_model_default_params()
    model = ctypes.c_void_p(library.llama_model_load_from_file(str(path).encode(), parameters))
    assert model
    try:
        yield ctypes.c_void_p(library.llama_model_get_vocab(model))
    finally:
        library.llama_model_free(model)


class LlamaSampler:
    """One sampler."""

    def __init__(self, name: str, *arguments: ctypes.c_float | ctypes.c_int32 | object) -> None:
        made = _library()[name]
        made.restype = ctypes.c_void_p
        self._sampler = ctypes.c_void_p(made(*arguments))
        assert self._sampler

    def accept(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            _library().llama_sampler_accept(self._sampler, ctypes.c_int32(token))

    def apply(self, logits: Floats) -> Floats:
        """Return the logits as they are afterwards; -inf for tokens that are left out."""
        array = (_Token * len(logits))(*(_Token(i, x, 0.0) for i, x in enumerate(logits)))
        tokens = _Tokens(array, len(logits), -1, False)
        _library().llama_sampler_apply(self._sampler, ctypes.byref(tokens))
        result = np.full(len(logits), -np.inf, np.float32)
        for index in range(tokens.size):
            result[tokens.data[index].id] = tokens.data[index].logit
        return result

    def close(self) -> None:
        _library().llama_sampler_free(self._sampler)


@contextmanager
def top_n_sigma(n: float) -> Iterator[LlamaSampler]:
    with _closing(LlamaSampler("llama_sampler_init_top_n_sigma", ctypes.c_float(n))) as sampler:
        yield sampler


@contextmanager
def xtc(probability: float, threshold: float) -> Iterator[LlamaSampler]:
    arguments = (ctypes.c_float(probability), ctypes.c_float(threshold), ctypes.c_size_t(1))
    with _closing(
        LlamaSampler("llama_sampler_init_xtc", *arguments, ctypes.c_uint32(1))
    ) as sampler:
        yield sampler


@contextmanager
def infill(vocabulary: ctypes.c_void_p) -> Iterator[LlamaSampler]:
    with _closing(LlamaSampler("llama_sampler_init_infill", vocabulary)) as sampler:
        yield sampler


@contextmanager
def dry(
    multiplier: float, base: float, allowed_length: int, last_n: int, breakers: list[list[int]]
) -> Iterator[LlamaSampler]:
    rows = [(ctypes.c_int32 * len(tokens))(*tokens) for tokens in breakers]
    inner = (_Vector * len(rows))(*map(_vector, rows))
    outer = _vector(inner)
    numbers = (ctypes.c_float(multiplier), ctypes.c_float(base))
    lengths = (ctypes.c_int32(allowed_length), ctypes.c_int32(last_n))
    with _closing(LlamaSampler(_DRY, *numbers, *lengths, ctypes.byref(outer))) as sampler:
        yield sampler


def _vector(array: ctypes.Array[Any]) -> _Vector:
    begin = ctypes.addressof(array)
    end = begin + ctypes.sizeof(array)
    return _Vector(begin, end, end)


@contextmanager
def _closing(sampler: LlamaSampler) -> Iterator[LlamaSampler]:
    try:
        yield sampler
    finally:
        sampler.close()
