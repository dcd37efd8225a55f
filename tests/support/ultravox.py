"""Ultravox of version 0.5, which transformers lacks, of transformers' parts.

Source: Fixie's ultravox_model.py.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import transformers
from torch.nn import Linear, Module, functional
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.whisper.modeling_whisper import WhisperEncoder


class UltravoxConfig(transformers.PreTrainedConfig):  # type: ignore[misc]
    """The parts' configurations, and the projector's."""

    model_type = "ultravox"
    sub_configs: ClassVar[dict[str, Any]] = {
        "text_config": transformers.LlamaConfig,
        "audio_config": transformers.WhisperConfig,
    }
    text_config: Any = None
    audio_config: Any = None
    hidden_size: int = 4096
    stack_factor: int = 8
    projector_act: str = "swiglu"
    projector_ln_mid: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        if isinstance(self.text_config, dict):
            self.text_config = transformers.LlamaConfig(**self.text_config)
        if isinstance(self.audio_config, dict):
            self.audio_config = transformers.WhisperConfig(**self.audio_config)
        super().__post_init__(**kwargs)


class Projector(Module):
    """From stacked positions to the text model's features."""

    def __init__(self, config: UltravoxConfig) -> None:
        super().__init__()
        inputs = config.audio_config.d_model * config.stack_factor
        self.stack = config.stack_factor
        self.ln_pre = LlamaRMSNorm(inputs, eps=1e-6)
        self.linear_1 = Linear(inputs, config.hidden_size, bias=False)
        self.ln_mid = LlamaRMSNorm(config.hidden_size // 2, eps=1e-6)
        self.linear_2 = Linear(config.hidden_size // 2, config.text_config.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (rows, features) for positions (n, inputs)."""
        x = functional.pad(x, (0, 0, 0, -len(x) % self.stack)).reshape(-1, self.stack * x.shape[1])
        first, gate = self.linear_1(self.ln_pre(x)).chunk(2, dim=-1)
        projected: torch.Tensor = self.linear_2(self.ln_mid(functional.silu(gate) * first))
        return projected


class UltravoxModel(transformers.PreTrainedModel):  # type: ignore[misc]
    """Whisper's encoder, the projector, and a Llama."""

    config_class = UltravoxConfig
    _supports_sdpa = True

    def __init__(self, config: UltravoxConfig) -> None:
        super().__init__(config)
        self.audio_tower = WhisperEncoder(config.audio_config)
        self.multi_modal_projector = Projector(config)
        self.language_model = transformers.LlamaForCausalLM(config.text_config)
        self.post_init()

    def hear(self, frames: torch.Tensor) -> torch.Tensor:
        """Return the embedding of frames (bins, n); Whisper's own `forward` wants all of them."""
        tower = self.audio_tower
        x = functional.gelu(tower.conv1(frames[None]))
        x = functional.gelu(tower.conv2(x)).permute(0, 2, 1)
        x = x + tower.embed_positions.weight[: x.shape[1]]
        for layer in tower.layers:
            heard = layer(x, None)
            x = heard[0] if isinstance(heard, tuple) else heard
        projected: torch.Tensor = self.multi_modal_projector(tower.layer_norm(x)[0])
        return projected

    def forward(
        self,
        input_ids: torch.Tensor,
        windows: list[torch.Tensor] | None = None,
        audio_token: int = -1,
    ) -> CausalLMOutputWithPast:
        """Return the logits; `windows` are those of all sounds, in order."""
        x = self.language_model.get_input_embeddings()(input_ids)
        if windows:
            heard = torch.cat([self.hear(frames) for frames in windows])
            x = x.masked_scatter((input_ids == audio_token)[..., None], heard)
        found: CausalLMOutputWithPast = self.language_model(inputs_embeds=x)
        return found
