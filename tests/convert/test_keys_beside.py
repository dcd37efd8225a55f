"""Keys of the files beside config.json are used, irrelevant for a stated reason, or an error."""

from __future__ import annotations

import inspect
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import transformers
from support import handmade_checkpoints as handmade
from transformers.image_processing_utils import ImagesKwargs
from transformers.processing_utils import VideosKwargs

from tampu.convert import FAMILIES, convert, plan_conversion
from tampu.convert.checkpoint import Checkpoint
from tampu.convert.config import Config
from tampu.convert.keys.image import PROCESSOR, check_images
from tampu.convert.keys.tokenizer import SPECIAL_TOKENS, TOKENIZER
from tampu.convert.sentence_transformers import PROMPTS_FILE
from tampu.convert.vocabulary import tokenizer_metadata
from tampu.errors import ModelFileError, UnsupportedModelError
from tampu.tokenizer.prompts import DEFAULT_KEY, KEY

TOKENIZERS = (
    "LlamaTokenizer", "GemmaTokenizer", "Qwen2Tokenizer", "Qwen3_5Tokenizer", "BertTokenizer",
    "XLMRobertaTokenizer", "GPT2Tokenizer", "RobertaTokenizer", "CohereTokenizer", "T5Tokenizer",
    "GPTNeoXTokenizer", "PreTrainedTokenizerFast",
)  # fmt: skip
_NOT_SAVED = {"self", "args", "kwargs", "vocab", "merges"}
NAMED = {"content": "<x>", "lstrip": False, "normalized": False, "rstrip": False}
SQUARE = {"height": 336, "width": 336}
CLIP = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
STEPS = {
    "do_convert_rgb": True, "do_resize": True, "do_rescale": True, "do_normalize": True,
    "rescale_factor": 0.00392156862745098,
}  # fmt: skip


@pytest.mark.parametrize("name", TOKENIZERS)
def test_what_a_tokenizer_class_is_made_with_is_classified(name: str) -> None:
    arguments = inspect.signature(getattr(transformers, name).__init__).parameters.values()
    for argument in arguments:
        if argument.name not in _NOT_SAVED:
            default = argument.default
            value = "text" if default is inspect.Parameter.empty else default
            assert TOKENIZER.refused(argument.name, value) is None, argument.name


def test_what_every_tokenizer_reads_is_classified() -> None:
    source = inspect.getsource(transformers.PreTrainedTokenizerBase.__init__)
    read = {line.split('"')[1] for line in source.splitlines() if 'kwargs.pop("' in line}
    read |= set(transformers.PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES)
    assert len(read) > 20
    strange = {key for key in read if TOKENIZER.refused(key, "text")}
    assert strange == {"split_special_tokens"}  # with false only
    assert TOKENIZER.refused("split_special_tokens", False) is None


def processed(tmp_path: Path, name: str, keys: dict[str, object], **files: Any) -> list[str]:
    """Return what is refused in files about pictures for a family, and a model with these keys."""
    for file, content in files.items():
        (tmp_path / f"{file}.json").write_text(json.dumps(content))
    family, checkpoint = FAMILIES[name], Checkpoint(tmp_path, {}, {})
    image = Config(files.get("preprocessor_config", {}), "preprocessor_config.json")
    read = family.image_settings(image)
    assert family.image_steps is not None
    return list(check_images(checkpoint, image, family.image_steps, {**keys, **read}))


