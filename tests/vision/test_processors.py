"""Sizes, pixels and patches equal those of transformers' image processors."""

import math
import warnings
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import transformers
from PIL import Image
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.deepseek_ocr2.image_processing_pil_deepseek_ocr2 import (
    DeepseekOcr2ImageProcessorPil,
)
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import get_optimal_tiled_canvas
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.minicpmv4_6.image_processing_pil_minicpmv4_6 import (
    MiniCPMV4_6ImageProcessorPil,
)
from transformers.models.mllama.image_processing_pil_mllama import MllamaImageProcessorPil
from transformers.models.paddleocr_vl.image_processing_pil_paddleocr_vl import smart_resize
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from tampu.errors import RequestError
from tampu.vision import (
    CLIP,
    HALF,
    UNIT,
    Filter,
    arrange,
    arrange_by_shape,
    arrangements,
    cut_tiles,
    fit_area,
    fit_crop,
    fit_long_side,
    fit_patches,
    fit_pixels,
    fit_slice,
    fit_slices,
    fit_squares,
    fit_whole,
    on_square,
    paste,
    patches,
    places,
    resize,
    slice_grid,
    to_long_side,
    to_tiles,
)

SIZES = [(100, 150), (150, 100), (30, 20), (97, 641), (500, 33), (224, 224), (1, 60), (1100, 900)]
CLOSE = 1 / 255


def picture(height: int, width: int) -> npt.NDArray[Any]:
    y, x = np.mgrid[:height, :width]
    waves = [127 + 127 * np.sin(x / 9), 255 * y / height, 127 + 100 * np.cos((x + y) / 5)]
    return np.stack(waves, -1).astype(np.uint8)


def channels_first(pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return pixels.transpose(2, 0, 1)


@pytest.mark.parametrize("size", SIZES)
def test_gemma3_resizes_every_image_to_a_square(size: tuple[int, int]) -> None:
    image = picture(*size)
    theirs = Gemma3ImageProcessorPil(size={"height": 112, "width": 112})(
        Image.fromarray(image), return_tensors="np"
    )["pixel_values"][0]
    ours = HALF(resize(image, 112, 112, Filter.BILINEAR))
    assert np.abs(channels_first(ours) - theirs).max() < CLOSE


@pytest.mark.parametrize("size", SIZES)
def test_clip_crops_the_center(size: tuple[int, int]) -> None:
    image = picture(*size)
    theirs = CLIPImageProcessorPil(
        size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56}
    )(Image.fromarray(image), return_tensors="np")["pixel_values"][0]
    ours = channels_first(CLIP(fit_crop(image, 56, Filter.BICUBIC)))
    assert np.abs(ours - theirs).max() * min(CLIP.std) < CLOSE


def test_an_elongated_image_is_not_stretched() -> None:
    """In transformers it would become a million pixels long before its middle is taken."""
    assert fit_crop(picture(1, 16_384), 336, Filter.BICUBIC).shape == (336, 336, 3)


@pytest.mark.parametrize("size", SIZES)
def test_pixtral_rounds_up_to_whole_patches(size: tuple[int, int]) -> None:
    image = picture(*size)
    theirs = PixtralImageProcessorPil(size={"longest_edge": 280}, patch_size=14)(
        Image.fromarray(image), return_tensors="np", patch_size={"height": 28, "width": 28}
    )
    height, width = fit_long_side(*size, longest=280, multiple=28)
    assert [height, width] == list(theirs["image_sizes"][0])
    ours = channels_first(CLIP(resize(image, height, width, Filter.BICUBIC)))
    assert np.abs(ours - theirs["pixel_values"][0]).max() * min(CLIP.std) < CLOSE


