"""How transformers' models take pictures: one entry for each family that sees."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.deepseek_ocr2.image_processing_pil_deepseek_ocr2 import (
    DeepseekOcr2ImageProcessorPil,
)
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.glm46v.image_processing_pil_glm46v import Glm46VImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.minicpmv4_6.image_processing_pil_minicpmv4_6 import (
    MiniCPMV4_6ImageProcessorPil,
)
from transformers.models.mllama.image_processing_pil_mllama import MllamaImageProcessorPil
from transformers.models.mllama.processing_mllama import (
    convert_sparse_cross_attention_mask_to_dense,
    get_cross_attention_token_mask,
)
from transformers.models.paddleocr_vl.image_processing_pil_paddleocr_vl import (
    PaddleOCRVLImageProcessorPil,
)
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from tampu.vision import (
    CLIP,
    IMAGENET,
    Filter,
    arrange,
    arrange_by_shape,
    fit_patches,
    fit_squares,
    resize_floats,
    tile_grid,
)

DEEPSEEK_OCR = DeepseekOcr2ImageProcessorPil(
    size={"height": 192, "width": 192}, tile_size=144, max_patches=4
)
MINICPMV = MiniCPMV4_6ImageProcessorPil(scale_resolution=84, max_slice_nums=4, patch_size=7)

Floats = npt.NDArray[np.float32]
Inputs = dict[str, Any]


@dataclass(frozen=True)
class Sight:
    """One family.

    Attributes:
        process: pictures -> the model's keyword arguments.
        features: (model, arguments of one picture) -> its embedding.
        image: the token in whose place an embedding's row stands.
        laid: what tampu lays there, if that is another token.
        masks: whether to take the masks of `generate`, from which those of `forward` differ.
        marks: the argument that says which tokens are images', for models that have one.
        beside: the argument that says which inputs see which tiles, for models that have one.
        small: arguments of smaller pictures than its processor makes, which take less time.
    """

    process: Callable[[Sequence[Image.Image]], Inputs]
    features: Callable[[Any, Inputs], Any]
    image: int
    marks: str | None = None
    beside: str | None = None
    laid: int | None = None
    masks: bool = False
    small: Sequence[Inputs] = ()

    def embed(self, model: Any, image: Image.Image) -> Floats:
        """Return the embedding of a picture: (rows, features)."""
        return self.embed_processed(model, self.process([image]))

    def embed_processed(self, model: Any, inputs: Inputs) -> Floats:
        """Return the embedding of the picture that the model's arguments are of."""
        found = self.features(model, inputs)
        while not torch.is_tensor(found):
            found = found.pooler_output if hasattr(found, "pooler_output") else found[0]
        return found.reshape(-1, found.shape[-1]).float().numpy()

    def read(self, model: Any, tokens: Sequence[int], images: Sequence[Image.Image]) -> Floats:
        """Return the logits of every input."""
        inputs = self.process(images) if images else {}
        ids = torch.tensor([[self.image if token == self.laid else token for token in tokens]])
        if self.marks:
            inputs[self.marks] = (ids == self.image).long()
        if self.masks:
            inputs["attention_mask"] = model.create_masks_for_generate(
                model.config,
                model.get_input_embeddings()(ids),
                None,
                None,
                torch.arange(len(tokens))[None],
                mm_token_type_ids=inputs[self.marks or ""],
            )
        if self.beside and images:
            tiles = inputs["aspect_ratio_mask"].sum(-1)
            shown = convert_sparse_cross_attention_mask_to_dense(
                [get_cross_attention_token_mask(list(tokens), self.image)],
                tiles.tolist(),
                inputs["aspect_ratio_mask"].shape[-1],
                len(tokens),
            )
            inputs[self.beside] = torch.from_numpy(shown)
        return model(input_ids=ids, **inputs).logits[0].float().numpy()


def _gemma3(images: Sequence[Image.Image]) -> Inputs:
    processor = Gemma3ImageProcessorPil(size={"height": 112, "width": 112})
    return {"pixel_values": processor(list(images), return_tensors="pt")["pixel_values"]}


def _pixels(model: Any, inputs: Inputs) -> Any:
    return model.model.get_image_features(inputs["pixel_values"])