READ_COLORS = ("InternVLForConditionalGeneration", "PaddleOCRVLForConditionalGeneration")
# Of each family: the keys of its tower, and what its published checkpoints have.
PUBLISHED: dict[str, tuple[dict[str, object], dict[str, Any]]] = {
    "LlavaForConditionalGeneration": (
        {"vision.image_size": 336, "vision.patch_size": 14},
        {
            "preprocessor_config": {
                **STEPS, **CLIP, "resample": 3, "size": {"shortest_edge": 336},
                "crop_size": SQUARE, "do_center_crop": True, "processor_class": "LlavaProcessor",
                "image_processor_type": "CLIPImageProcessor",
            },
            "processor_config": {
                "image_token": "<image>", "num_additional_image_tokens": 1, "patch_size": 14,
                "processor_class": "LlavaProcessor", "vision_feature_select_strategy": "default",
            },
        },
    ),
    "SmolVLMForConditionalGeneration": (
        {"vision.image_size": 512, "vision.patch_size": 16},
        {
            "preprocessor_config": {
                **STEPS, **HALF, "resample": 1, "size": {"longest_edge": 2048}, "do_pad": True,
                "max_image_size": {"longest_edge": 512}, "do_image_splitting": True,
                "image_processor_type": "SmolVLMImageProcessor",
                "processor_class": "SmolVLMProcessor",
                "video_sampling": {
                    "fps": 1, "max_frames": 64, "video_size": {"longest_edge": 512},
                },
            },
            "processor_config": {"image_seq_len": 64, "processor_class": "SmolVLMProcessor"},
        },
    ),
    "InternVLForConditionalGeneration": (
        {"vision.image_size": 448, "vision.patch_size": 14},
        {
            "preprocessor_config": {
                **STEPS, "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225],
                "resample": 3, "size": {"height": 448, "width": 448}, "min_patches": 1,
                "max_patches": 12, "crop_to_patches": False, "crop_size": None,
                "do_center_crop": None, "image_processor_type": "GotOcr2ImageProcessorFast",
                "processor_class": "InternVLProcessor",
            },
            "processor_config": {"image_seq_length": 256, "processor_class": "InternVLProcessor"},
        },
    ),
    "GlmOcrForConditionalGeneration": (
        {"vision.patch_size": 14, "vision.spatial_merge_size": 2},
        {
            "preprocessor_config": {
                **STEPS, **CLIP, "patch_size": 14, "merge_size": 2, "temporal_patch_size": 2,
                "size": {"shortest_edge": 12_544, "longest_edge": 9_633_792},
                "image_processor_type": "Glm46VImageProcessor",
                "processor_class": "Glm46VProcessor",
            },
        },
    ),
    "PaddleOCRVLForConditionalGeneration": (
        {"vision.patch_size": 14, "vision.spatial_merge_size": 2},
        {
            "preprocessor_config": {
                **STEPS, **HALF, "resample": 3, "patch_size": 14, "merge_size": 2,
                "temporal_patch_size": 1, "min_pixels": 147_384, "max_pixels": 2_822_400,
                "image_processor_type": "PaddleOCRVLImageProcessor",
                "processor_class": "PaddleOCRVLProcessor",
            },
        },
    ),
    "Mistral3ForConditionalGeneration": (
        {
            "vision.image_size": 1540, "vision.patch_size": 14, "spatial_merge_size": 2,
            "vision.longest_edge": 1540,
        },
        {
            "preprocessor_config": {
                **STEPS, **CLIP, "resample": 3, "size": {"longest_edge": 1540}, "patch_size": 14,
                "crop_size": None, "data_format": "channels_first", "default_to_square": True,
                "device": None, "do_center_crop": None, "input_data_format": None, "do_pad": True,
                "image_processor_type": "PixtralImageProcessorFast", "return_tensors": None,
            },
            "processor_config": {
                "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]",
                "image_token": "[IMG]", "patch_size": 14, "spatial_merge_size": 2,
                "processor_class": "PixtralProcessor",
            },
        },
    ),
    "Llama4ForConditionalGeneration": (
        {
            "vision.image_size": 336, "vision.patch_size": 14, "vision.pixel_shuffle_ratio": 0.5,
        },
        {
            "preprocessor_config": {
                **STEPS, **HALF, "resample": 2, "size": SQUARE, "max_patches": 16,
                "resize_to_max_canvas": False, "do_center_crop": None, "device": None,
                "image_processor_type": "Llama4ImageProcessorFast", "input_data_format": None,
            },
            "processor_config": {
                "fake_image_token": "<|image|>", "image_token": "<|image|>", "patch_size": 14,
                "start_of_image_token": "<|image_start|>", "patch_token": "<|patch|>",
                "pixel_shuffle_ratio": 0.5, "processor_class": "Llama4Processor",
                "tile_x_separator_token": "<|tile_x_separator|>",
            },
        },
    ),
    "MllamaForConditionalGeneration": (
        {"vision.image_size": 560, "vision.patch_size": 14, "vision.max_num_tiles": 4},
        {
            "preprocessor_config": {
                **STEPS, **CLIP, "resample": 2, "size": {"height": 560, "width": 560},
                "max_image_tiles": 4, "do_pad": True,
                "image_processor_type": "MllamaImageProcessor",
            },
        },
    ),
    "Qwen2_5_VLForConditionalGeneration": (
        {"vision.image_size": 560, "vision.patch_size": 14, "vision.spatial_merge_size": 2},
        {
            "preprocessor_config": {
                **CLIP, "min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14,
                "temporal_patch_size": 2, "merge_size": 2,
                "image_processor_type": "Qwen2_5_VLImageProcessor",
                "processor_class": "Qwen2_5_VLProcessor",
            },
        },
    ),
    "Qwen3VLForConditionalGeneration": (
        {"vision.image_size": 768, "vision.patch_size": 16, "vision.spatial_merge_size": 2},
        {
            "preprocessor_config": {
                **STEPS, **HALF, "resample": 3, "patch_size": 16, "merge_size": 2,
                "temporal_patch_size": 2, "crop_size": None, "pad_size": None,
                "size": {"longest_edge": 16777216, "shortest_edge": 65536}, "do_pad": None,
                "image_processor_type": "Qwen2VLImageProcessorFast", "disable_grouping": None,
            },
            "video_preprocessor_config": {
                **STEPS, **HALF, "resample": 3, "patch_size": 16, "merge_size": 2, "fps": 2,
                "temporal_patch_size": 2, "do_sample_frames": True, "max_frames": 768,
                "min_frames": 4, "return_metadata": False, "num_frames": None,
                "size": {"longest_edge": 25165824, "shortest_edge": 4096},
                "video_metadata": None, "video_processor_type": "Qwen3VLVideoProcessor",
            },
        },
    ),
    "Gemma3ForConditionalGeneration": (
        {"vision.image_size": 896, "vision.patch_size": 14},
        {
            "preprocessor_config": {
                **STEPS, **HALF, "resample": 2, "size": {"height": 896, "width": 896},
                "do_pan_and_scan": None, "pan_and_scan_max_num_crops": None,
                "pan_and_scan_min_crop_size": None, "pan_and_scan_min_ratio_to_activate": None,
                "image_seq_length": 256, "image_processor_type": "Gemma3ImageProcessor",
            },
            "processor_config": {"image_seq_length": 256, "processor_class": "Gemma3Processor"},
        },
    ),
    "Gemma4ForConditionalGeneration": (
        {"vision.patch_size": 16, "vision.projector.scale_factor": 3},
        {
            "preprocessor_config": {
                **STEPS, "do_normalize": False, "resample": 3, "patch_size": 16,
                "max_soft_tokens": 280, "pooling_kernel_size": 3, "image_mean": [0.0, 0.0, 0.0],
                "image_std": [1.0, 1.0, 1.0], "image_processor_type": "Gemma4ImageProcessor",
            },
            "processor_config": {
                "audio_ms_per_token": 40, "audio_seq_length": 750, "image_seq_length": 280,
                "feature_extractor": {"feature_size": 128}, "processor_class": "Gemma4Processor",
            },
        },
    ),
    "EmbeddingGemma2Model": (
        {"vision.patch_size": 16, "vision.projector.scale_factor": 3},
        {
            "preprocessor_config": {
                **STEPS, "do_normalize": False, "resample": 3, "patch_size": 16,
                "max_soft_tokens": 280, "pooling_kernel_size": 3, "image_mean": [0.0, 0.0, 0.0],
                "image_std": [1.0, 1.0, 1.0], "image_processor_type": "Gemma4ImageProcessor",
            },
            "processor_config": {
                "audio_ms_per_token": 40, "audio_seq_length": 750, "image_seq_length": 280,
                "processor_class": "EmbeddingGemma2Processor",
            },
            "video_preprocessor_config": {
                "fps": 1, "max_frames": 32, "overflow_strategy": "uniform", "patch_size": 16,
                "add_timestamps": False, "max_soft_tokens": 140, "pooling_kernel_size": 3,
                "do_sample_frames": True, "resample": 3, "return_metadata": True,
                "video_processor_type": "EmbeddingGemma2VideoProcessor",
            },
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_files_about_pictures_as_they_are_published_are_accepted(tmp_path: Path, name: str) -> None:
    keys, files = PUBLISHED[name]
    assert processed(tmp_path, name, keys, **files) == []


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("invented_scale", 2.0),
        ("image_mean", [0.1, 0.2, 0.3]),
        ("resample", 0),
        ("do_resize", False),
        ("do_rescale", False),
        ("rescale_factor", 1.0),
        ("patch_size", 4),
        ("do_pan_and_scan", True),
    ],
)
def test_a_step_that_the_encoder_does_not_do_is_refused(
    tmp_path: Path, name: str, key: str, value: object
) -> None:
    keys, files = PUBLISHED[name]
    changed = {**files, "preprocessor_config": {**files["preprocessor_config"], key: value}}
    refused = processed(tmp_path, name, keys, **changed)
    if key == "image_mean" and name == "Qwen3VLForConditionalGeneration":
        assert [line.partition(":")[0] for line in refused] == ["video_preprocessor_config.json"]
    elif key == "image_mean" and name in READ_COLORS:
        assert refused == []
    else:
        assert [line.split(" ")[1] for line in refused] == [key]
        assert refused[0].startswith(f"preprocessor_config.json: {key} ")


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("file", ["processor_config", "video_preprocessor_config"])
def test_an_invented_key_beside_the_image_processor_is_refused(
    tmp_path: Path, name: str, file: str
) -> None:
    keys, files = PUBLISHED[name]
    changed = {**files, file: {**files.get(file, {}), "invented_scale": 2.0}}
    assert processed(tmp_path, name, keys, **changed) == [
        f"{file}.json: invented_scale is not known"
    ]


@pytest.mark.parametrize(
    ("name", "processor"),
    [
        ("LlavaForConditionalGeneration", "CLIPImageProcessorPil"),
        ("Mistral3ForConditionalGeneration", "PixtralImageProcessorPil"),
        ("MllamaForConditionalGeneration", "MllamaImageProcessorPil"),
        ("Qwen2_5_VLForConditionalGeneration", "Qwen2VLImageProcessorPil"),
        ("Qwen3VLForConditionalGeneration", "Qwen2VLImageProcessorPil"),
        ("Gemma3ForConditionalGeneration", "Gemma3ImageProcessorPil"),
        ("Gemma4ForConditionalGeneration", "Gemma4ImageProcessorPil"),
    ],
)
def test_what_an_image_processor_can_be_made_with_is_classified(
    tmp_path: Path, name: str, processor: str
) -> None:
    keys = PUBLISHED[name][0]
    kind = getattr(transformers, processor)
    names = set(kind.valid_kwargs.__annotations__) | set(ImagesKwargs.__annotations__)
    names |= set(kind().to_dict())
    refused = processed(tmp_path, name, keys, preprocessor_config=dict.fromkeys(names))
    assert refused == []  # null
    for key in names:
        try:
            refused = processed(
                tmp_path, name, keys, preprocessor_config={key: {"longest_edge": 7}}
            )
        except ModelFileError as error:  # it is read, and is not an object
            refused = [str(error)]
        assert "is not known" not in "".join(refused)


def test_what_a_video_processor_can_be_made_with_is_classified(tmp_path: Path) -> None:
    name = "Qwen3VLForConditionalGeneration"
    for key in VideosKwargs.__annotations__:
        settings = {key: "value"}
        refused = processed(tmp_path, name, PUBLISHED[name][0], video_preprocessor_config=settings)
        assert "is not known" not in "".join(refused)


@pytest.mark.parametrize(
    "name",
    ["LlavaProcessor", "Llama4Processor", "MllamaProcessor", "Qwen2_5_VLProcessor",
     "Qwen3VLProcessor", "Gemma3Processor", "Gemma4Processor", "EmbeddingGemma2Processor"],
)  # fmt: skip
def test_what_a_processor_is_made_with_is_classified(name: str) -> None:
    arguments = inspect.signature(getattr(transformers, name).__init__).parameters
    sizes = {"patch_size", "spatial_merge_size", "pixel_shuffle_ratio"}  # equal to config.json's
    for key, argument in arguments.items():
        if key not in {"self", "kwargs", "tokenizer", *sizes}:
            empty = argument.default is inspect.Parameter.empty
            assert PROCESSOR.refused(key, {} if empty else argument.default) is None, key


def test_the_image_processor_of_processor_config_comes_first(tmp_path: Path) -> None:
    (tmp_path / "processor_config.json").write_text(
        json.dumps({"image_processor": {"min_pixels": 4096, "size": {"shortest_edge": 9}}})
    )
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"min_pixels": 1}))
    from tampu.convert import _image_processor

    family = FAMILIES["Qwen3VLForConditionalGeneration"]
    keys = family.image_settings(_image_processor(Checkpoint(tmp_path, {}, {})))
    assert keys == {"vision.min_pixels": 4096}  # which is used before `size`


