"""Pre-norm decoders with RoPE, grouped-query attention and SwiGLU: Llama and those after it.

Mistral, Mixtral, Ministral, Qwen 2 and Qwen 3, dense or mixtures of experts. They differ in weights
that a file has or has not (biases, norms of queries and keys, experts), in which features RoPE
pairs, and in how experts are weighted. Sources: arXiv:2302.13971 (Llama), arXiv:2407.21783 (Llama
3: RoPE factors), arXiv:2310.06825 (Mistral), arXiv:2401.04088 (Mixtral), arXiv:2407.10671 (Qwen 2),
arXiv:2505.09388 (Qwen 3).
"""

from __future__ import annotations

from typing import ClassVar

from tampu import nn
from tampu.models.llava import Llava
from tampu.models.pixtral import Pixtral


class Llama(nn.PreNormDecoder):
    options_type: ClassVar[type[nn.PreNormOptions]] = nn.PreNormOptions
    vision_types: ClassVar[tuple[type[nn.VisionModel], ...]] = (Llava, Pixtral)


class Mistral3(nn.PreNormDecoder):
    options_type: ClassVar[type[nn.PreNormOptions]] = nn.PreNormOptions
    vision_types: ClassVar[tuple[type[nn.VisionModel], ...]] = (Pixtral,)
