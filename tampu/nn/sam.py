"""SAM's image encoder, and what DeepSeek-OCR has behind it: a smaller map for other encoders.

Most layers attend within windows; zeros fill those at the right and the lower edge, and take part.
A score also has a number for the distance to a key's row and one for that to its column: both are
products with the query. They become a part of the product of query and key: the query has all its
numbers behind its features, and a key has ones at those of its own row and column.

Sources: arXiv:2304.02643 (SAM), arXiv:2112.01526 (the positions), arXiv:2510.18234 (DeepSeek-OCR).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tampu.errors import ModelFileError
from tampu.ml import Context, Tensor
from tampu.ml.moe import repeat
from tampu.nn.convolution import Conv2d, zero_rows
from tampu.nn.encoder import Numbers, PatchEmbedding, as_rows, attend_within
from tampu.nn.linear import Linear
from tampu.nn.module import Module, gguf
from tampu.nn.norm import LayerNorm
from tampu.nn.position_grid import resample_map, resampling

_EPSILON = 1e-6  # no file holds it
_SHRINKS = 4  # what becomes one row of the result, on a side


@dataclass(frozen=True, slots=True)
class Views:
    """Square maps of one size, whose rows follow one another.

    Attributes:
        count: how many there are.
        side: places in a row of each.
        extra: rows behind those of each.
    """

    count: int
    side: int
    extra: int = 0

    @property
    def rows(self) -> int:
        """The rows of all of them."""
        return self.count * (self.side**2 + self.extra)

    @property
    def shrunk(self) -> Views:
        """What the encoder makes of them."""
        return Views(self.count, -(-self.side // _SHRINKS))


def _window_arrays(views: Sequence[Views], window: int) -> dict[str, Numbers]:
    """Return the row for each place of all windows, and the place for each row; I32.

    Places outside a map have the row behind the last.
    """
    outside = sum(each.rows for each in views)
    before, windows = 0, []
    for each in views:
        across = -(-each.side // window)
        rows = np.full((each.count, across * window, across * window), outside, np.int32)
        inside = np.arange(before, before + each.rows).reshape(each.count, each.side, each.side)
        rows[:, : each.side, : each.side] = inside
        cut = rows.reshape(each.count, across, window, across, window)
        windows.append(cut.transpose(0, 1, 3, 2, 4).reshape(-1))
        before += each.rows
    placed = np.concatenate(windows)
    places = np.empty(outside + 1, np.int32)
    places[placed] = np.arange(len(placed), dtype=np.int32)
    return {"windows": placed, "places": places[:outside]}


def _cells(side: int) -> Numbers:
    """Return F32 (side², 2 · side): for each place ones at its row and column, from the last on."""
    last_first = np.eye(side, dtype=np.float32)[::-1]
    row, column = (np.repeat(last_first, side, 0), np.tile(last_first, (side, 1)))
    return np.concatenate([row, column], 1)


def _between(length: int, count: int) -> Numbers:
    """Return the weights F32 (count, length) of linear interpolation between two neighbours."""
    where = np.maximum((np.arange(count) + 0.5) * length / count - 0.5, 0)
    low = np.floor(where).astype(int)
    weights = np.zeros((count, length), np.float32)
    weights[np.arange(count), low] = 1 - (where - low)
    weights[np.arange(count), np.minimum(low + 1, length - 1)] += where - low
    return weights


class SamAttention(Module):
    """Attention within square maps, by content and by the distances of rows and columns."""

    joint: Linear = gguf("attn.qkv")
    output: Linear = gguf("attn.out")
    rows: Tensor = gguf("attn.pos_h.weight")
    columns: Tensor = gguf("attn.pos_w.weight")

    def __call__(self, x: Tensor, views: Views, heads: int, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return (n, features) for x of that shape, the rows of these maps."""
        side, count = views.side, x.shape[0]
        q, k, v = (part.reshape(count, heads, -1) for part in self.joint(x).split(3))
        features = q.shape[2]
        to_rows = self._scores(q, self.rows, views, inputs)
        to_columns = self._scores(q, self.columns, views, inputs)
        # Of a query in row r the number for row m, from the last on, is at r + m.
        each, place = to_rows.strides[0], heads * to_rows.strides[0]
        by_row = to_rows.strided(
            (views.count, side, side * heads, side), (side**2 * place, side * place + 4, each)
        )
        by_column = to_columns.strided(
            (views.count * side, side, heads, side), (side * place, place + 4, each)
        )
        near = by_row.reshape(count, heads, side).concat(by_column.reshape(count, heads, side), 2)
        cells = repeat(inputs[f"cells{side}"].reshape(side**2, 1, 2 * side), heads)
        cells = repeat(cells.reshape(1, 1, -1), views.count).reshape(count, heads, 2 * side)
        mixed = attend_within(
            q.concat(near, 2), k.concat(cells, 2), v, views.count, scale=features**-0.5
        )
        return self.output(mixed)

    def _scores(
        self, q: Tensor, table: Tensor, views: Views, inputs: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the products (n · heads, 2 · side - 1) of queries with a table's distances."""
        length, features = table.shape
        wanted, kind = 2 * views.side - 1, table.type
        rows = table.strided((length, features), (kind.size_of(features),), context=q.context)
        if length != wanted and f"distances{views.side}" in inputs:
            rows = inputs[f"distances{views.side}"].linear(rows.transpose(1, 0).contiguous())
        if rows.shape != (wanted, q.shape[2]):
            what = f"{list(table.shape)} are not {wanted} distances of {q.shape[2]} features"
            raise ModelFileError(f"tensor '{table.name}'", what)
        return q.reshape(-1, features).linear(rows)


class SamLayer(Module):
    """A layer of SAM's encoder, of windows or of whole maps as its table of distances says."""

    attention_norm: LayerNorm = gguf("pre_ln")
    attention: SamAttention = gguf()
    feed_forward_norm: LayerNorm = gguf("post_ln")
    first: Linear = gguf("mlp.lin1")
    second: Linear = gguf("mlp.lin2")

    def __call__(
        self,
        x: Tensor,
        views: Sequence[Views],
        heads: int,
        window: int,
        inputs: Mapping[str, Tensor],
    ) -> Tensor:
        """Return (n, features) for x of that shape, the rows of all views."""
        y = self.attention_norm(x, _EPSILON)
        if self.attention.rows.shape[0] == 2 * window - 1:
            windows = Views(inputs["windows"].shape[0] // window**2, window)
            placed = y.concat(zero_rows(y, 1), 0).rows(inputs["windows"])
            y = self.attention(placed, windows, heads, inputs).rows(inputs["places"])
        else:
            y = by_view(y, views, lambda part, each: self.attention(part, each, heads, inputs))
        x = x + y
        y = self.first(self.feed_forward_norm(x, _EPSILON)).gelu_exact()
        return x + self.second(y)


class SamEncoder(Module):
    """SAM's encoder with its neck, and two convolutions that make a row of 16 patches."""

    patch: PatchEmbedding = gguf("patch_embd")
    position: Tensor = gguf("pos_embd.weight")
    layers: list[SamLayer] = gguf("blk", count="sam_layers")
    reduce: Conv2d = gguf("neck.0")
    first_norm: LayerNorm = gguf("neck.1")
    smooth: Conv2d = gguf("neck.2")
    second_norm: LayerNorm = gguf("neck.3")
    third: Conv2d = gguf("net_2")
    fourth: Conv2d = gguf("net_3")

    def __call__(
        self,
        context: Context,
        views: Sequence[Views],
        heads: int,
        window: int,
        inputs: Mapping[str, Tensor],
    ) -> Tensor:
        """Return (n / 16, outputs) for the views' patches, the rows of one view after another.

        Args:
            context: of the graph.
            views: what `patches` are of.
            heads: of its layers.
            window: places in a row of a window.
            inputs: `patches` F32 (n, colors · side²), colors slowest, and those of `arrays`.
        """
        x = self.patch(inputs["patches"])
        x = by_view(x, views, lambda part, each: self._placed(context, part, each, inputs))
        for layer in self.layers:
            x = layer(context.pause(x), views, heads, window, inputs)
        return by_view(context.pause(x), views, self._shrunk)

    def arrays(self, views: Sequence[Views], window: int, heads: int) -> dict[str, Numbers]:
        """Return the inputs of the graph but `patches`; the arguments are those of a call."""
        table, features = self.side, self.position.shape[-1] // heads
        arrays: dict[str, Numbers] = _window_arrays(views, window)
        for side in {window, *(each.side for each in views)}:
            arrays[f"cells{side}"] = _cells(side) * np.float32(features**0.5)
        for side in {each.side for each in views} - {table}:
            arrays[f"resampling{side}"] = resampling(table, side, is_cubic=True).astype(np.float32)
            arrays[f"distances{side}"] = _between(2 * table - 1, 2 * side - 1)
        return arrays

    def views(self, tiles: int, tile: int) -> tuple[Views, ...]:
        """Return what is seen of an image: its tiles if it has any, and the whole behind them.

        Args:
            tiles: how many there are.
            tile: pixels in a row of one.

        Raises:
            ModelFileError: if a tile is not made of whole patches.
        """
        if tile % self.patch_side:
            reason = f"tiles of {tile} pixels are not made of patches of {self.patch_side}"
            raise ModelFileError("key 'vision.preproc_image_size'", reason)
        whole = Views(1, self.side)
        return (Views(tiles, tile // self.patch_side), whole) if tiles else (whole,)

    @property
    def patch_side(self) -> int:
        """Pixels in a row of a patch."""
        return self.patch.weight.shape[-1]

    @property
    def image(self) -> int:
        """Pixels in a row of the view of a whole image."""
        return self.side * self.patch_side

    @property
    def side(self) -> int:
        """Places in a row of the map of which it has embedded positions."""
        rows, columns = self.position.shape[-3:-1]
        if rows != columns:
            reason = f"{list(self.position.shape)} are not the positions of a square"
            raise ModelFileError(f"tensor '{self.position.name}'", reason)
        return rows

    def _placed(
        self, context: Context, x: Tensor, views: Views, inputs: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the patches with the embedding of each place, resampled for other sizes."""
        side, width = views.side, x.shape[1]
        y = as_rows(self.position, context).reshape(self.side, self.side, width)
        if side != self.side:
            y = resample_map(y, inputs[f"resampling{side}"])
        added = x.reshape(views.count, side**2, width) + y.reshape(side**2, width)
        return added.reshape(-1, width)

    def _shrunk(self, x: Tensor, views: Views) -> Tensor:
        """Return the rows of the smaller maps."""
        one = [Views(1, views.side)] * views.count
        return by_view(x, one, lambda part, each: self._shrink(part, each.side))

    def _shrink(self, x: Tensor, side: int) -> Tensor:
        """Return the rows of one smaller map."""
        y = self.reduce(_as_map(x.reshape(side, side, -1)), 1)
        y = self.smooth(_as_map(self.first_norm(y, _EPSILON)), 1)
        y = self.third(_as_map(self.second_norm(y, _EPSILON)), 2)
        y = self.fourth(_as_map(y), 2)
        return y.reshape(-1, y.shape[-1])


def _as_map(x: Tensor) -> Tensor:
    """Return (features, rows, columns) for (rows, columns, features)."""
    return x.transpose(2, 0, 1).contiguous()


def by_view(x: Tensor, views: Sequence[Views], change: Callable[[Tensor, Views], Tensor]) -> Tensor:
    """Return what a function makes of the rows of each size of views, one after the other."""
    parts = x.split([each.rows for each in views], axis=0)
    y, *others = (change(part, each) for part, each in zip(parts, views, strict=True))
    for other in others:
        y = y.concat(other, 0)
    return y