def _llava(images: Sequence[Image.Image]) -> Inputs:
    processor = CLIPImageProcessorPil(
        size={"shortest_edge": 112}, crop_size={"height": 112, "width": 112}
    )
    return {"pixel_values": processor(list(images), return_tensors="pt")["pixel_values"]}


def _pixtral(images: Sequence[Image.Image]) -> Inputs:
    processor = PixtralImageProcessorPil(size={"longest_edge": 140}, patch_size=14)
    whole = {"height": 28, "width": 28}
    found = processor(list(images), return_tensors="pt", patch_size=whole)
    return {"pixel_values": found["pixel_values"], "image_sizes": found["image_sizes"]}


def _sized(model: Any, inputs: Inputs) -> Any:
    return model.model.get_image_features(inputs["pixel_values"], inputs["image_sizes"])


def _smolvlm(images: Sequence[Image.Image]) -> Inputs:
    processor = SmolVLMImageProcessorPil(
        size={"longest_edge": 150}, max_image_size={"longest_edge": 50}
    )
    found = [processor([image], return_tensors="pt")["pixel_values"] for image in images]
    return {"pixel_values": torch.cat(found, 1)}  # as many tiles as each picture has


def lfm2_parts(image: Image.Image) -> tuple[int, int, list[Floats]]:
    """Return rows and columns of tiles, and the pixels of the tiles and of the whole.

    As transformers' processor, which wants torchvision; its rules are tested elsewhere.
    """
    size, tile, most = (image.height, image.width), 64, 20 * 16**2
    whole = fit_squares(*size, multiple=16, fewest=4 * 16**2, most=most)
    rows, columns = 1, 1
    if math.prod(max(8, round(side / 16) * 16) for side in size) > 2 * most:
        rows, columns = arrange_by_shape(*size, side=tile, fewest=2, most=4)
    large = image.resize((columns * tile, rows * tile), Image.Resampling.BILINEAR)
    corners = [(x * tile, y * tile) for y in range(rows) for x in range(columns)]
    parts = [large.crop((x, y, x + tile, y + tile)) for x, y in corners]
    small = image.resize((whole[1], whole[0]), Image.Resampling.BILINEAR)
    found = [*parts, small] if len(parts) > 1 else [small]
    return rows, columns, [np.asarray(each, np.float32) / 127.5 - 1 for each in found]


