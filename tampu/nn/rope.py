"""The scaling and the sections of rotary position embedding, as files describe them."""

from __future__ import annotations

import math
from typing import TypeAlias

from tampu.errors import ModelFileError, UnsupportedModelError
from tampu.ml import Tensor
from tampu.ml.metadata import Metadata
from tampu.ml.rotary import RopeScaling
from tampu.nn.module import Module, gguf

RopeSections: TypeAlias = tuple[int, int, int, int]


def read_rope_scaling(metadata: Metadata) -> RopeScaling:
    """Return the scaling that a file asks for under `rope.scaling`.

    Raises:
        UnsupportedModelError: for a kind of scaling that is not known.
        ModelFileError: for a factor that is not a positive number.
    """
    key = "rope.scaling.factor" if metadata.has("rope.scaling.factor") else "rope.scale_linear"
    factor = metadata.number(key, 1.0) or 1.0  # some converters write 0 for none
    if not 0 < factor < math.inf:
        raise ModelFileError(
            f"key '{metadata.full_key(key)}'", f"{factor} is not a positive number"
        )
    kind = metadata.string("rope.scaling.type", "linear" if factor != 1.0 else "none")
    if kind == "yarn":
        return _yarn(metadata, factor)
    if kind not in ("none", "linear", "longrope"):
        raise UnsupportedModelError(
            f"RoPE scaling of type '{kind}' is not known; known: none, linear, longrope, yarn"
        )
    return RopeScaling(
        frequency_scale=1.0 / factor if kind == "linear" else 1.0,
        original_context=metadata.integer(
            "rope.scaling.original_context_length", metadata.integer("context_length", 131_072)
        ),
        magnitude=metadata.number("rope.scaling.attn_factor", 1.0),
    )


class RopeFactors(Module):
    """Tensors that divide the frequencies of RoPE, F32, (dimensions / 2,).

    Either one serves all contexts (Llama 3.1), or one serves those of the first training and
    another one longer contexts (LongRoPE, arXiv:2402.13753). The keys of a sequence stay in the
    cache as it grows, so the length that the engine allows decides, not that of the text.
    """

    fixed: Tensor | None = gguf("rope_freqs.weight")
    short: Tensor | None = gguf("rope_factors_short.weight")
    long: Tensor | None = gguf("rope_factors_long.weight")

    def of(self, context: int, scaling: RopeScaling) -> Tensor | None:
        """Return the factors for sequences of up to `context` tokens; None: there are none."""
        return self.fixed or (self.long if context > scaling.original_context else self.short)


def read_rope_sections(metadata: Metadata) -> RopeSections:
    """Return how many pairs of features each number of a position rotates.

    Raises:
        ModelFileError: if the file does not say so, or not with three or four numbers.
    """
    keys = (
        "rope.dimension_sections",
        "rope.mrope_section",
        "mrope_sections",
    )  # the others: Ollama's
    key = next((key for key in keys if metadata.has(key)), keys[0])
    sections = [int(each) for each in metadata.integers(key)]
    if not 3 <= len(sections) <= 4 or min(sections) < 0:
        raise ModelFileError(
            f"key '{metadata.full_key(key)}'",
            f"{sections} are not three or four numbers of 0 or more",
        )
    first, second, third, fourth = (*sections, 0)[:4]
    return first, second, third, fourth


def _yarn(metadata: Metadata, factor: float) -> RopeScaling:
    """Return YaRN's settings; ggml multiplies by 0.1 ln(factor) + 1 itself, as YaRN wants.

    Where a model wants less of that, our files and Ollama's have the quotient (`attn_factor`),
    llama.cpp's what to divide by (`yarn_log_multiplier`, the `mscale_all_dim` of config.json).
    """
    magnitude = metadata.number("rope.scaling.attn_factor", 1.0)
    damping = metadata.number("rope.scaling.yarn_log_multiplier", 0.0)
    if factor > 1 and damping > 0:
        magnitude /= 0.1 * damping * math.log(factor) + 1
    return RopeScaling(
        frequency_scale=1.0 / factor,
        original_context=metadata.integer(
            "rope.scaling.original_context_length", metadata.integer("context_length")
        ),
        extrapolation=metadata.number("rope.scaling.yarn_ext_factor", 1.0),
        magnitude=magnitude if math.isfinite(magnitude) else 1.0,
        beta_fast=metadata.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=metadata.number("rope.scaling.yarn_beta_slow", 1.0),
    )
