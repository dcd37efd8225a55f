"""The tokens that stand for an image are those that transformers' processors write."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.laboratory import Laboratory
from support.seeing import Seer, picture
from support.sights import DEEPSEEK_OCR, MINICPMV, SIGHTS, deepseek_crops, lfm2_parts
from tokenizers import Tokenizer
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil
from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

from tampu.ml import Backend
from tampu.vision import arrange

pytestmark = pytest.mark.parity

SIZES = [(100, 150), (300, 90), (40, 30), (230, 230)]


def _pixtral(size: tuple[int, int]) -> str:
    """As `PixtralProcessor.replace_image_token`."""
    height, width = SIGHTS["mistral3_vision"].process([sized(size)])["image_sizes"][0].tolist()
    row = "[IMG]" * (width // 28)
    return "[IMG_BREAK]".join([row] * (height // 28)) + "[IMG_END]"


def _llama4(size: tuple[int, int]) -> str:
    """As `Llama4Processor._prompt_split_image`."""
    plan, tile = arrange(*size, side=112, most=16), "<|patch|>" * 16
    row = "<|tile_x_separator|>".join([tile] * plan.columns) + "<|tile_y_separator|>"
    rows = row * plan.rows if plan.rows * plan.columns > 1 else ""
    return f"<|image_start|>{rows}<|image|>{tile}<|image_end|>"


def _smolvlm(size: tuple[int, int]) -> str:
    """As `SmolVLMProcessor.replace_image_token`."""
    processor = SmolVLMImageProcessorPil(
        size={"longest_edge": 150}, max_image_size={"longest_edge": 50}
    )
    found = processor([sized(size)], return_row_col_info=True)
    (rows,), (columns,) = found["rows"][0], found["cols"][0]
    marks = "<fake_token_around_image>", "<image>", "<global-img>"
    text: str = get_image_prompt_string(rows, columns, 4, *marks)
    return text


def _lfm2_vl(size: tuple[int, int]) -> str:
    """As `Lfm2VlProcessor._build_image_tokens`."""
    rows, columns, parts = lfm2_parts(sized(size))
    places = [(row, column) for row in range(rows) for column in range(columns)]
    tiles = [f"<|img_row_{row + 1}_col_{column + 1}|>" + "<image>" * 16 for row, column in places]
    text = "".join([*tiles, "<|img_thumbnail|>"]) if len(places) > 1 else ""
    height, width = parts[-1].shape[:2]
    return f"<|image_start|>{text}{'<image>' * (height * width // 256)}<|image_end|>"


def _paddleocr(size: tuple[int, int]) -> str:
    """As `PaddleOCRVLProcessor.replace_image_token`, between the marks of the template."""
    (grid,) = SIGHTS["paddleocr"].process([sized(size)])["image_grid_thw"]
    return "<|IMAGE_START|>" + "<|IMAGE_PLACEHOLDER|>" * (int(grid.prod()) // 4) + "<|IMAGE_END|>"


def _minicpmv(size: tuple[int, int]) -> str:
    """As `MiniCPMV4_6Processor.replace_image_token`, without the number of the image."""
    found = MINICPMV([sized(size)], return_tensors="pt")
    whole, *slices = ("<|image_pad|>" * (int(each.prod()) // 16) for each in found["target_sizes"])
    rows, columns = found["grids"][0]
    marked = [f"<slice>{each}</slice>" for each in slices]
    lines = ["".join(marked[row * columns : (row + 1) * columns]) for row in range(rows)]
    return f"<image>{whole}</image>" + "\n".join(lines)


def _deepseek_ocr(size: tuple[int, int]) -> str:
    """As `DeepseekOcr2Processor.replace_image_token`, and the end of the line as in its prompts."""
    (tiles,) = DEEPSEEK_OCR([sized(size)])["num_local_patches"]
    return "<image>" * (16**2 + 12**2 * tiles + 1) + "\n"


def _deepseek_ocr1(size: tuple[int, int]) -> str:
    """As DeepSeek's own code: each line of the tiles and of the whole has an end."""
    rows, columns = deepseek_crops(size)
    lines = rows * 10 * (columns * 10 + 1) + 16 * (16 + 1)
    return "<image>" * (lines + 1) + "\n"


