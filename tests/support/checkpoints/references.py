"""Encoders that transformers does not have, written from their papers and their authors' code.

Their tensors and settings have the names of the published checkpoints.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedConfig, PreTrainedModel


class AnyConfig(PreTrainedConfig):  # type: ignore[misc]
    """A configuration of whatever values it is given."""

    model_type = "reference"


class _Reference(PreTrainedModel):  # type: ignore[misc]
    config_class = AnyConfig
    embeddings: Any
    encoder: Any
    transformer_encoder: Any

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.build(config)
        self.post_init()

    def build(self, config: Any) -> None:
        raise NotImplementedError

    def states(self, x: torch.Tensor) -> torch.Tensor:
        """Return the final states (tokens, features) of tokens (tokens,)."""
        raise NotImplementedError

    def forward(self, input_ids: torch.Tensor) -> Any:
        """Return what transformers' encoders return, of one text."""
        return SimpleNamespace(last_hidden_state=self.states(input_ids[0])[None])


def rotated(x: torch.Tensor, base: float, *, halves: bool) -> torch.Tensor:
    """Return x (tokens, heads, features) rotated: halves of a head together, or neighbours."""
    tokens, _, features = x.shape
    angle = torch.arange(tokens)[:, None] / base ** (torch.arange(0, features, 2) / features)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x.chunk(2, -1) if halves else (x[..., ::2], x[..., 1::2])
    pair = (a * cos - b * sin, b * cos + a * sin)
    return torch.cat(pair, -1) if halves else torch.stack(pair, -1).flatten(-2)


def attended(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | float = 0.0
) -> torch.Tensor:
    """Return (tokens, features) for queries, keys and values (tokens, heads, features)."""
    scores = torch.einsum("ihd,jhd->hij", q, k) / q.shape[-1] ** 0.5 + bias
    return torch.einsum("hij,jhd->ihd", scores.softmax(-1), v).flatten(1)


class _Parts(nn.Module):
    """What holds parts under the names of a checkpoint."""

    def __init__(self, /, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)


