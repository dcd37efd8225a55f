"""A model's file with text and vision, taken apart in llama.cpp's way: a text, and a projector."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tampu.convert.divided import plan_part
from tampu.gguf_compat import as_llama_cpp
from tampu.gguf_compat.divide import projector_part, text_part
from tampu.gguf_compat.layout import by_name
from tampu.gguf_compat.tensors import to_f32
from tampu.ml.gguf import read_gguf

SEEING = (
    "gemma3_vision", "llava", "mistral3_vision", "llama4_vision", "qwen3vl", "gemma4_seeing",
    "gemma4_small_seeing", "gemma4_unified_seeing", "qwen35_seeing", "qwen25vl", "smolvlm",
    "glm_ocr", "internvl", "internvl_large", "paddleocr", "lfm2_vl", "nemotron_omni", "minicpmv",
    "deepseek_ocr2",
)  # fmt: skip
"""The tiny checkpoints whose encoders llama.cpp has, too."""


def take_apart(path: Path, text: Path, projector: Path) -> None:
    """Write the two files of llama.cpp for a file of text and vision, in F32."""
    file = as_llama_cpp(read_gguf(path))
    for part, to in ((text_part(file), text), (projector_part(file), projector)):
        exact = (info if info.computation else to_f32(info) for info in part.tensors.values())
        plan_part(replace(part, tensors=by_name(exact))).write(to)