def _nemotron(size: tuple[int, int]) -> str:
    """As `NemotronH_Omni_Reasoning_V3Processor.replace_image_token`."""
    (grid,) = SIGHTS["nemotron_omni"].process([sized(size)])["image_grid_hw"]
    return "<img>" + "<image>" * (int(grid.prod()) // 4) + "</img>"


def _glm_ocr(size: tuple[int, int]) -> str:
    """As `Glm46VProcessor.replace_image_token`, between the marks of the template."""
    (grid,) = SIGHTS["glm_ocr"].process([sized(size)])["image_grid_thw"]
    return "<|begin_of_image|>" + "<|image|>" * (int(grid.prod()) // 4) + "<|end_of_image|>"


def _internvl(size: tuple[int, int]) -> str:
    """As `InternVLProcessor.replace_image_token`."""
    tiles = len(SIGHTS["internvl"].process([sized(size)])["pixel_values"])
    return "<img>" + "<IMG_CONTEXT>" * (4 * tiles) + "</img>"


def _qwen(name: str, size: tuple[int, int]) -> str:
    """As `Qwen2_5_VLProcessor` and `Qwen3VLProcessor`, between the marks of their templates."""
    (grid,) = SIGHTS[name].process([sized(size)])["image_grid_thw"]
    return "<|vision_start|>" + "<|image_pad|>" * (int(grid.prod()) // 4) + "<|vision_end|>"


def _gemma4(name: str, size: tuple[int, int]) -> str:
    """As `Gemma4Processor.replace_image_token`, with the token that we lay: transformers' pad."""
    places = SIGHTS[name].process([sized(size)])["image_position_ids"][0]
    cells = 1 if name == "gemma4_unified_seeing" else 9
    return "<|image>" + "<pad>" * (int((places >= 0).all(-1).sum()) // cells) + "<image|>"


def _always(text: str, _: tuple[int, int]) -> str:
    return text


WRITTEN: dict[str, Callable[[tuple[int, int]], str]] = {
    "gemma3_vision": partial(
        _always, "\n\n<start_of_image>" + "<image_soft_token>" * 16 + "<end_of_image>\n\n"
    ),
    "deepseek_ocr": _deepseek_ocr1,
    "deepseek_ocr2": _deepseek_ocr,
    "lfm2_vl": _lfm2_vl,
    "minicpmv": _minicpmv,
    "nemotron_omni": _nemotron,
    "llava": partial(_always, "<image>" * 64),
    "paddleocr": _paddleocr,
    "glm_ocr": _glm_ocr,
    "internvl": _internvl,
    "internvl_large": _internvl,
    "smolvlm": _smolvlm,
    "mistral3_vision": _pixtral,
    "llama4_vision": _llama4,
    "mllama": partial(_always, "<|image|>"),
    "qwen25vl": partial(_qwen, "qwen25vl"),
    "qwen3vl": partial(_qwen, "qwen3vl"),
    "qwen3vlmoe": partial(_qwen, "qwen3vlmoe"),
    "gemma4_seeing": partial(_gemma4, "gemma4_seeing"),
    "gemma4_small_seeing": partial(_gemma4, "gemma4_small_seeing"),
    "gemma4_unified_seeing": partial(_gemma4, "gemma4_unified_seeing"),
    "qwen35_seeing": partial(_qwen, "qwen35_seeing"),
    "qwen35moe_seeing": partial(_qwen, "qwen35moe_seeing"),
}


def sized(size: tuple[int, int]) -> Image.Image:
    return Image.fromarray(picture(*size))


@pytest.mark.seed("S60", "S61", "S64")
@pytest.mark.parametrize("name", WRITTEN)
def test_an_images_tokens_equal_those_of_transformers(
    laboratory: Laboratory, backend: Backend, name: str
) -> None:
    tokenizer: Any = Tokenizer.from_file(str(laboratory.checkpoint(name) / "tokenizer.json"))
    seer = Seer(backend, laboratory.file(name))
    for size in SIZES:
        prepared = seer.vision.prepare(picture(*size))
        lies = prepared.placeholders
        expected = tokenizer.encode(WRITTEN[name](size), add_special_tokens=False).ids
        assert lies.tokens.tolist() == expected, size
        if lies.is_cross:  # the image is beside the text
            assert not lies.embedded.any()
            continue
        sight = SIGHTS[name]
        image = sight.image if sight.laid is None else sight.laid
        assert np.flatnonzero(lies.embedded).tolist() == [
            at for at, token in enumerate(expected) if token == image
        ]
        assert int(lies.embedded.sum()) == prepared.rows
        # What must share a batch are inputs of the image alone, never a mark that others have too.
        for first, length in lies.groups:
            assert lies.embedded[first : first + length].all()
    seer.close()


def test_all_vision_models_are_compared() -> None:
    assert WRITTEN.keys() == SIGHTS.keys()