FILES: dict[str, dict[str, Any]] = {
    "tokenizer_config.json": {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 1000000000000000019884,
        "bos_token": "<|begin|>", "eos_token": {"content": "<|end|>", "__type": "AddedToken"},
        "pad_token": None, "clean_up_tokenization_spaces": True, "use_default_system_prompt": True,
        "added_tokens_decoder": {"8": {**NAMED, "content": "<|begin|>", "special": True}},
        "extra_special_tokens": {}, "additional_special_tokens": ["<|begin|>"],
        "legacy": True, "sp_model_kwargs": {}, "spaces_between_special_tokens": False,
        "add_prefix_space": None, "padding_side": "left", "truncation_side": "right",
        "model_input_names": ["input_ids"], "errors": "replace", "split_special_tokens": False,
        "unk_token": "a", "image_token": "<tool>", "audio_bos_token": "<tool>",
        "processor_class": "LlavaProcessor", "auto_map": {"AutoTokenizer": ["x", None]},
        "do_lower_case": True, "tokenize_chinese_chars": True, "never_split": None,
        "max_length": 512, "stride": 0, "pad_to_multiple_of": None, "pad_token_type_id": 0,
        "backend": "tokenizers", "is_local": False, "response_schema": {"a": 1},
    },
    "special_tokens_map.json": {
        "bos_token": {**NAMED, "content": "<|begin|>"}, "eos_token": "<|end|>",
        "additional_special_tokens": [{**NAMED, "content": "<tool>"}], "image_token": "<tool>",
    },
    "chat_template.json": {"chat_template": "{{ messages }}"},
    "sentence_bert_config.json": {"max_seq_length": 64, "do_lower_case": False},
    "config_sentence_transformers.json": {
        "__version__": {"sentence_transformers": "5.0.0"}, "model_type": "SentenceTransformer",
        "prompts": {"query": "", "document": ""}, "default_prompt_name": None,
        "similarity_fn_name": "cosine",
    },
    "1_Pooling/config.json": {
        "word_embedding_dimension": 32, "pooling_mode_cls_token": False,
        "pooling_mode_mean_tokens": True, "include_prompt": True,
    },
}  # fmt: skip


