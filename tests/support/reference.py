"""What the engine computes, the slow and obvious way, in NumPy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from support.tiny_model import Tiny, tiny_keys, tiny_weights

from tampu.ml import RopeMode, RopeScaling

Floats = npt.NDArray[Any]


def silu(x: Floats) -> Floats:
    return x / (1 + np.exp(-x))


def gelu(x: Floats) -> Floats:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def softmax(x: Floats) -> Floats:
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def rms_norm(x: Floats, weight: Floats, epsilon: float) -> Floats:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * weight


def rope(
    x: Floats,
    positions: npt.NDArray[np.integer],
    *,
    dimensions: int,
    base: float,
    mode: RopeMode,
    scaling: RopeScaling,
    factors: Floats | None = None,
) -> Floats:
    """Rotate the pairs of (tokens, heads, features): arXiv:2104.09864, YaRN arXiv:2309.00071."""
    pair = np.arange(dimensions // 2)
    frequency = base ** (-2.0 * pair / dimensions) / (1.0 if factors is None else factors)
    angle = positions[:, None] * frequency
    magnitude = scaling.magnitude
    if scaling.extrapolation:
        kept = scaling.extrapolation * _kept(pair, dimensions, base, scaling)
        angle = angle * (scaling.frequency_scale * (1 - kept) + kept)
        magnitude *= 1 + 0.1 * math.log(1 / scaling.frequency_scale)
    else:
        angle = angle * scaling.frequency_scale
    cos, sin = np.cos(angle)[:, None] * magnitude, np.sin(angle)[:, None] * magnitude
    first = pair if mode is RopeMode.HALVES else 2 * pair
    second = first + (dimensions // 2 if mode is RopeMode.HALVES else 1)
    rotated = x.copy()
    rotated[..., first] = x[..., first] * cos - x[..., second] * sin
    rotated[..., second] = x[..., first] * sin + x[..., second] * cos
    return rotated


def _kept(
    pair: npt.NDArray[np.integer], dimensions: int, base: float, scaling: RopeScaling
) -> Floats:
    """Return how much of each frequency YaRN keeps: 1 for the fast ones, 0 for the slow ones."""

    def pair_of(rotations: float) -> float:
        length = scaling.original_context / (rotations * 2 * math.pi)
        return dimensions * math.log(length) / (2 * math.log(base))

    fast = max(0, math.floor(pair_of(scaling.beta_fast)))
    slow = min(dimensions - 1, math.ceil(pair_of(scaling.beta_slow)))
    return 1 - np.clip((pair - fast) / max(0.001, slow - fast), 0, 1)


class Reference:
    """A tiny model in double precision."""

    def __init__(self, tiny: Tiny, weights: Mapping[str, Floats] | None = None) -> None:
        self.tiny = tiny
        values = tiny_weights(tiny) if weights is None else weights
        self._weights = {name: array.astype(np.float64) for name, array in values.items()}
        self._layer = ""

    def __call__(self, tokens: Sequence[int]) -> Floats:
        """Return the logits (positions, vocabulary) of a text."""
        tiny = self.tiny
        self._layer = ""
        x = self._of("token_embd.weight")[np.asarray(tokens)]
        x = x * tiny.embedding**0.5 if tiny.is_gemma else x
        for index in range(tiny.layers):
            self._layer = f"blk.{index}."
            y = self._attention(self._norm("attn_norm", x), self._is_global(index))
            x = x + self._norm("post_attention_norm", y)
            y = self._norm("ffn_norm", x)
            gate = (gelu if tiny.is_gemma else silu)(self._linear("ffn_gate", y))
            x = x + self._norm(
                "post_ffw_norm", self._linear("ffn_down", gate * self._linear("ffn_up", y))
            )
        self._layer = ""
        head = self._weights.get("output.weight", self._of("token_embd.weight"))
        return self._norm("output_norm", x) @ head.T

    def _attention(self, x: Floats, is_global: bool) -> Floats:
        tiny, positions = self.tiny, np.arange(len(x))
        heads = (len(x), -1, tiny.head_dim)
        q, k, v = (self._linear(f"attn_{letter}", x).reshape(heads) for letter in "qkv")
        q, k = self._norm("attn_q_norm", q), self._norm("attn_k_norm", k)
        settings = {
            "dimensions": tiny.keys.get("rope.dimension_count", tiny.head_dim),
            "base": tiny.rope_base if is_global else 10_000.0,
            "mode": RopeMode.INTERLEAVED if tiny.architecture == "llama" else RopeMode.HALVES,
            "scaling": RopeScaling(),
            "factors": self._weights.get("rope_freqs.weight"),
        }
        q, k = rope(q, positions, **settings), rope(k, positions, **settings)
        groups = tiny.heads // tiny.kv_heads
        scores = np.einsum("thd,shd->hts", q, k.repeat(groups, 1)) * tiny.head_dim**-0.5
        ago = positions[:, None] - positions
        window = self._window(is_global)
        mixed = softmax(np.where((ago < 0) | (ago >= window), -np.inf, scores))
        y = np.einsum("hts,shd->thd", mixed, v.repeat(groups, 1)).reshape(len(x), -1)
        return self._linear("attn_output", y)

    def _is_global(self, layer: int) -> bool:
        period = self.tiny.keys.get("attention.sliding_window_pattern", 6)
        return not self.tiny.is_gemma or (layer + 1) % period == 0

    def _window(self, is_global: bool) -> int:
        given = tiny_keys(self.tiny).get("attention.sliding_window")
        return 10**9 if given is None or (self.tiny.is_gemma and is_global) else given

    def _of(self, name: str) -> Floats:
        return self._weights[self._layer + name]

    def _linear(self, name: str, x: Floats) -> Floats:
        return x @ self._of(f"{name}.weight").T + self._weights.get(
            f"{self._layer}{name}.bias", 0.0
        )

    def _norm(self, name: str, x: Floats) -> Floats:
        """Norm, if the model has a norm of this name."""
        weight = self._weights.get(f"{self._layer}{name}.weight")
        return x if weight is None else rms_norm(x, weight, self.tiny.epsilon)


def delta_rule(
    q: Floats, k: Floats, v: Floats, log_decay: Floats, beta: Floats, state: Floats
) -> tuple[Floats, Floats]:
    """The gated delta rule token by token: its outputs and the last states.

    All are (sequences, tokens, heads, ...); states are (sequences, heads, features, features).
    Value head h reads key head h modulo their number. Each head has a decay, or each of its keys'
    features.
    """
    repeats = v.shape[2] // q.shape[2]
    q, k = (np.tile(each.astype(np.float64), (1, 1, repeats, 1)) for each in (q, k))
    state, outputs = state.astype(np.float64), np.empty(v.shape)
    decay = np.exp(log_decay.astype(np.float64)).reshape(*beta.shape, 1, -1)
    for t in range(v.shape[1]):
        state = state * decay[:, t]
        known = np.einsum("bhvk,bhk->bhv", state, k[:, t])
        change = beta[:, t, :, None] * (v[:, t] - known)
        state = state + change[..., None] * k[:, t, :, None]
        outputs[:, t] = np.einsum("bhvk,bhk->bhv", state, q[:, t]) / math.sqrt(v.shape[3])
    return outputs, state


def selective_scan(
    x: Floats, b: Floats, c: Floats, step: Floats, decay: Floats, skip: Floats, state: Floats
) -> tuple[Floats, Floats]:
    """Return the outputs and the states after them (arXiv:2405.21060), shapes as in `ml`."""
    b, c = (np.repeat(each, x.shape[2] // each.shape[2], axis=2) for each in (b, c))
    outputs, state = np.zeros(x.shape), state.astype(np.float64)
    for t in range(x.shape[1]):
        delta = np.logaddexp(0, step[:, t].astype(np.float64))[:, :, None, None]
        added = delta * x[:, t, :, :, None] * b[:, t, :, None]
        state = np.exp(delta * decay[:, None]) * state + added
        outputs[:, t] = (state * c[:, t, :, None]).sum(-1) + skip * x[:, t]
    return outputs, state
