"""Llama 3.2 Vision's encoder: up to four tiles of an image encoded together, in two stages.

Sources: arXiv:2407.21783, section 7; models/llama3/multimodal in meta-llama/llama-models, which
transformers 5 no longer follows in all (docs/models.md). The inputs of some layers are
concatenated with the output of the last one.
The embedding is not part of the text: it is the keys and values of the text's cross-attention.
Real patches attend to absent tiles and to the padding to a multiple of eight, which do not attend
to one another, as in the reference.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tampu import nn
from tampu.ml import Context, Tensor
from tampu.ml.moe import repeat
from tampu.vision import CLIP, Filter, arrange, arrangements, cut_tiles, paste, patches, resize

_MULTIPLE = 8  # of the patches of a tile
_OUTER_EPSILON = 1e-5  # of the norms before and between, which the reference leaves at the default


@dataclass(frozen=True, kw_only=True)
class Options:
    text_layers: int = nn.option("block_count", at_most=1024)
    text_epsilon: float = nn.option("attention.layer_norm_rms_epsilon", default=1e-5, of_text=True)
    layers: int = nn.option("vision.block_count", at_most=1024)
    embedding: int = nn.option("vision.embedding_length")
    global_layers: int = nn.option("vision.global.block_count", at_most=1024)
    heads: int = nn.option("vision.attention.head_count", at_most=4096)
    epsilon: float = nn.option("vision.attention.layer_norm_epsilon", default=1e-5)
    image: int = nn.option("vision.image_size", at_most=16_384)
    patch: int = nn.option("vision.patch_size", at_most=1024)
    tiles: int = nn.option("vision.max_num_tiles", default=4, at_most=64)
    kept: tuple[int, ...] = nn.option("vision.intermediate_layers_indices", at_least=0)

    @property
    def patches(self) -> int:
        """Patches of a tile, with the one that stands for all of it."""
        return (self.image // self.patch) ** 2 + 1

    @property
    def padded(self) -> int:
        """Patches of a tile, padded to a multiple of eight."""
        return -(-self.patches // _MULTIPLE) * _MULTIPLE


class GatedEmbedding(nn.Module):
    """A table with a number that its rows are multiplied by."""

    table: nn.Embedding = nn.gguf()
    gate: Tensor = nn.gguf("gate")

    def __call__(self, indices: Tensor) -> Tensor:
        return self.table(indices) * self.gate


class GlobalLayer(nn.Module):
    """A layer whose parts are multiplied by numbers before they are added."""

    layer: nn.EncoderLayer = nn.gguf()
    attention_gate: Tensor = nn.gguf("attn_gate")
    feed_forward_gate: Tensor = nn.gguf("ffn_gate")

    def __call__(self, x: Tensor, heads: int, epsilon: float, mask: Tensor) -> Tensor:
        inner = self.layer
        y = inner.attention(inner.attention_norm(x, epsilon), heads, mask=mask)
        x = x + y * self.attention_gate
        y = inner.feed_forward(inner.feed_forward_norm(x, epsilon), Tensor.gelu_exact)
        return x + y * self.feed_forward_gate


class CrossSource(nn.Module):
    """The part of a text layer that reads the image; layers that read the text have none."""

    key: nn.Linear | None = nn.gguf("cross_attn_k_proj")
    value: nn.Linear | None = nn.gguf("cross_attn_v_proj")
    norm: nn.RMSNorm | None = nn.gguf("cross_attn_k_norm")

    def __call__(self, x: Tensor, epsilon: float) -> list[Tensor]:
        """Return keys and values (rows, features), nothing for a layer that has none."""
        if self.key is None or self.value is None or self.norm is None:
            return []
        keys = self.key(x)
        heads = keys.reshape(x.shape[0], -1, self.norm.weight.shape[0])
        return [self.norm(heads, epsilon).reshape(*keys.shape), self.value(x)]


class MllamaVision(nn.VisionModel):
    patch: nn.PatchEmbedding = nn.gguf("v.patch_embd")
    first: Tensor = nn.gguf("v.class_embd")
    tile_before: GatedEmbedding = nn.gguf("v.pre_tile_position_embd")
    position: GatedEmbedding = nn.gguf("v.position_embd")
    tile_position: GatedEmbedding = nn.gguf("v.tile_position_embd")
    norm_before: nn.LayerNorm = nn.gguf("v.pre_ln")
    layers: list[nn.EncoderLayer] = nn.gguf("v.blk", count="layers")
    norm_after: nn.LayerNorm = nn.gguf("v.post_ln")
    tile_after: GatedEmbedding = nn.gguf("v.post_tile_position_embd")
    global_layers: list[GlobalLayer] = nn.gguf("v.global.blk", count="global_layers")
    projector: nn.Linear = nn.gguf("mm.0")
    sources: list[CrossSource] = nn.gguf("blk", count="text_layers")

    options_type: ClassVar[type[Options]] = Options
    projectors: ClassVar[tuple[str, ...]] = ()
    special_tokens: ClassVar[nn.SpecialTokens] = {"image": (("<|image|>",),)}
    options: Options

    def prepare(self, image: nn.RGBImage) -> nn.MediaItem:
        o = self.options
        plan = arrange(*image.shape[:2], side=o.image, most=o.tiles)
        small = resize(image, plan.height, plan.width, Filter.BILINEAR)
        tiles = cut_tiles(CLIP(paste(small, plan, o.image)), o.image)
        kind = arrangements(o.tiles).index((plan.rows, plan.columns)) + 1
        cut = [patches(tile, o.patch) for tile in tiles]
        cut += [np.zeros_like(cut[0])] * (o.tiles - len(tiles))
        arrays: dict[str, npt.NDArray[np.generic]] = {
            "patches": np.concatenate(cut),
            "arrangement": np.array([kind], np.int32),
            "places": np.arange(o.patches, dtype=np.int32),
            "mask": self._mask(len(tiles)),
        }
        if o.padded > o.patches:
            shape = (o.tiles, o.padded - o.patches, o.embedding)
            arrays["padding"] = np.zeros(shape, np.float32)
        placeholders = nn.Placeholders(
            np.array(self.tokens["image"], np.int32),
            np.zeros(1, np.bool_),
            groups=(),
            advance=1,
            is_cross=True,
        )
        return nn.MediaItem(arrays, len(tiles), len(tiles) * o.patches, placeholders)

    def largest(self) -> nn.MediaItem:
        o = self.options
        return self.prepare(np.zeros((o.image, o.image * o.tiles, 3), np.uint8))

    def encode(self, context: Context, key: Hashable, inputs: Mapping[str, Tensor]) -> Tensor:
        o, tiles = self.options, int(str(key))
        x = self._embed(context, inputs)
        width = x.shape[-1]
        kept = []
        for index, layer in enumerate(self.layers):
            if index in o.kept:
                kept.append(x)
            x = layer(
                x,
                heads=o.heads,
                epsilon=o.epsilon,
                activate=Tensor.gelu_exact,
                mask=inputs["mask"],
            )
        x = self.norm_after(x, _OUTER_EPSILON).reshape(o.tiles, o.padded, width)
        x = x + self.tile_after(inputs["arrangement"]).reshape(o.tiles, 1, width)
        x = x.reshape(-1, width)
        for last in self.global_layers:
            x = last(x, o.heads, o.epsilon, inputs["mask"])
        x = self._present(x, tiles)
        if kept:
            x = x.concat(_interleaved([self._present(each, tiles) for each in kept]), 1)
        states = self.projector(x)
        parts = [part for source in self.sources for part in source(states, o.text_epsilon)]
        result = parts[0]
        for part in parts[1:]:
            result = result.concat(part, 1)
        return result

    def _embed(self, context: Context, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return patches with their position embeddings (tiles * padded, features)."""
        o = self.options
        cut = self.patch(inputs["patches"])
        width = cut.shape[1]
        x = cut.reshape(o.tiles, o.patches - 1, width)
        x = x + self.tile_before(inputs["arrangement"]).reshape(o.tiles, 1, width)
        first = self.first.strided((1, 1, width), (width * 4, width * 4), context=context)
        x = repeat(first, o.tiles).reshape(o.tiles, 1, width).concat(x, 1)
        x = x + self.position(inputs["places"])
        x = x + self.tile_position(inputs["arrangement"]).reshape(o.tiles, o.patches, width)
        x = self.norm_before(x, _OUTER_EPSILON)
        if o.padded > o.patches:
            x = x.concat(inputs["padding"], 1)
        return x.reshape(-1, width)

    def _present(self, x: Tensor, tiles: int) -> Tensor:
        """Return the patches (tiles * patches, features) of the first tiles."""
        o, step = self.options, x.shape[1] * 4
        seen = x.strided((tiles, o.patches, x.shape[1]), (o.padded * step, step))
        return seen.contiguous().reshape(-1, x.shape[1])

    def _mask(self, tiles: int) -> npt.NDArray[np.float16]:
        """Return which patches attend to which: all, but padding does not attend to padding."""
        o = self.options
        padding = np.arange(o.padded)[None, :] >= o.patches
        padding = (padding | (np.arange(o.tiles)[:, None] >= tiles)).reshape(-1)
        return np.where(padding[:, None] & padding, np.float16(-np.inf), np.float16(0))


def _interleaved(parts: list[Tensor]) -> Tensor:
    """Return (n, features * parts): for each feature the parts' values one after the other."""
    count, features = parts[0].shape
    result = parts[0].reshape(count, features, 1)
    for part in parts[1:]:
        result = result.concat(part.reshape(count, features, 1), 2)
    return result.reshape(count, features * len(parts))
