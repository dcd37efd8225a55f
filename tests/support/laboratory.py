"""Where the engine and transformers answer the same questions, and their answers are compared."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from _pytest.mark import ParameterSet
from support.checkpoints import ENCODERS, RECIPES, load_reference, make_checkpoint, recipe_of
from support.dequantized import take_stored_weights, take_weights
from support.parity_report import ParityError
from transformers import PreTrainedModel

from tampu.convert import convert
from tampu.engine.engine import Engine
from tampu.ml.gguf import read_gguf

Logits = npt.NDArray[np.float32]

LENGTH = 100  # beyond every sliding window and every original rotary range
# One of each kind: of attention, with windows, of experts, with recurrent layers, with images.
_TYPICAL = {"llama_rope_llama3", "gemma3_text", "qwen3moe", "lfm2", "qwen35", "qwen25vl", "mllama"}


def in_depth(names: Iterable[str], typical: Collection[str] = _TYPICAL) -> list[str | ParameterSet]:
    """Return a test's parameters: those of architectures that are not typical are slow.

    Each architecture is compared in `make test` by tests/parity/test_families.py, and those that
    see by test_vision.py.
    """
    slow = pytest.mark.slow
    return [name if name in typical else pytest.param(name, marks=slow) for name in names]


def relative_error(ours: Logits, reference: Logits) -> float:
    """Return ||ours - reference|| / ||reference||."""
    return float(np.linalg.norm(ours - reference) / np.linalg.norm(reference))


def exact(name: str) -> float:
    """Return the largest relative error of a model's values in F32."""
    return 2e-3 if RECIPES[name].approximate else 1e-5


def divergence(ours: Logits, reference: Logits) -> float:
    """Return the mean Kullback-Leibler divergence of our distribution from the reference's."""

    def log_softmax(x: Logits) -> npt.NDArray[np.float64]:
        shifted = x.astype(np.float64) - x.max(axis=-1, keepdims=True)
        result: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        return result

    p, q = log_softmax(reference), log_softmax(ours)
    return float((np.exp(p) * (p - q)).sum(axis=-1).mean())


def tokens(length: int = LENGTH, seed: int = 0) -> list[int]:
    """Return a text of random tokens, without the special ones in front of the vocabulary."""
    return [int(token) for token in np.random.default_rng(seed).integers(9, 480, length)]


class Laboratory:
    """Makes each checkpoint, file and reference once, and keeps the errors that were measured."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._errors: dict[tuple[str, str], float] = {}
        self.checkpoint = functools.cache(self._checkpoint)
        self._files = functools.cache(self._file)
        self.reference = functools.cache(self._reference)
        self.answer = functools.cache(self._answer)
        torch.set_num_threads(1)

    def close(self) -> None:
        """Let go of all models."""
        for method in (self.reference, self.answer):
            method.cache_clear()

    def engine(
        self,
        name: str,
        type_: str = "F32",
        *,
        cache: str = "f32",
        flash: bool = False,
        slots: int = 1,
        kernels: str = "on",
        draft: str | None = None,
    ) -> Engine:
        """Return the engine with the model `name` in a file of the type `type_`."""
        return Engine.load(
            self.file(name, type_),
            context=recipe_of(name).pictures_context,
            slots=slots,
            threads=1,  # two would wait for each other at every one of these tiny operations
            cache_type=cache,
            flash_attention=flash,
            kernels=kernels,
            draft=draft,
        )

    def file(self, name: str, type_: str = "F32") -> Path:
        """Return the model `name` in a file of the type `type_`."""
        return self._files(name, type_)  # the same key, whether the type was named or not

    def compare(self, name: str, ours: Logits, reference: Logits, what: str, limit: float) -> None:
        """Require that the logits agree within `limit`, and the best tokens where they are clear.

        A token is clear if its lead over the second is more than ten times the largest difference.
        """
        ours, never = np.split(ours, [reference.shape[1]], axis=1)  # the image's own tokens
        assert (never < -1e9).all()
        assert ours.shape == reference.shape
        error = relative_error(ours, reference)
        largest = float(np.abs(ours - reference).max())
        key = (what, name)
        self._errors[key] = max(error, self._errors.get(key, 0.0))
        assert error <= limit, f"{name}, {what}: relative error {error:.2e}, at most {limit:.0e}"
        best = np.sort(reference, axis=-1)[:, -2:]
        clear = best[:, 1] - best[:, 0] > 10 * largest
        assert (ours.argmax(-1) == reference.argmax(-1))[clear].all(), f"{name}, {what}"

    def require_greedy(
        self, name: str, prompt: Sequence[int], continuation: Sequence[int], lead: float
    ) -> int:
        """Require that each token of a continuation is the best one that transformers sees there.

        Choices where the best leads by less than `lead` don't count; return how many do.
        """
        text = [*prompt, *continuation]
        rows = answer(self.reference(name), text)[len(prompt) - 1 : -1]
        best = np.sort(rows, axis=-1)[:, -2:]
        clear = best[:, 1] - best[:, 0] > lead
        assert (rows.argmax(-1) == np.array(continuation))[clear].all(), name
        return int(clear.sum())

    def errors(self) -> list[ParityError]:
        """Return the largest error of each comparison and model."""
        return [
            (what, name, read_gguf(self.file(name)).metadata.architecture, error)
            for (what, name), error in self._errors.items()
        ]

    def quantized_reference(self, name: str, type_: str) -> PreTrainedModel:
        """Return transformers' model with the weights as the file of the type `type_` has them."""
        if name in ENCODERS:
            return load_reference(name, self.quantized_checkpoint(name, type_))
        model = load_reference(name, self.checkpoint(name))
        return take_weights(model, RECIPES[name], self.file(name, type_))

    def quantized_checkpoint(self, name: str, type_: str) -> Path:
        """Return a copy of a checkpoint with the weights as the file of the type `type_` has."""
        folder = self._folder / f"{name}-{type_}"
        if not folder.exists():
            shutil.copytree(self.checkpoint(name), folder)
            take_stored_weights(folder, RECIPES[name], self.file(name, type_))
        return folder

    def _checkpoint(self, name: str) -> Path:
        return make_checkpoint(name, self._folder / name)

    def _file(self, name: str, type_: str) -> Path:
        path = self._folder / f"{name}-{type_}.gguf"
        convert(self.checkpoint(name), path, type_)
        return path

    def _reference(self, name: str) -> PreTrainedModel:
        return load_reference(name, self.checkpoint(name))

    def _answer(self, name: str, length: int = LENGTH) -> Logits:
        return answer(self.reference(name), tokens(length))


def answer(model: PreTrainedModel, text: Sequence[int]) -> Logits:
    """Return transformers' logits of every position: (positions, vocabulary)."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([list(text)])).logits[0]
    result: Logits = logits.float().numpy()
    return result


class TableGelu(torch.nn.Module):
    """GELU as ggml's CPU code has it: from a table with half-precision arguments and values."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the activation; the table ends at -10 and 10."""
        y = torch.nn.functional.gelu(x.half().float(), approximate="tanh").half().float()
        return torch.where(x <= -10, torch.zeros_like(x), torch.where(x >= 10, x, y))


def tabulate_gelu(model: PreTrainedModel) -> PreTrainedModel:
    """Give every part of a text model with an activation the one from the table."""
    for name, module in model.named_modules():
        if hasattr(module, "act_fn") and "vision" not in name:
            module.act_fn = TableGelu()
    return model
