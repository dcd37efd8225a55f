"""A Gemma3-shaped model with a SigLIP tower, its parameters named as in Hugging Face's class."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as f
from torch import Tensor, nn

from tools.train_demo import pictures, tokenizer


@dataclass(frozen=True)
class Shape:
    """A model's shape. The last of each ``period`` layers is global; without ``sees`` no tower."""

    layers: int = 6
    hidden: int = 128
    inner: int = 384
    heads: int = 4
    groups: int = 2
    period: int = 3
    sees: bool = True

    @property
    def text(self) -> dict[str, Any]:
        """The text model's settings in Hugging Face's words."""
        return {
            "hidden_size": self.hidden, "intermediate_size": self.inner,
            "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "num_key_value_heads": self.groups, "head_dim": HEAD_DIM,
            "query_pre_attn_scalar": HEAD_DIM, "sliding_window": WINDOW,
            "sliding_window_pattern": self.period,
            "max_position_embeddings": 2048, "rms_norm_eps": 1e-6,
        }  # fmt: skip


HEAD_DIM, WINDOW = 32, 64
VISION: dict[str, Any] = {
    "hidden_size": 96, "intermediate_size": 192, "num_hidden_layers": 3, "num_attention_heads": 3,
    "image_size": pictures.SIZE, "patch_size": 8, "num_channels": 3, "layer_norm_eps": 1e-6,
}  # fmt: skip
LOCAL_BASE, GLOBAL_BASE = 10_000.0, 1_000_000.0


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * (1.0 + weight)


_fast_norm: list[Callable[[Tensor, Tensor], Tensor]] = [_norm]


def compile_norm() -> None:
    """Fuse the norm into one pass (needs a C++ compiler; the first steps then take longer)."""
    _fast_norm[0] = torch.compile(_norm, dynamic=True)


class Norm(nn.Module):
    """Gemma's RMS norm: the stored weight is one less than the gain."""

    def __init__(self, size: int, gain: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), gain - 1.0))

    def forward(self, x: Tensor) -> Tensor:
        """Scale to unit mean square, then by the gain."""
        return _fast_norm[0](x.reshape(-1, x.shape[-1]), self.weight).view(x.shape)


def _linear(inputs: int, outputs: int, *, bias: bool = False) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.normal_(layer.weight, std=0.7 / math.sqrt(inputs))
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def rope(length: int, base: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """The cosines and sines of rotary positions, in halves."""
    steps = torch.arange(0, HEAD_DIM, 2, device=device, dtype=torch.float32) / HEAD_DIM
    angles = torch.arange(length, device=device)[:, None] / base ** steps[None]
    both = torch.cat((angles, angles), dim=-1)
    return both.cos(), both.sin()


def _turned(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    one, other = x.chunk(2, dim=-1)
    return x * turn[0] + torch.cat((-other, one), dim=-1) * turn[1]


class Attention(nn.Module):
    """Grouped-query attention with norms on queries and keys."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        hidden, size = shape.hidden, HEAD_DIM
        self.heads, self.groups = shape.heads, shape.groups
        self.q_proj = _linear(hidden, self.heads * size)
        self.k_proj = _linear(hidden, self.groups * size)
        self.v_proj = _linear(hidden, self.groups * size)
        self.o_proj = _linear(self.heads * size, hidden)
        self.q_norm, self.k_norm = Norm(size), Norm(size)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        """Attend where the mask says so."""
        batch, length, _ = x.shape

        def split(y: Tensor, heads: int) -> Tensor:
            return y.view(batch, length, heads, -1)

        q = self.q_norm(split(self.q_proj(x), self.heads)).transpose(1, 2)
        k = self.k_norm(split(self.k_proj(x), self.groups)).transpose(1, 2)
        q, k = _turned(q, turn), _turned(k, turn)
        v = split(self.v_proj(x), self.groups).transpose(1, 2)
        k, v = (y.repeat_interleave(self.heads // self.groups, dim=1) for y in (k, v))
        y = f.scaled_dot_product_attention(q, k, v, mask)
        out: Tensor = self.o_proj(y.transpose(1, 2).reshape(batch, length, -1))
        return out


class Mlp(nn.Module):
    """The gated feed-forward part."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        hidden, inner = shape.hidden, shape.inner
        self.gate_proj = _linear(hidden, inner)
        self.up_proj = _linear(hidden, inner)
        self.down_proj = _linear(inner, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Gate, then project back."""
        out: Tensor = self.down_proj(
            f.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x)
        )
        return out


class Layer(nn.Module):
    """One decoder layer, with norms before and after each part."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        hidden = shape.hidden
        self.self_attn = Attention(shape)
        self.mlp = Mlp(shape)
        self.input_layernorm = Norm(hidden)
        self.post_attention_layernorm = Norm(hidden, 0.4)
        self.pre_feedforward_layernorm = Norm(hidden)
        self.post_feedforward_layernorm = Norm(hidden, 0.4)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        """Add the attention's, then the feed-forward part's output."""
        x = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x), turn, mask))
        y: Tensor = self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
        return x + y