class _NomicExperts(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        shape = (config.num_experts * config.n_inner, config.n_embd)
        self.mlp = nn.ParameterDict({"w1": torch.empty(shape), "w2": torch.empty(shape)})
        self.bias = nn.Parameter(torch.empty(config.n_embd))


class NomicBertModel(_Reference):
    """Nomic Embed v2: each second layer has experts (arXiv:2502.07972)."""

    def build(self, config: Any) -> None:
        width, epsilon = config.n_embd, config.layer_norm_epsilon
        layers = []
        for index in range(config.n_layer):
            attention = {"Wqkv": nn.Linear(width, 3 * width), "out_proj": nn.Linear(width, width)}
            if index % config.moe_every_n_layers == 1:
                router = _Parts(layer=nn.Linear(width, config.num_experts, bias=False))
                mlp = _Parts(router=router, experts=_NomicExperts(config))
            else:
                ends = nn.Linear(width, config.n_inner), nn.Linear(config.n_inner, width)
                mlp = _Parts(fc1=ends[0], fc2=ends[1])
            norms = {name: nn.LayerNorm(width, epsilon) for name in ("norm1", "norm2")}
            layers.append(_Parts(attn=_Parts(**attention), mlp=mlp, **norms))
        self.embeddings = _Parts(
            word_embeddings=nn.Embedding(config.vocab_size, width),
            token_type_embeddings=nn.Embedding(config.type_vocab_size, width),
        )
        self.emb_ln = nn.LayerNorm(width, epsilon)
        self.encoder = _Parts(layers=nn.ModuleList(layers))

    def states(self, tokens: torch.Tensor) -> torch.Tensor:
        parts = self.embeddings
        x = self.emb_ln(parts.word_embeddings(tokens) + parts.token_type_embeddings.weight[0])
        for layer in self.encoder.layers:
            qkv = layer.attn.Wqkv(x).view(len(x), 3, self.config.n_head, -1).unbind(1)
            q, k = (rotated(each, self.config.rotary_emb_base, halves=True) for each in qkv[:2])
            x = layer.norm1(x + layer.attn.out_proj(attended(q, k, qkv[2])))
            x = layer.norm2(x + self._mlp(layer.mlp, x))
        return x

    def _mlp(self, mlp: Any, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(mlp, "router"):
            found: torch.Tensor = mlp.fc2(functional.gelu(mlp.fc1(x)))
            return found
        weights, chosen = torch.topk(mlp.router.layer(x).softmax(-1), self.config.moe_top_k)
        shape = (self.config.num_experts, -1, x.shape[-1])
        first, last = (mlp.experts.mlp[name].view(shape) for name in ("w1", "w2"))
        inner = functional.gelu(torch.einsum("ti,tkoi->tko", x, first[chosen]))
        every = torch.einsum("tko,tkoi->tki", inner, last[chosen])
        return (every * weights[..., None]).sum(1) + mlp.experts.bias


class JinaBertModel(_Reference):
    """Jina Embeddings v2 (arXiv:2310.19923), in the form for code if there are norms of queries."""

    def build(self, config: Any) -> None:
        width, inner = config.hidden_size, config.intermediate_size
        self.has_norms = "qk-post-norm" in config.auto_map["AutoModel"]
        self.slopes = [2.0 ** (-8 * (h + 1) / config.num_attention_heads)
                       for h in range(config.num_attention_heads)]  # fmt: skip

        def norm() -> nn.Module:
            return nn.LayerNorm(width, config.layer_norm_eps)

        layers = []
        for _ in range(config.num_hidden_layers):
            names = ("query", "key", "value")
            own: dict[str, nn.Module] = {name: nn.Linear(width, width) for name in names}
            output = _Parts(dense=nn.Linear(width, width), LayerNorm=norm())
            if self.has_norms:
                own |= {"layer_norm_q": norm(), "layer_norm_k": norm()}
                first = nn.Linear(width, 2 * inner, bias=False)
                mlp = _Parts(up_gated_layer=first, down_layer=nn.Linear(inner, width))
                more = {"layer_norm_1": norm(), "layer_norm_2": norm()}
            else:
                first, last = nn.Linear(width, 2 * inner, bias=False), nn.Linear(inner, width)
                mlp, more = _Parts(gated_layers=first, wo=last, layernorm=norm()), {}
            attention = _Parts(self=_Parts(**own), output=output)
            layers.append(_Parts(attention=attention, mlp=mlp, **more))
        self.embeddings = _Parts(
            word_embeddings=nn.Embedding(config.vocab_size, width),
            token_type_embeddings=nn.Embedding(config.type_vocab_size, width),
            LayerNorm=norm(),
        )
        self.encoder = _Parts(layer=nn.ModuleList(layers))

    def states(self, tokens: torch.Tensor) -> torch.Tensor:
        parts, heads = self.embeddings, self.config.num_attention_heads
        x = parts.word_embeddings(tokens) + parts.token_type_embeddings.weight[0]
        x = parts.LayerNorm(x)
        places = torch.arange(len(x))
        distance = (places[:, None] - places).abs()
        bias = -torch.tensor(self.slopes)[:, None, None] * distance
        for layer in self.encoder.layer:
            own, output = layer.attention.self, layer.attention.output
            q, k, v = own.query(x), own.key(x), own.value(x)
            if self.has_norms:
                q, k = own.layer_norm_q(q), own.layer_norm_k(k)
            q, k, v = (each.view(len(x), heads, -1) for each in (q, k, v))
            y = output.LayerNorm(output.dense(attended(q, k, v, bias)) + x)
            if self.has_norms:
                x = layer.layer_norm_1(x + y)
                up, gate = layer.mlp.up_gated_layer(x).chunk(2, -1)
                y = layer.mlp.down_layer(up * functional.gelu(gate))
                x = layer.layer_norm_2(x + y)
            else:
                gate, up = layer.mlp.gated_layers(y).chunk(2, -1)
                x = layer.mlp.layernorm(layer.mlp.wo(functional.gelu(gate) * up) + y)
        return x


class NeoBERT(_Reference):
    """NeoBERT (arXiv:2502.19587)."""

    def build(self, config: Any) -> None:
        width = config.hidden_size
        inner = -(-int(2 * config.intermediate_size / 3) // 8) * 8

        def norm() -> nn.Module:
            return nn.RMSNorm(width, config.norm_eps)

        def linear(inputs: int, outputs: int) -> nn.Module:
            return nn.Linear(inputs, outputs, bias=False)

        self.encoder = nn.Embedding(config.vocab_size, width)
        self.transformer_encoder = nn.ModuleList(
            _Parts(
                qkv=linear(width, 3 * width),
                wo=linear(width, width),
                ffn=_Parts(w12=linear(width, 2 * inner), w3=linear(inner, width)),
                attention_norm=norm(),
                ffn_norm=norm(),
            )
            for _ in range(config.num_hidden_layers)
        )
        self.layer_norm = norm()

    def states(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.encoder(tokens)
        for layer in self.transformer_encoder:
            qkv = layer.qkv(layer.attention_norm(x))
            q, k, v = qkv.view(len(x), self.config.num_attention_heads, -1).chunk(3, -1)
            q, k = (rotated(each, 10_000.0, halves=False) for each in (q, k))
            x = x + layer.wo(attended(q, k, v))
            a, b = layer.ffn.w12(layer.ffn_norm(x)).chunk(2, -1)
            x = x + layer.ffn.w3(functional.silu(a) * b)
        found: torch.Tensor = self.layer_norm(x)
        return found


class NeoBERTForSequenceClassification(_Reference):
    """NeoBERT with a head that reads the first token."""

    def build(self, config: Any) -> None:
        self.model = NeoBERT(config)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, input_ids: torch.Tensor) -> Any:
        first = self.model.states(input_ids[0])[:1]
        return SimpleNamespace(logits=self.classifier(self.dense(first).tanh()))