def _lfm2(images: Sequence[Image.Image]) -> Inputs:
    """Each part is padded to 80 patches, whose colors are fastest."""
    values, masks, shapes = [], [], []
    for part in (part for image in images for part in lfm2_parts(image)[2]):
        rows, columns = (length // 8 for length in part.shape[:2])
        cut = part.reshape(rows, 8, columns, 8, 3).transpose(0, 2, 1, 3, 4)
        rest = 80 - rows * columns
        values.append(np.pad(cut.reshape(rows * columns, -1), [(0, rest), (0, 0)]))
        masks.append([1] * (rows * columns) + [0] * rest)
        shapes.append([rows, columns])
    return {
        "pixel_values": torch.from_numpy(np.stack(values)),
        "pixel_attention_mask": torch.tensor(masks),
        "spatial_shapes": torch.tensor(shapes),
    }


def _nemotron(images: Sequence[Image.Image]) -> Inputs:
    """As transformers' processor, which wants torchvision; its rules are tested elsewhere."""
    values, grids = [], []
    for image in images:
        size = (image.height, image.width)
        rows, columns = fit_patches(*size, side=8, merge=2, fewest=30, most=200)
        large = CLIP(resize_floats(np.asarray(image), rows * 8, columns * 8, Filter.BICUBIC))
        cut = large.reshape(rows, 8, columns, 8, 3).transpose(0, 2, 4, 1, 3)
        values.append(cut.reshape(rows * columns, -1))
        grids.append([rows, columns])
    pixels = torch.from_numpy(np.concatenate(values))
    return {"pixel_values": pixels, "image_grid_hw": torch.tensor(grids)}


def _minicpmv(images: Sequence[Image.Image]) -> Inputs:
    found = MINICPMV(list(images), return_tensors="pt")
    return {name: found[name] for name in ("pixel_values", "target_sizes")}


def _deepseek_ocr(images: Sequence[Image.Image]) -> Inputs:
    return dict(DEEPSEEK_OCR(list(images), return_tensors="pt"))


def deepseek_crops(size: tuple[int, int]) -> tuple[int, int]:
    """Return the rows and columns of a picture's tiles for the first DeepSeek-OCR; (0, 0): none."""
    return tile_grid(*size, side=120, fewest=2, most=9) or (0, 0)


def _deepseek_ocr1(images: Sequence[Image.Image]) -> Inputs:
    """As DeepSeek's own code: tiles as they are resized, and the whole padded by Pillow."""
    tiles, wholes, crops = [], [], []
    for image in images:
        rows, columns = deepseek_crops((image.height, image.width))
        if rows:
            large = image.resize((120 * columns, 120 * rows))
            corners = [(120 * x, 120 * y) for y in range(rows) for x in range(columns)]
            tiles += [large.crop((x, y, x + 120, y + 120)) for x, y in corners]
        wholes.append(ImageOps.pad(image, (192, 192), color=(127, 127, 127)))
        crops.append((rows, columns))
    inputs: Inputs = {"pixel_values": _halved(wholes), "num_local_patches": crops}
    return inputs | ({"pixel_values_local": _halved(tiles)} if tiles else {})


def _noise(whole: int, tile: int, tiles: Any) -> Inputs:
    """Return a view of a whole and two tiles, with so many pixels in a row."""
    generator = torch.Generator().manual_seed(1)
    wholes = torch.randn((1, 3, whole, whole), generator=generator)
    cut = torch.randn((2, 3, tile, tile), generator=generator)
    return {"pixel_values": wholes, "pixel_values_local": cut, "num_local_patches": [tiles]}


def _halved(images: Sequence[Image.Image]) -> torch.Tensor:
    values = [np.asarray(image, np.float32).transpose(2, 0, 1) / 127.5 - 1 for image in images]
    return torch.from_numpy(np.stack(values))


def _of_slices(model: Any, inputs: Inputs) -> Any:
    return torch.cat(model.model.get_image_features(**inputs).pooler_output)


def _of_grids(model: Any, inputs: Inputs) -> Any:
    return model.get_image_features(**inputs)


def _parts(model: Any, inputs: Inputs) -> Any:
    return torch.cat(model.model.get_image_features(**inputs).pooler_output)


def _internvl(images: Sequence[Image.Image]) -> Inputs:
    processor = GotOcr2ImageProcessorPil(
        size={"height": 56, "width": 56},
        max_patches=6,
        crop_to_patches=True,
        image_mean=list(IMAGENET.mean),
        image_std=list(IMAGENET.std),
    )
    return {"pixel_values": processor(list(images), return_tensors="pt")["pixel_values"]}


def _llama4(images: Sequence[Image.Image]) -> Inputs:
    """As transformers' processor, which wants torchvision; its rules are tested elsewhere."""
    tiles = []
    for image in images:
        pixels = np.asarray(image)
        plan = arrange(*pixels.shape[:2], side=112, most=16)
        small = image.resize((plan.width, plan.height), Image.Resampling.BILINEAR)
        canvas = Image.new("RGB", (plan.columns * 112, plan.rows * 112))
        canvas.paste(small, (0, 0))
        corners = [(x * 112, y * 112) for y in range(plan.rows) for x in range(plan.columns)]
        cut = [canvas.crop((x, y, x + 112, y + 112)) for x, y in corners]
        if len(cut) > 1:
            cut.append(image.resize((112, 112), Image.Resampling.BILINEAR))
        tiles += [np.asarray(tile, np.float32).transpose(2, 0, 1) / 127.5 - 1 for tile in cut]
    return {"pixel_values": torch.from_numpy(np.stack(tiles))}


def _projected(model: Any, inputs: Inputs) -> Any:
    seen = model.vision_model(inputs["pixel_values"]).last_hidden_state
    return model.multi_modal_projector(seen.reshape(-1, seen.shape[-1]))


def _qwen(images: Sequence[Image.Image]) -> Inputs:
    bounds = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280}
    found = Qwen2VLImageProcessorPil(size=bounds)(list(images), return_tensors="pt")
    return {name: found[name] for name in ("pixel_values", "image_grid_thw")}