def written(folder: Path, **files: Any) -> Path:
    """Write a checkpoint with more files; `__` in a name stands for a slash."""
    source = handmade.write(folder / "model")
    for name, content in files.items():
        path = source / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))
    return source


def test_files_as_they_are_published_are_accepted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "tampu"):
        assert plan_conversion(written(tmp_path, **FILES))
    assert not caplog.records


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("value", [2.0, False, 7])
def test_an_invented_key_stops_a_conversion(tmp_path: Path, name: str, value: object) -> None:
    source = written(tmp_path, **{name: {**FILES[name], "invented_scale": value}})
    message = rf"{name}: invented_scale is not known.*--allow-unknown"
    with pytest.raises(UnsupportedModelError, match=message):
        convert(source, tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()
    assert plan_conversion(source, allow_unknown=True)


def test_an_invented_key_of_a_pooling_in_another_folder_stops_a_conversion(tmp_path: Path) -> None:
    modules = [{"idx": 0, "name": "0", "path": "2_Pooling", "type": "st.models.Pooling"}]
    pooling = {**FILES["1_Pooling/config.json"], "invented_scale": 1}
    source = written(tmp_path, **{"modules.json": modules, "2_Pooling/config.json": pooling})
    with pytest.raises(UnsupportedModelError, match=r"2_Pooling/config.json: invented_scale is"):
        plan_conversion(source)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("tokenizer_config.json", {"split_special_tokens": True}, "split_special_tokens is True"),
        ("tokenizer_config.json", {"sp_model_kwargs": {"alpha": 1}}, "sp_model_kwargs is"),
        ("tokenizer_config.json", {"dropout": 0.1}, "dropout is 0.1"),
        (
            "tokenizer_config.json",
            {"added_tokens_decoder": {"8": {**NAMED, "content": "<|begin|>", "odd": 1}}},
            "added_tokens_decoder: 8: odd is not known",
        ),
        ("sentence_bert_config.json", {"do_lower_case": True}, "do_lower_case is True"),
        ("sentence_bert_config.json", {"model_args": {"a": 1}}, "model_args is"),
        ("1_Pooling/config.json", {"include_prompt": False}, "include_prompt is False"),
        ("config_sentence_transformers.json", {"truncate_dim": 8}, "truncate_dim is 8"),
    ],
)
def test_a_setting_that_is_not_carried_is_refused_by_name(
    tmp_path: Path, name: str, changes: dict[str, Any], message: str
) -> None:
    source = written(tmp_path, **{name: FILES[name] | changes})
    with pytest.raises(UnsupportedModelError, match=f"{name}: {message}"):
        plan_conversion(source)