class Text(nn.Module):
    """The decoder over embeddings."""

    def __init__(self, vocab: int, shape: Shape) -> None:
        super().__init__()
        self.period = shape.period
        self.embed_tokens = nn.Embedding(vocab, shape.hidden)
        nn.init.normal_(self.embed_tokens.weight, std=0.05)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden)

    def forward(self, x: Tensor, near: Tensor, far: Tensor) -> Tensor:
        """Run all layers with the masks of the near and the far-reaching ones."""
        local = rope(x.shape[1], LOCAL_BASE, x.device)
        everywhere = rope(x.shape[1], GLOBAL_BASE, x.device)
        for i, layer in enumerate(self.layers):
            x = layer(x, local, near) if (i + 1) % self.period else layer(x, everywhere, far)
        out: Tensor = self.norm(x)
        return out


class VisionAttention(nn.Module):
    """Plain attention with biases."""

    def __init__(self) -> None:
        super().__init__()
        size = VISION["hidden_size"]
        self.q_proj, self.k_proj = _linear(size, size, bias=True), _linear(size, size, bias=True)
        self.v_proj, self.out_proj = _linear(size, size, bias=True), _linear(size, size, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        """Attend everywhere."""
        batch, length, size = x.shape
        heads = VISION["num_attention_heads"]
        q, k, v = (
            part(x).view(batch, length, heads, -1).transpose(1, 2)
            for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        y = f.scaled_dot_product_attention(q, k, v)
        out: Tensor = self.out_proj(y.transpose(1, 2).reshape(batch, length, size))
        return out


class VisionMlp(nn.Module):
    """The tower's feed-forward part."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = _linear(VISION["hidden_size"], VISION["intermediate_size"], bias=True)
        self.fc2 = _linear(VISION["intermediate_size"], VISION["hidden_size"], bias=True)

    def forward(self, x: Tensor) -> Tensor:
        """Widen and narrow."""
        out: Tensor = self.fc2(f.gelu(self.fc1(x), approximate="tanh"))
        return out


class VisionLayer(nn.Module):
    """One encoder layer."""

    def __init__(self) -> None:
        super().__init__()
        size, eps = VISION["hidden_size"], VISION["layer_norm_eps"]
        self.layer_norm1, self.layer_norm2 = nn.LayerNorm(size, eps), nn.LayerNorm(size, eps)
        self.self_attn = VisionAttention()
        self.mlp = VisionMlp()

    def forward(self, x: Tensor) -> Tensor:
        """Add attention, then feed-forward."""
        x = x + self.self_attn(self.layer_norm1(x))
        out: Tensor = x + self.mlp(self.layer_norm2(x))
        return out


class VisionEmbeddings(nn.Module):
    """Patches and their places."""

    def __init__(self) -> None:
        super().__init__()
        size, patch = VISION["hidden_size"], VISION["patch_size"]
        self.patch_embedding = nn.Conv2d(3, size, patch, stride=patch)
        self.position_embedding = nn.Embedding((VISION["image_size"] // patch) ** 2, size)
        nn.init.normal_(self.position_embedding.weight, std=0.3)

    def forward(self, pixels: Tensor) -> Tensor:
        """One vector for each patch."""
        out: Tensor = self.patch_embedding(pixels).flatten(2).transpose(1, 2)
        return out + self.position_embedding.weight


class Encoder(nn.Module):
    """The tower's layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(VisionLayer() for _ in range(VISION["num_hidden_layers"]))

    def forward(self, x: Tensor) -> Tensor:
        """Run all layers."""
        for layer in self.layers:
            x = layer(x)
        return x


class Vision(nn.Module):
    """The SigLIP tower, without a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = VisionEmbeddings()
        self.encoder = Encoder()
        self.post_layernorm = nn.LayerNorm(VISION["hidden_size"], VISION["layer_norm_eps"])

    def forward(self, pixels: Tensor) -> Tensor:
        """One vector for each patch."""
        out: Tensor = self.post_layernorm(self.encoder(self.embeddings(pixels)))
        return out


class Projector(nn.Module):
    """Average-pools patches and maps them to soft tokens."""

    def __init__(self, outer: int) -> None:
        super().__init__()
        inner = VISION["hidden_size"]
        self.mm_input_projection_weight = nn.Parameter(
            torch.randn(inner, outer) * (0.7 / math.sqrt(inner))
        )
        self.mm_soft_emb_norm = Norm(inner)

    def forward(self, x: Tensor) -> Tensor:
        """Pool, normalize, project."""
        side = VISION["image_size"] // VISION["patch_size"]
        pooled = int(math.sqrt(tokenizer.IMAGE_TOKENS))
        grid = x.transpose(1, 2).reshape(x.shape[0], -1, side, side)
        small = f.avg_pool2d(grid, side // pooled).flatten(2).transpose(1, 2)
        out: Tensor = self.mm_soft_emb_norm(small) @ self.mm_input_projection_weight
        return out


class Demo(nn.Module):
    """The whole model, up to the last hidden states."""

    def __init__(self, vocab: int, shape: Shape) -> None:
        super().__init__()
        self.language_model = Text(vocab, shape)
        if shape.sees:
            self.vision_tower = Vision()
            self.multi_modal_projector = Projector(shape.hidden)
        self.seen = torch.empty(0)

    def forward(self, ids: Tensor, soft: Tensor, pixels: Tensor | None) -> Tensor:
        """The normed hidden states.

        Args:
            ids: Token ids, padded on the right.
            soft: Where the image tokens are.
            pixels: The pictures, in the order of their tokens.
        """
        hidden = self.language_model.embed_tokens.embedding_dim
        x = self.language_model.embed_tokens(ids) * math.sqrt(hidden)
        at = torch.arange(ids.shape[1], device=ids.device)
        far = (at[None, :] <= at[:, None])[None, None]
        close = (at[None, :] > at[:, None] - WINDOW)[None, None]
        if pixels is not None:
            self.seen = self.multi_modal_projector(self.vision_tower(pixels))
            x = x.masked_scatter(soft[..., None], self.seen.reshape(-1, hidden))
            starts = soft & ~f.pad(soft, (1, 0))[:, :-1]
            block = torch.where(soft, starts.cumsum(1), 0)
            same = (block[:, :, None] == block[:, None, :]) & soft[:, :, None]
            far = far | same[:, None]
        out: Tensor = self.language_model(x, far & close, far)
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        """The scores of the next token."""
        return hidden @ self.language_model.embed_tokens.weight.T