def _glm_ocr(images: Sequence[Image.Image]) -> Inputs:
    bounds = {"shortest_edge": 2 * 56 * 56, "longest_edge": 2 * 28 * 28 * 1280}
    found = Glm46VImageProcessorPil(size=bounds)(list(images), return_tensors="pt")
    return {name: found[name] for name in ("pixel_values", "image_grid_thw")}


def _paddleocr(images: Sequence[Image.Image]) -> Inputs:
    bounds = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280}
    half = [0.5, 0.5, 0.5]
    processor = PaddleOCRVLImageProcessorPil(size=bounds, image_mean=half, image_std=half)
    found = processor(list(images), return_tensors="pt")
    return {name: found[name] for name in ("pixel_values", "image_grid_thw")}


def _qwen3(images: Sequence[Image.Image]) -> Inputs:
    bounds = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280}
    half = [0.5, 0.5, 0.5]
    processor = Qwen2VLImageProcessorPil(
        size=bounds, patch_size=16, image_mean=half, image_std=half
    )
    found = processor(list(images), return_tensors="pt")
    return {name: found[name] for name in ("pixel_values", "image_grid_thw")}


def _stacked(model: Any, inputs: Inputs) -> Any:
    """Return the rows as they are in the runner: what is added to layers after the embedding."""
    found = _gridded(model, inputs)
    parts = [*found.pooler_output, *(each[0] for each in found.deepstack_features)]
    return torch.cat(parts, 1)


def _gridded(model: Any, inputs: Inputs) -> Any:
    return model.model.get_image_features(inputs["pixel_values"], inputs["image_grid_thw"])


def _gemma4(images: Sequence[Image.Image]) -> Inputs:
    processor = Gemma4ImageProcessorPil(patch_size=4, pooling_kernel_size=3, max_soft_tokens=70)
    found = processor(list(images), return_tensors="pt")
    return {name: found[name] for name in ("pixel_values", "image_position_ids")}