def test_an_unknown_key_of_a_module_stops_a_conversion(tmp_path: Path) -> None:
    modules = [{"idx": 0, "name": "0", "path": "", "type": "st.models.Transformer", "odd": 1}]
    with pytest.raises(UnsupportedModelError, match=r"modules\.json: odd is not known"):
        plan_conversion(written(tmp_path, **{"modules.json": modules}))


def test_an_adapter_beside_the_model_is_not_dropped_in_silence(tmp_path: Path) -> None:
    source = written(tmp_path, **{"adapter_config.json": {"peft_type": "LORA"}})
    with pytest.raises(UnsupportedModelError, match=r"adapter_config\.json: the folder has an ad"):
        plan_conversion(source)
    assert plan_conversion(source, allow_unknown=True)


def test_what_is_left_to_the_caller_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "tampu"):
        assert plan_conversion(
            written(tmp_path, **{"sentence_bert_config.json": {"max_seq_length": 16}})
        )
    assert "max_seq_length is 16" in caplog.text


@pytest.mark.parametrize(
    ("settings", "keys"),
    [
        ({"prompts": {"q": "query: "}}, {KEY: '{"q":"query: "}'}),
        (
            {"prompts": {"q": "query: ", "d": ""}, "default_prompt_name": "q"},
            {KEY: '{"q":"query: ","d":""}', DEFAULT_KEY: "q"},
        ),
        ({"prompts": {"d": ""}, "default_prompt_name": "d"}, {}),
    ],
)
def test_prompts_become_keys(tmp_path: Path, settings: object, keys: dict[str, str]) -> None:
    plan = plan_conversion(written(tmp_path, **{PROMPTS_FILE: settings}))
    assert {key: plan.metadata[key] for key in (KEY, DEFAULT_KEY) if key in plan.metadata} == keys


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prompts": {"q": 1}}, "prompts is not an object of texts"),
        ({"prompts": {}, "default_prompt_name": "d"}, "default_prompt_name: 'd' is not in prompts"),
    ],
)
def test_damaged_prompts_are_an_error(tmp_path: Path, settings: object, message: str) -> None:
    with pytest.raises(ModelFileError, match=f"{PROMPTS_FILE}: {message}"):
        plan_conversion(written(tmp_path, **{PROMPTS_FILE: settings}))


