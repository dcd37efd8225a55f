"""Layers of differing sizes: narrow values, another layer's cache, values that are part of keys."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.reference import softmax
from support.running import TinyModel, relative_error
from support.tiny_model import VOCABULARY, Tiny, write_tiny

from tampu import models
from tampu.kvcache import AttentionKind, CacheSize, layer_bytes
from tampu.ml import Backend
from tampu.nn import (
    Batch,
    Decoder,
    LayerShape,
    Linear,
    Module,
    StateShape,
    attention,
    gguf,
    option,
    select_rows,
)
from tampu.nn.decoder import Step

WIDTH, HEADS, KV_HEADS, KEY, VALUE = 32, 4, 2, 16, 8
SHAPES = [
    LayerShape(KV_HEADS, KEY, value_dim=VALUE),
    LayerShape(KV_HEADS, KEY, value_dim=VALUE, shared_layer=0),
    LayerShape(1, KEY, latent_rank=VALUE),
]
TINY = Tiny(architecture="uneven", embedding=WIDTH)
TEXT = [1, 259, 286, 264, 7, 7, 300, 12, 286, 264, 299, 3, 310, 259, 286, 264, 288, 2, 17, 100] * 4


@dataclass(frozen=True, kw_only=True)
class Options:
    epsilon: float = option("attention.layer_norm_rms_epsilon")
    layers: int = 3


class Attention(Module):
    query: Linear = gguf("attn_q")
    key: Linear | None = gguf("attn_k")
    value: Linear | None = gguf("attn_v")
    output: Linear = gguf("attn_output")

    def __call__(self, x: Any, cache: Any, *, rows: Any, shape: Any) -> Any:
        q = self.query(x).reshape(-1, HEADS, KEY)
        k = self.key(x).reshape(-1, shape.kv_heads, KEY) if self.key else None
        v = self.value(x).reshape(-1, shape.kv_heads, VALUE) if self.value else None
        x, y = select_rows(rows, x, attention(q, k, v, cache, scale=0.25))
        return x + self.output(y)


class Uneven(Decoder):
    layers: list[Attention]
    options_type = Options

    def cache_shapes(self) -> Sequence[LayerShape | StateShape]:
        return SHAPES

    def steps(self, batch: Batch) -> Iterable[Step]:  # noqa: ARG002
        return [
            partial(layer, shape=shape) for layer, shape in zip(self.layers, SHAPES, strict=True)
        ]


@pytest.fixture
def weights() -> dict[str, Any]:
    random = np.random.default_rng(5)

    def matrix(outputs: int, inputs: int, strength: float = 1.0) -> Any:
        return (random.normal(size=(outputs, inputs)) * strength / inputs**0.5).astype(np.float32)

    made = {
        "token_embd.weight": matrix(VOCABULARY, WIDTH, WIDTH**0.5),
        "output_norm.weight": random.uniform(0.5, 1.5, WIDTH).astype(np.float32),
    }
    for index, shape in enumerate(SHAPES):
        keys, values = shape.widths
        parts = {"q": (HEADS * KEY, WIDTH), "output": (WIDTH, HEADS * VALUE)}
        parts |= {"k": (keys, WIDTH)} if keys else {}
        parts |= {"v": (values, WIDTH)} if values else {}
        for name, size in parts.items():
            made[f"blk.{index}.attn_{name}.weight"] = matrix(*size)
    return made


@pytest.fixture
def load(
    backend: Backend, tmp_path: Path, weights: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Any]]:
    entry = SimpleNamespace(load=lambda _: Uneven, constants={})
    monkeypatch.setattr(models, "architectures", lambda: {"uneven": entry})
    path, made = write_tiny(tmp_path / "uneven.gguf", TINY, weights=weights), []

    def load(**options: Any) -> TinyModel:
        made.append(TinyModel(backend, path, **options))
        return made[-1]

    yield load
    for each in made:
        each.close()


def logits(weights: dict[str, Any], tokens: list[int]) -> Any:
    """The logits of a text, in NumPy."""
    weights = {name: array.astype(np.float64) for name, array in weights.items()}
    x = weights["token_embd.weight"][tokens]
    k = v = None
    for index, shape in enumerate(SHAPES):
        layer = f"blk.{index}.attn_"
        q = (x @ weights[f"{layer}q.weight"].T).reshape(len(x), HEADS, KEY)
        if shape.shared_layer is None:
            k = (x @ weights[f"{layer}k.weight"].T).reshape(len(x), shape.kv_heads, KEY)
            v = k[..., :VALUE]
        if shape.widths[1]:
            v = (x @ weights[f"{layer}v.weight"].T).reshape(len(x), shape.kv_heads, VALUE)
        repeats = HEADS // shape.kv_heads
        scores = np.einsum("thd,shd->hts", q, k.repeat(repeats, 1)) * 0.25
        scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
        y = np.einsum("hts,shd->thd", softmax(scores), v.repeat(repeats, 1)).reshape(len(x), -1)
        x = x + y @ weights[f"{layer}output.weight"].T
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + TINY.epsilon)
    return (x * weights["output_norm.weight"]) @ weights["token_embd.weight"].T


@pytest.mark.parametrize("kind", AttentionKind)
@pytest.mark.parametrize("chunk", [512, 7, 1])
def test_the_logits_are_those_of_numpy(
    load: Callable[..., Any], weights: dict[str, Any], kind: AttentionKind, chunk: int
) -> None:
    found = load(attention=kind).logits(TEXT, chunk=chunk)
    assert relative_error(found, logits(weights, TEXT)) < 1e-5


@pytest.mark.parametrize("cache_type", ["f16", "f32"])
def test_each_layer_is_allocated_what_it_stores(load: Callable[..., Any], cache_type: str) -> None:
    found = layer_bytes(SHAPES, CacheSize(1, 256, 256), cache_type)
    size = 256 * {"f16": 2, "f32": 4}[cache_type]
    assert found == [KV_HEADS * (KEY + VALUE) * size, 0, KEY * size]
    taken = load(cache_type=cache_type).cache.size_bytes
    assert sum(found) <= taken < sum(found) * 1.1


def test_shared_keys_are_listed_once(load: Callable[..., Any]) -> None:
    layers = load().cache.stored_layers(0)
    stored = [(index, layer.shape.kv_heads, layer.shape.head_dim) for index, layer in layers]
    assert stored == [(0, KV_HEADS, KEY), (2, 1, KEY)]