def _gemma4_unified(images: Sequence[Image.Image]) -> Inputs:
    """As transformers' processor, which wants torchvision: nine patches are one."""
    found = _gemma4(images)
    pixels, places = [], []
    for cut, at in zip(found["pixel_values"], found["image_position_ids"], strict=True):
        columns, rows = (int(number) + 1 for number in at.max(0).values)
        grid = cut[: rows * columns].reshape(rows // 3, 3, columns // 3, 3, 4, 4, 3)
        merged = grid.permute(0, 2, 1, 4, 3, 5, 6).reshape(-1, 12 * 12 * 3)
        where = torch.cartesian_prod(torch.arange(rows // 3), torch.arange(columns // 3)).flip(1)
        missing = 70 - len(merged)
        pixels.append(torch.nn.functional.pad(merged, (0, 0, 0, missing)))
        places.append(torch.nn.functional.pad(where, (0, 0, 0, missing), value=-1))
    return {"pixel_values": torch.stack(pixels), "image_position_ids": torch.stack(places)}


def _placed(model: Any, inputs: Inputs) -> Any:
    return model.model.get_image_features(inputs["pixel_values"], inputs["image_position_ids"])


def _mllama(images: Sequence[Image.Image]) -> Inputs:
    processor = MllamaImageProcessorPil(
        size={"height": 112, "width": 112},
        max_image_tiles=4,
        image_mean=list(CLIP.mean),
        image_std=list(CLIP.std),
    )
    found = processor([list(images)], return_tensors="pt")
    names = ("pixel_values", "aspect_ratio_ids", "aspect_ratio_mask")
    return {name: torch.as_tensor(np.asarray(found[name])) for name in names}


def as_published(model: Any) -> Any:
    """Make transformers' Llama 3.2 Vision compute what Meta's own implementation computes.

    Source: models/llama3/multimodal/model.py in meta-llama/llama-models. There the tower keeps what
    the layers with the numbers of the list take (`ImageTransformer`); transformers kept that too,
    but since its refactoring it keeps what they give: what the layer before gives is the same. And
    there the attention of a token that no image is shown to is zero, not only its feed-forward part
    (`CrossAttention`, `full_text_row_masked_out_mask`).
    """
    tower = model.model.vision_model
    tower.intermediate_layers_indices = [
        index - 1 for index in tower.config.intermediate_layers_indices
    ]
    for layer in model.model.language_model.layers:
        if hasattr(layer, "cross_attn"):
            _hide(layer)
    return model


def _hide(layer: Any) -> None:
    """Have a layer's attention give nothing to tokens that no image is shown to."""
    shown: list[torch.Tensor] = []

    def note(_: Any, __: Any, keywords: dict[str, Any]) -> None:
        mask = keywords["full_text_row_masked_out_mask"]
        shown[:] = [] if mask is None else [mask[:, 0]]

    def hide(_: Any, __: Any, result: tuple[torch.Tensor, Any]) -> tuple[torch.Tensor, Any]:
        return (result[0] * shown[0], result[1]) if shown else result

    layer.register_forward_pre_hook(note, with_kwargs=True)
    layer.cross_attn.register_forward_hook(hide)


def _read_by_text(model: Any, inputs: Inputs) -> Any:
    """Return the keys and values of the text's layers that read the picture."""
    seen = model.model.vision_model(**inputs).last_hidden_state
    states = model.model.multi_modal_projector(seen)[:, :, : int(inputs["aspect_ratio_mask"].sum())]
    states = states.reshape(-1, states.shape[-1])
    parts = []
    for layer in model.model.language_model.layers:
        if hasattr(layer, "cross_attn"):
            cross = layer.cross_attn
            keys = cross.k_proj(states).reshape(len(states), -1, cross.head_dim)
            parts += [cross.k_norm(keys).reshape(len(states), -1), cross.v_proj(states)]
    return torch.cat(parts, 1)


SIGHTS: dict[str, Sight] = {
    "mllama": Sight(_mllama, _read_by_text, image=10, beside="cross_attention_mask"),
    "qwen25vl": Sight(_qwen, _gridded, image=7, marks="mm_token_type_ids"),
    "qwen3vl": Sight(_qwen3, _stacked, image=7, marks="mm_token_type_ids"),
    "qwen3vlmoe": Sight(_qwen3, _stacked, image=7, marks="mm_token_type_ids"),
    "qwen35_seeing": Sight(_qwen3, _gridded, image=7, marks="mm_token_type_ids"),
    "qwen35moe_seeing": Sight(_qwen3, _gridded, image=7, marks="mm_token_type_ids"),
    "llava": Sight(_llava, _pixels, image=6),
    "paddleocr": Sight(_paddleocr, _gridded, image=7, marks="mm_token_type_ids"),
    "glm_ocr": Sight(_glm_ocr, _gridded, image=7, marks="mm_token_type_ids"),
    "internvl": Sight(_internvl, _pixels, image=7),
    "internvl_large": Sight(_internvl, _pixels, image=7),
    "lfm2_vl": Sight(_lfm2, _parts, image=7),
    "minicpmv": Sight(_minicpmv, _of_slices, image=7),
    "nemotron_omni": Sight(_nemotron, _of_grids, image=7),
    "deepseek_ocr": Sight(_deepseek_ocr1, _parts, image=7, small=[_noise(48, 36, (1, 2))]),
    # Only views of more than 144 rows have the other queries.
    "deepseek_ocr2": Sight(
        _deepseek_ocr, _parts, image=7, small=[_noise(48, 36, 2), _noise(156, 36, 2)]
    ),
    "smolvlm": Sight(_smolvlm, _pixels, image=7),
    "mistral3_vision": Sight(_pixtral, _sized, image=7),
    "llama4_vision": Sight(_llama4, _projected, image=7),
    "gemma4_seeing": Sight(_gemma4, _placed, image=8, marks="mm_token_type_ids", laid=0),
    "gemma4_small_seeing": Sight(_gemma4, _placed, image=8, marks="mm_token_type_ids", laid=0),
    "gemma4_unified_seeing": Sight(
        _gemma4_unified, _placed, image=8, marks="mm_token_type_ids", laid=0, masks=True
    ),
    "gemma3_vision": Sight(_gemma3, _pixels, image=8, marks="token_type_ids"),
}
