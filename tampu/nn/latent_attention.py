"""Multi-head latent attention (MLA): keys and values of all heads are made from one short row.

Source: arXiv:2405.04434 (DeepSeek-V2), section 2.1; with RoPE on a part of each head:

    latent, position = split(kv_a x)              one row a token, which the cache stores
    key[h]   = (k_b[h] norm(latent), rotate(position))
    value[h] = v_b[h] norm(latent)

Instead of making keys and values of the whole history, the matrices are moved to the other side
("absorbed"), so that all heads attend to the rows themselves:

    query[h] · key[h] = (k_bᵀ[h] content[h], rotate(query position[h])) · (latent, position)
    output[h]         = v_b[h] Σ weight · latent
"""

from __future__ import annotations

from dataclasses import dataclass

from tampu.ml import Tensor
from tampu.ml.buffer_types import WeightUse
from tampu.ml.rotary import Rope
from tampu.nn.attention import Rotation, attention
from tampu.nn.cache import LayerCache
from tampu.nn.linear import Linear
from tampu.nn.model import LayerShape
from tampu.nn.module import Module, gguf
from tampu.nn.norm import RMSNorm

EPSILON = 1e-6  # of the norms of queries and latent rows: no file states it


@dataclass(frozen=True, slots=True)
class LatentHeads:
    """The shape of a layer's latent attention.

    Attributes:
        heads: of queries.
        content: features of each query and key that are not rotated.
        rotated: features of each query and key that are.
        rank: features of the latent row.
        scale: of the scores.
    """

    heads: int
    content: int
    rotated: int
    rank: int
    scale: float

    @property
    def cache_shape(self) -> LayerShape:
        """The shape of the cache: one row a token, whose first features are its value."""
        return LayerShape(1, self.rank + self.rotated, latent_rank=self.rank)


class LowRankQuery(Module):
    """Queries by two matrices with a norm between them."""

    down: Linear = gguf("attn_q_a")
    norm: RMSNorm = gguf("attn_q_a_norm")
    up: Linear = gguf("attn_q_b")

    def __call__(self, x: Tensor) -> Tensor:
        """Return the queries (tokens, heads * features) for x (tokens, features)."""
        return self.up(self.norm(self.down(x), EPSILON))


class FullQuery(Module):
    """Queries by one matrix (the small models)."""

    project: Linear = gguf("attn_q")

    def __call__(self, x: Tensor) -> Tensor:
        """Return the queries (tokens, heads * features) for x (tokens, features)."""
        return self.project(x)


class LatentAttention(Module):
    """Attention of tokens to the latent rows of their history."""

    query: LowRankQuery | FullQuery = gguf()
    latent: Linear = gguf("attn_kv_a_mqa")
    latent_norm: RMSNorm = gguf("attn_kv_a_norm")
    key: Tensor = gguf("attn_k_b.weight", use=WeightUse.PRODUCT)
    value: Tensor = gguf("attn_v_b.weight", use=WeightUse.PRODUCT)
    output: Linear = gguf("attn_output")

    def __call__(
        self,
        x: Tensor,
        cache: LayerCache,
        heads: LatentHeads,
        rotate: Rotation | None = None,
        *,
        attn_scale: Tensor | None = None,
    ) -> Tensor:
        """Return (tokens, features) for x of that shape.

        Args:
            x: normed.
            cache: of this layer, of the shape `heads.cache_shape`.
            heads: the shape of the attention.
            rotate: a `Rope` with the positions bound; None: no part of a head is rotated.
            attn_scale: F32, (tokens, 1, 1): multiplies the queries.
        """
        o, tokens = heads, x.shape[0]
        q = self.query(x).reshape(tokens, o.heads, o.content + o.rotated)
        content, position = q.split([o.content, o.rotated])
        # (heads, tokens, content) by (heads, rank, content)
        absorbed = content.transpose(1, 0, 2).linear(self.key).transpose(1, 0, 2)
        q = absorbed.contiguous().concat(rotate(position) if rotate else position, 2)
        q = q * attn_scale if attn_scale else q
        row = self._row(x, o, rotate)
        mixed = attention(q, row, None, cache, scale=o.scale).reshape(tokens, o.heads, o.rank)
        y = mixed.transpose(1, 0, 2).linear(self.value)  # (heads, tokens, value features)
        return self.output(y.transpose(1, 0, 2).reshape(tokens, -1))

    def store(self, x: Tensor, cache: LayerCache, heads: LatentHeads, rotate: Rotation) -> None:
        """Write the rows of x without attending; arguments as for a call."""
        cache.update(self._row(x, heads, rotate), None)

    def _row(self, x: Tensor, heads: LatentHeads, rotate: Rotation | None) -> Tensor:
        """Return what the cache stores of each token: (tokens, 1, rank + rotated)."""
        latent, position = self.latent(x).split([heads.rank, heads.rotated])
        row = self.latent_norm(latent.contiguous(), EPSILON).reshape(-1, 1, heads.rank)
        position = position.reshape(-1, 1, heads.rotated)
        return row.concat(rotate(position) if rotate else position, 2)


def move_latent(keys: Tensor, offsets: Tensor, heads: LatentHeads, rope: Rope) -> Tensor:
    """Return stored rows (n, 1, rank + rotated) with their rotated part moved."""
    latent, position = keys.split([heads.rank, heads.rotated])
    return latent.contiguous().concat(rope.move(position.contiguous(), offsets), 2)
