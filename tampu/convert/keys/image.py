"""The keys of the files that say how pictures are prepared.

These are preprocessor_config.json, video_preprocessor_config.json and processor_config.json, which
may hold the other two. What an encoder has as constants is an error with another value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tampu.convert.checkpoint import Checkpoint
from tampu.convert.config import Config
from tampu.convert.keys.table import GENERATED, LIBRARY, MARKS, REQUEST, Keys
from tampu.vision import Filter, Normalization

PROCESSOR_FILE = "processor_config.json"
IMAGE_FILE = "preprocessor_config.json"
VIDEO_FILE = "video_preprocessor_config.json"

_ARRAYS = "it is about how transformers holds pixels"
_AUDIO = "audio is not converted"
_SINGLE = "each picture has its own size in a batch"
_CROPS = "without do_pan_and_scan there are no crops"
_FRAMES = "which frames of a video are taken, and their size, are tampu's own settings"
_SAMPLING = (
    "fps", "num_frames", "min_frames", "max_frames", "do_sample_frames", "size", "max_image_size",
    "max_duration", "min_pixels", "max_pixels", "cap_pixels_per_frame", "max_video_tokens",
    "max_soft_tokens", "return_metadata", "video_metadata", "temporal_stride", "crop_size",
    "overflow_strategy", "add_timestamps",
)  # fmt: skip

_SQUARE = ("size", "crop_size")
_OF_BOTH = ("patch_size", "spatial_merge_size", "pixel_shuffle_ratio")

_COMMON: Mapping[str, str] = {
    **dict.fromkeys(
        ("image_processor_type", "video_processor_type", "feature_extractor_type",
         "processor_class", "auto_map", "_valid_processor_keys", "valid_kwargs",
         "model_input_names", "transformers_version", "use_fast"),
        LIBRARY,
    ),
    **dict.fromkeys(
        ("data_format", "input_data_format", "device", "disable_grouping", "default_to_square",
         "do_convert_rgb", "num_channels", "return_row_col_info"),
        _ARRAYS,
    ),
    "return_tensors": REQUEST,
    "pad_size": _SINGLE,
}  # fmt: skip

# The keys of processor_config.json itself.
PROCESSOR = Keys(
    irrelevant={
        **_COMMON,
        **dict.fromkeys(("audio_*", "feature_extractor"), _AUDIO),
        **dict.fromkeys(
            ("image_seq_length", "image_seq_len", "num_additional_image_tokens"), GENERATED
        ),
        "*_kwargs": REQUEST,
    },
    names={"*_token": MARKS, "*_tokens": MARKS},
    neutral={"vision_feature_select_strategy": ("default",)},
    used=frozenset({"image_processor", "video_processor", "chat_template"}),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageSteps:
    """What an encoder does to each picture, as constants of its code.

    Attributes:
        filter: how it is resampled.
        normalization: of its pixels, unless keys of the model's file have it.
        is_square: whether it becomes a square of `image_size`, or tiles of that size.
        is_cropped: whether the middle is cut out.
        others: further keys that have only these values.
        processor: the same, of processor_config.json itself.
    """

    filter: Filter
    normalization: Normalization
    is_square: bool = False
    is_cropped: bool = False
    others: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    processor: Mapping[str, tuple[object, ...]] = field(default_factory=dict)


def check_images(
    checkpoint: Checkpoint, image: Config, steps: ImageSteps, parameters: Mapping[str, object]
) -> Iterator[str]:
    """Yield what the files about pictures say that the encoder does not do.

    Args:
        checkpoint: the folder.
        image: the settings of the image processor, of which the family has read some.
        steps: of the family.
        parameters: the model's keys.
    """
    whole = checkpoint.json(PROCESSOR_FILE) or {}
    sizes = _sizes(parameters)
    own = Keys(
        irrelevant=PROCESSOR.irrelevant,
        names=PROCESSOR.names,
        neutral={
            **PROCESSOR.neutral,
            **{key: sizes[key] for key in _OF_BOTH if key in sizes},
            **steps.processor,
        },
        used=PROCESSOR.used,
    )
    yield from _strange(PROCESSOR_FILE, whole, own)
    keys = _image_keys(steps, sizes, parameters)
    read = image.reading.keys
    unread = {
        key: value
        for key, value in image.values.items()
        if key in keys.neutral or f"{image.where}: {key}" not in read
    }
    yield from _strange(image.where, unread, keys)
    video, where = whole.get("video_processor"), f"{PROCESSOR_FILE}: video_processor"
    if not isinstance(video, dict):
        video, where = checkpoint.json(VIDEO_FILE) or {}, VIDEO_FILE
    frames = Keys(
        irrelevant={**keys.irrelevant, **dict.fromkeys(_SAMPLING, _FRAMES)},
        neutral={key: only for key, only in keys.neutral.items() if key not in _SAMPLING},
    )
    yield from _strange(where, video, frames)


def _strange(where: str, values: Mapping[str, Any], keys: Keys) -> Iterator[str]:
    for key, value in values.items():
        if why := keys.refused(key, value):
            yield f"{where}: {key} {why}"


def _image_keys(
    steps: ImageSteps, sizes: Mapping[str, tuple[object, ...]], parameters: Mapping[str, object]
) -> Keys:
    usual = steps.normalization
    neutral: dict[str, tuple[object, ...]] = {
        "image_mean": (parameters.get("vision.image_mean", [*usual.mean]),),
        "image_std": (parameters.get("vision.image_std", [*usual.std]),),
        "do_resize": (True,),
        "do_rescale": (True,),
        "do_normalize": (True,),
        "rescale_factor": (1 / 255,),
        "resample": (int(steps.filter),),
        "do_center_crop": (steps.is_cropped,),
        "do_pan_and_scan": (False,),
        "temporal_patch_size": (2,),
        "resize_to_max_canvas": (False,),
        **{key: only for key, only in sizes.items() if steps.is_square or key not in _SQUARE},
    }
    return Keys(
        irrelevant={
            **_COMMON,
            "pan_and_scan_*": _CROPS,
            "do_pad": _SINGLE,
            "image_seq_length": GENERATED,
            "video_sampling": _FRAMES,
            **({} if steps.is_cropped else {"crop_size": "nothing is cropped"}),
        },
        names={"*_token": MARKS},
        neutral={**neutral, **steps.others},
    )


def _sizes(parameters: Mapping[str, object]) -> dict[str, tuple[object, ...]]:
    """Return the values that follow from config.json."""
    side, patch = parameters.get("vision.image_size"), parameters.get("vision.patch_size")
    merge = parameters.get("vision.spatial_merge_size", parameters.get("spatial_merge_size", 1))
    square = {"height": side, "width": side}
    found = {
        "size": (square, {"shortest_edge": side}, side),
        "crop_size": (square, side),
        "patch_size": (patch, {"height": patch, "width": patch}),
        "merge_size": (merge,),
        "spatial_merge_size": (merge,),
        "max_image_tiles": (parameters.get("vision.max_num_tiles"),),
        "max_image_size": ({"longest_edge": side},),
        "pixel_shuffle_ratio": (parameters.get("vision.pixel_shuffle_ratio"),),
        "pooling_kernel_size": (parameters.get("vision.projector.scale_factor"),),
    }
    return {key: values for key, values in found.items() if values != (None,)}