@pytest.mark.parametrize(("key", "value"), [("do_lower_case", False), ("strip_accents", True)])
def test_a_normalizer_that_tokenizer_config_contradicts_is_refused(
    tmp_path: Path, key: str, value: bool
) -> None:
    normalizer = {
        "type": "BertNormalizer", "lowercase": True, "strip_accents": False,
        "clean_text": True, "handle_chinese_chars": True,
    }  # fmt: skip
    source = written(tmp_path, **{"tokenizer_config.json": {key: value}})
    (source / "tokenizer.json").write_text(
        json.dumps(handmade.TOKENIZER | {"normalizer": normalizer})
    )
    with pytest.raises(UnsupportedModelError, match=f"{key} is {value}, but .* of tokenizer.json"):
        plan_conversion(source)


def test_special_tokens_map_names_tokens_as_in_transformers(tmp_path: Path) -> None:
    names = {"eos_token": "d", "pad_token": {**NAMED, "content": "c"}}
    for settings, end in (({"eos_token": "<|end|>"}, 3), (FILES["tokenizer_config.json"], 9)):
        folder = tmp_path / str(end)
        source = written(
            folder, **{"tokenizer_config.json": settings, "special_tokens_map.json": names}
        )
        keys = tokenizer_metadata(Checkpoint.open(source), handmade.ROWS)
        assert keys["tokenizer.ggml.eos_token_id"] == end  # the map counts without added tokens
        ours = transformers.AutoTokenizer.from_pretrained(source)
        assert ours.eos_token_id == end


def test_no_name_of_a_token_is_refused() -> None:
    for keys in (TOKENIZER, SPECIAL_TOKENS):
        assert keys.refused("image_soft_token", "<x>") is None
        assert keys.refused("tool_call_start_token", {"content": "<x>"}) is None
        assert keys.refused("add_x_token", True) == "is not known"


def test_a_picture_that_is_not_cut_into_tiles_is_refused(tmp_path: Path) -> None:
    name = "SmolVLMForConditionalGeneration"
    keys, files = PUBLISHED[name]
    for key, value in (("do_image_splitting", False), ("max_image_size", {"longest_edge": 384})):
        settings = {**files["preprocessor_config"], key: value}
        (refused,) = processed(tmp_path, name, keys, preprocessor_config=settings)
        assert key in refused