@pytest.mark.parametrize("size", SIZES)
def test_qwen_keeps_the_number_of_pixels_within_bounds(size: tuple[int, int]) -> None:
    image, bounds = picture(*size), {"shortest_edge": 56 * 56, "longest_edge": 256 * 256}
    theirs = Qwen2VLImageProcessorPil(size=bounds)(Image.fromarray(image), return_tensors="np")
    height, width = fit_pixels(*size, multiple=28, fewest=56 * 56, most=256 * 256)
    assert [1, height // 14, width // 14] == theirs["image_grid_thw"][0].tolist()
    cut = patches(CLIP(resize(image, height, width, Filter.BICUBIC)), 14, 2)
    twice = np.repeat(cut.reshape(-1, 3, 1, 14, 14), 2, 2).reshape(len(cut), -1)
    assert np.abs(twice - theirs["pixel_values"]).max() * min(CLIP.std) < CLOSE


@pytest.mark.parametrize("size", [*SIZES, (1, 5000), (900, 1)])
@pytest.mark.parametrize("tokens", [70, 280])
def test_gemma4_fills_its_tokens(size: tuple[int, int], tokens: int) -> None:
    image = picture(*size)
    processor = Gemma4ImageProcessorPil(patch_size=4, pooling_kernel_size=3, max_soft_tokens=tokens)
    theirs = processor(Image.fromarray(image), return_tensors="np")
    height, width = fit_area(*size, multiple=12, most=tokens * 144)
    count = height * width // 16
    assert count == theirs["num_soft_tokens_per_image"][0] * 9
    where = places(height // 4, width // 4)
    assert np.array_equal(where[:, ::-1], theirs["image_position_ids"][0][:count])
    cut = patches(UNIT(resize(image, height, width, Filter.BICUBIC)), 4)
    by_pixel = cut.reshape(count, 3, 16).swapaxes(1, 2).reshape(count, 48)
    assert np.abs(by_pixel - theirs["pixel_values"][0][:count]).max() < CLOSE


def test_qwen_refuses_elongated_images() -> None:
    with pytest.raises(RequestError, match="too elongated"):
        fit_pixels(1, 201, multiple=28, fewest=56 * 56, most=256 * 256)
    fit_pixels(1, 200, multiple=28, fewest=56 * 56, most=256 * 256)


@pytest.mark.parametrize("size", SIZES)
def test_mllama_arranges_an_image_on_tiles(size: tuple[int, int]) -> None:
    image = picture(*size)
    theirs = MllamaImageProcessorPil(size={"height": 112, "width": 112}, max_image_tiles=4)(
        [[Image.fromarray(image)]], return_tensors="np"
    )
    plan = arrange(*size, side=112, most=4)
    kind = arrangements(4).index((plan.rows, plan.columns)) + 1
    assert kind == theirs["aspect_ratio_ids"][0, 0]
    small = resize(image, plan.height, plan.width, Filter.BILINEAR)
    tiles = cut_tiles(HALF(paste(small, plan, 112)), 112)
    assert len(tiles) == theirs["num_tiles"][0][0]
    for ours, their in zip(tiles, theirs["pixel_values"][0, 0], strict=False):
        assert np.abs(channels_first(ours) - their).max() < CLOSE


@pytest.mark.parametrize("size", [*SIZES, (20, 13), (1, 190)])
def test_paddleocr_enlarges_a_side_below_a_token(size: tuple[int, int]) -> None:
    theirs = smart_resize(*size, factor=28, min_pixels=56 * 56, max_pixels=256 * 256)
    assert fit_whole(*size, multiple=28, fewest=56 * 56, most=256 * 256) == theirs


@pytest.mark.parametrize("size", SIZES)
def test_idefics3_cuts_an_image_into_tiles(size: tuple[int, int]) -> None:
    image = picture(*size)
    theirs = Idefics3ImageProcessorPil(
        size={"longest_edge": 250}, max_image_size={"longest_edge": 64}
    )(Image.fromarray(image), return_tensors="np", return_row_col_info=True)
    small = to_long_side(*size, longest=250)
    height, width = to_tiles(*small, side=64)
    assert [height // 64, width // 64] == [theirs["rows"][0][0], theirs["cols"][0][0]]
    large = resize(resize(image, *small, Filter.LANCZOS), height, width, Filter.LANCZOS)
    tiles = [*cut_tiles(HALF(large), 64), HALF(resize(large, 64, 64, Filter.LANCZOS))]
    for ours, their in zip(tiles, theirs["pixel_values"][0], strict=True):
        assert np.abs(channels_first(ours) - their).max() < CLOSE


@pytest.mark.parametrize("size", [*SIZES, (300, 300), (60, 90), (100, 400)])
def test_internvl_takes_the_tiles_of_the_nearest_shape(size: tuple[int, int]) -> None:
    for fewest, most in ((1, 12), (2, 6)):
        columns, rows = get_optimal_tiled_canvas(size, (56, 56), fewest, most)
        assert arrange_by_shape(*size, side=56, fewest=fewest, most=most) == (rows, columns)


def lfm2_rules() -> Any:
    """Return transformers' rules, which are in a class that wants torchvision for the rest."""
    path = Path(transformers.__file__).parent / "models/lfm2_vl/image_processing_lfm2_vl.py"
    text = path.read_text()
    parts = (
        ("def round_by_factor", "# copied from Siglip2ImageProcessor"),
        ("    @lru_cache(maxsize=256)\n    def _target_ratios", "    def crop_image_to_patches"),
        ("    # Adapted from Qwen-VL", "    def resize_and_split"),
    )
    functions, *methods = (text[text.index(first) : text.index(last)] for first, last in parts)
    names: dict[str, Any] = {"math": math, "lru_cache": lambda **_: lambda function: function}
    exec("\n".join([functions, "class Rules:", *methods]), names)
    return names["Rules"]()


@pytest.mark.parametrize("size", [*SIZES, (300, 300), (60, 90), (13, 12), (10, 1500), (700, 725)])
def test_lfm2_chooses_sizes_and_tiles_by_the_same_rules(size: tuple[int, int]) -> None:
    rules, usual = lfm2_rules(), {"encoder_patch_size": 16, "downsample_factor": 2}
    for fewest, most in ((64, 256), (4, 20)):
        width, height = rules.smart_resize(
            *size, min_image_tokens=fewest, max_image_tokens=most, **usual
        )
        bounds = {"fewest": fewest * 32**2, "most": most * 32**2}
        assert fit_squares(*size, multiple=32, **bounds) == (height, width)
    for most in (4, 10):
        columns, rows, *_ = rules._get_grid_layout(*size, min_tiles=2, max_tiles=most, tile_size=64)
        assert arrange_by_shape(*size, side=64, fewest=2, most=most) == (rows, columns)


@pytest.mark.parametrize("size", [*SIZES, (448, 449), (700, 90), (2000, 2000), (896, 448)])
def test_minicpmv_cuts_an_image_into_slices_by_the_same_rules(size: tuple[int, int]) -> None:
    for most in (9, 4, 1):
        rules = MiniCPMV4_6ImageProcessorPil(max_slice_nums=most)
        found = rules([Image.fromarray(picture(*size))], return_tensors="np")
        grid = slice_grid(*size, side=448, most=most)
        is_cut = grid != (1, 1)
        assert found["grids"][0] == ([*grid] if is_cut else [0, 0])
        sizes = [fit_slice(*size, side=448, multiple=56, enlarges=not is_cut)]
        if is_cut:
            down, across = fit_slices(*size, rows=grid[0], columns=grid[1], side=448, multiple=56)
            sizes += [(down // grid[0], across // grid[1])] * (grid[0] * grid[1])
        assert [(a * 14, b * 14) for a, b in found["target_sizes"].tolist()] == sizes


@pytest.mark.parametrize("size", [*SIZES, (145, 144), (144, 144), (192, 7), (400, 400)])
def test_deepseek_ocr_shows_tiles_and_the_whole_on_gray(size: tuple[int, int]) -> None:
    rules = DeepseekOcr2ImageProcessorPil(size={"height": 192, "width": 192}, tile_size=144)
    pixels = picture(*size)
    found = rules([Image.fromarray(pixels)], return_tensors="np")
    whole = HALF(on_square(pixels, 192, Filter.BICUBIC)).transpose(2, 0, 1)
    np.testing.assert_allclose(found["pixel_values"][0], whole, atol=1e-6)
    assert (found["num_local_patches"][0] > 0) == (max(size) > 144)
    if max(size) > 144:
        rows, columns = arrange_by_shape(*size, side=144, fewest=2, most=6)
        large = HALF(resize(pixels, rows * 144, columns * 144, Filter.BICUBIC))
        tiles = np.stack(cut_tiles(large, 144)).transpose(0, 3, 1, 2)
        np.testing.assert_allclose(found["pixel_values_local"], tiles, atol=1e-6)


def test_deepseek_ocr_takes_no_image_that_is_too_elongated() -> None:
    with pytest.raises(RequestError, match="too elongated"):
        on_square(picture(3, 700), 192, Filter.BICUBIC)


def nemotron_rule() -> Any:
    """Return transformers' rule, which is in a module that wants torchvision for the rest."""
    folder = Path(transformers.__file__).parent / "models/nemotron_h_omni"
    text = (folder / "image_processing_nemotron_h_omni.py").read_text()
    names: dict[str, Any] = {"math": math}
    first, last = "def get_patch_grid_size", "def convert_image_to_patches"
    exec(text[text.index(first) : text.index(last)], names)
    return names["get_patch_grid_size"]


@pytest.mark.parametrize("size", [*SIZES, (15, 15), (16, 16), (13, 2000), (725, 1)])
def test_nemotron_chooses_a_grid_by_the_same_rule(size: tuple[int, int]) -> None:
    if max(size) > 200 * min(size):
        with pytest.raises(RequestError, match="too elongated"):
            fit_patches(*size, side=16, merge=2, fewest=64, most=300)
        return
    rule = nemotron_rule()
    for fewest, most in ((1024, 13_312), (64, 300), (30, 200), (200, 150)):
        expected = rule(*size, 16, 2, fewest, most)
        assert fit_patches(*size, side=16, merge=2, fewest=fewest, most=most) == expected


def llama4_rules() -> SimpleNamespace:
    """Return transformers' rules, which are in a module that wants torchvision for the rest."""
    path = Path(transformers.__file__).parent / "models/llama4/image_processing_llama4.py"
    text = path.read_text()
    rules = text[text.index("def get_factors") : text.index("class Llama4ImageProcessorKwargs")]
    names = {"torch": torch, "math": math, "defaultdict": defaultdict, "SizeDict": object}
    names |= {"lru_cache": lambda **_: lambda function: function}
    exec(rules, names)
    return SimpleNamespace(**names)


@pytest.mark.parametrize("size", [*SIZES, (10, 20), (336, 337), (673, 336), (3000, 400)])
def test_llama4_chooses_its_tiles_by_the_same_rules(size: tuple[int, int]) -> None:
    rules = llama4_rules()
    square = type("Size", (), {"height": 336, "width": 336})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        canvases = torch.tensor(rules.find_supported_resolutions(16, square))
    rows, columns = (int(side) for side in rules.get_best_fit(size, canvases))
    room = (min(max(size[0], 336), rows), min(max(size[1], 336), columns))
    height, width = rules.get_max_res_without_distortion(size, room)
    plan = arrange(*size, side=336, most=16)
    assert (plan.rows * 336, plan.columns * 336) == (rows, columns)
    assert (plan.height, plan.width) == (max(1, height), max(1, width))


def test_patches_are_in_the_order_of_their_positions() -> None:
    pixels = np.arange(8 * 12, dtype=np.float32).reshape(8, 12, 1).repeat(3, 2)
    for block in (1, 2):
        cut, where = patches(pixels, 2, block), places(4, 6, block)
        assert cut.shape == (24, 12)
        for patch, (row, column) in zip(cut, where, strict=True):
            wanted = pixels[row * 2 : row * 2 + 2, column * 2 : column * 2 + 2, 0]
            np.testing.assert_array_equal(patch, np.tile(wanted.reshape(-1), 3))
    assert places(4, 6, 2)[:5].tolist() == [[0, 0], [0, 1], [1, 0], [1, 1], [0, 2]]
