"""The drawing of weights with which every part of a model matters.

With transformers' own initialisation attention is almost uniform, norms are one and biases zero,
and most mistakes stay invisible. The numbers are ones that F16 and BF16 hold exactly, so that
storing them in either changes nothing.
"""

from __future__ import annotations

import math
import zlib

import torch
from transformers import PreTrainedModel

_EMBEDDINGS = ("embed_tokens", "embed_in", "word_embeddings.", "wte")
_OUTPUTS = ("lm_head", "embed_out")
_LAST_NORMS = ("model.norm", "ln_f", "norm_f", "final_layernorm", "final_layer_norm")


def draw_weights(model: PreTrainedModel, seed: int) -> None:
    """Draw all weights; each tensor has its own generator, so that one more changes no other."""
    owners = dict(model.named_modules())
    gemma = "gemma" in model.config.model_type
    tied = bool(getattr(model.config, "tie_word_embeddings", False))
    for name, parameter in model.named_parameters():
        generator = torch.Generator().manual_seed((zlib.crc32(name.encode()) ^ seed) & 0x7FFFFFFF)
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
        kind = type(owners[name.rpartition(".")[0]]).__name__
        values = _drawn(name, kind, parameter, noise, tied=tied, gemma=gemma)
        with torch.no_grad():
            parameter.copy_(values.to(torch.bfloat16).to(torch.float16).float())
    for name, buffer in model.named_buffers():
        if name.endswith("layer_scalar"):  # as different as layers can be told apart by it
            index = int(name.split(".")[-2])
            buffer.fill_(0.75 + 0.125 * (index % 4))
        elif name.endswith(("input_min", "input_max", "output_min", "output_max")):
            buffer.fill_((-1.0 if name.endswith("min") else 1.25) * (1 + name.count("output")))
        elif name.endswith(("std_bias", "std_scale", "correction_bias", "expert_bias")):
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            noise = torch.randn(buffer.shape, generator=generator)
            noise = 0.15 * noise if name.endswith(("correction_bias", "expert_bias")) else noise
            buffer.copy_((noise if name.endswith("bias") else 1 + 0.2 * noise).bfloat16().float())
    for module in owners.values():
        if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
            with torch.no_grad():
                module.weight[module.padding_idx].zero_()


def _drawn(
    name: str, kind: str, old: torch.Tensor, noise: torch.Tensor, *, tied: bool, gemma: bool
) -> torch.Tensor:
    """Return the values of one tensor from noise of mean 0 and deviation 1."""
    if "norm" in kind.lower():
        return _drawn_for_norm(name, kind, old, noise, spread=tied, gemma=gemma)
    if name.endswith(("bias", "A_log")):  # of a state that lasts for many tokens
        return noise - 2.0 if name.endswith("A_log") else 0.15 * noise
    if name.endswith(("gate", "gate_attn", "gate_ffn")) and old.numel() == 1:
        return 0.7 + 0.1 * noise
    if "sinks" in name or "experts" in name or "router" in name or "mlp.gate." in name:
        return _drawn_for_mixture(name, old, noise)
    if any(part in name for part in _EMBEDDINGS):
        if not tied:
            return noise
        # Large ones would make every token predict itself; Gemma multiplies them again.
        return noise * (0.5 / math.sqrt(old.shape[1]) if gemma else 0.1)
    if name.endswith(("lambda_1", "lambda_2")):
        return 0.7 + 0.2 * noise
    learnt = (
        "cls_token",
        "position_embedding",
        "class_embedding",
        "positional",
        "pos_embedding",
        "wpe",
        "embed_positions",
        "sam_encoder.pos_embed",
    )
    if any(part in name for part in learnt):
        return 0.4 * noise
    if any(part in name for part in _OUTPUTS):
        return noise * (3.0 / math.sqrt(old.shape[1]))
    inputs = old.shape[0] if "projection_weight" in name else math.prod(old.shape[1:])
    sharp = 1.6 if "q_proj" in name or "k_proj" in name else 1.0
    return noise * (sharp / math.sqrt(inputs))


def _drawn_for_norm(
    name: str, kind: str, old: torch.Tensor, noise: torch.Tensor, *, spread: bool, gemma: bool
) -> torch.Tensor:
    neutral = old.detach().float()  # 1, or 0 where 1 is added in the model
    is_last = name.removesuffix(".weight").endswith(_LAST_NORMS)
    if spread and is_last and "vision" not in name:
        neutral = neutral + (5.0 if gemma else 1.5)  # a tied embedding is small: spread logits
    # Gemma 4 does not scale its scores: the norm of the queries does.
    scale = 0.25 if kind.startswith("Gemma4") and "q_norm" in name else 1.0
    return scale * (neutral + 0.2 * noise)


def _drawn_for_mixture(name: str, old: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Return the values of sinks, routers and experts, all of them in one tensor or each in its."""
    if name.endswith("scale"):
        return 1.0 + 0.2 * noise
    if "sinks" in name:
        return noise
    if "experts" in name and old.ndim >= 2 and not name.endswith("bias"):
        return noise / math.sqrt(min(old.shape[-2:]))
    if "experts" in name:
        return 0.15 * noise
    return noise * (2.0 / math.sqrt(old.shape[-1]))
