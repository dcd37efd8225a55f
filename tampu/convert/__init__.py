"""Converts Hugging Face checkpoints to GGUF files that tampu, llama.cpp and Ollama read.

A model family is a small table of tensor names and keys. No code of a checkpoint is executed and
no pickle is read. Everywhere in this package a damaged or incomplete file raises ModelFileError,
and an unsupported setting UnsupportedModelError.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tampu.convert.checkpoint import Checkpoint, StoredTensor, to_float32
from tampu.convert.config import Config
from tampu.convert.divided import divide
from tampu.convert.families import FAMILIES
from tampu.convert.family import Family, Parameters, template_of, with_model_prefix
from tampu.convert.keys import check_config, check_files, check_quantization, report
from tampu.convert.keys.image import IMAGE_FILE, PROCESSOR_FILE, check_images
from tampu.convert.keys.sound import check_sounds, divide_settings
from tampu.convert.keys.tokenizer_json import Refusals
from tampu.convert.quant_mix import (
    FILE_TYPES,
    FileType,
    ModelShape,
    Override,
    choose_types,
    file_type,
)
from tampu.convert.quantize import QUANTIZATION_VERSION, tensor_order
from tampu.convert.sentence_transformers import (
    Modules,
    dense_tensors,
    encoder_keys,
    prompts,
    read_modules,
)
from tampu.convert.shape_check import check_plan
from tampu.convert.storage import encoded_parts, storage_type
from tampu.convert.token_check import compare_tokens
from tampu.convert.token_heads import token_heads
from tampu.convert.vocabulary import tokenizer_metadata
from tampu.convert.writer import (
    ChunkSource,
    FileRange,
    PlannedFile,
    ProgressCallback,
    TensorToWrite,
)
from tampu.errors import ModelFileError, UnsupportedModelError
from tampu.ml.types import GGMLType
from tampu.models import plug_ins

__all__ = ["FAMILIES", "TYPES", "convert", "known_families", "plan_conversion"]

TYPES: tuple[str, ...] = tuple(FILE_TYPES)

_PLUG_INS = "tampu.converters"

_MXFP4_EXPERTS = replace(Override.parse(r"ffn_(gate|up|down)_exps\.weight=MXFP4"), is_optional=True)
_TRAINING_FILE = "training.json"  # how a model trained with tools/train_demo was made


def known_families() -> dict[str, Family]:
    """Return the supported families by their names in config.json's `architectures`.

    Plug-in packages add families through the entry-point group `tampu.converters`; they override
    tampu's own.

    Raises:
        UnsupportedModelError: if a plug-in's entry point cannot be loaded or is not a `Family`.
    """
    return FAMILIES | {point.name: _load_plug_in(point) for point in plug_ins(_PLUG_INS)}


def _load_plug_in(point: EntryPoint) -> Family:
    what = f"the plug-in converter {point.value} for {point.name}"
    try:
        family = point.load()
    except (ImportError, AttributeError) as error:
        raise UnsupportedModelError(f"{what} cannot be loaded: {error}") from error
    if not isinstance(family, Family):
        raise UnsupportedModelError(f"{what} is not a {Family.__module__}.{Family.__name__}")
    return family


def convert(
    source: Path,
    destination: Path,
    type: str | None = None,
    *,
    mmproj: Path | None = None,
    metadata: Mapping[str, str | int | float | bool] | None = None,
    overrides: Sequence[Override] = (),
    threads: int | None = None,
    allow_unknown: bool = False,
    progress: ProgressCallback | None = None,
) -> None:
    """Write the checkpoint in the folder `source` as the GGUF file `destination`, atomically.

    Memory is bounded by the largest tensor.

    Args:
        source: a folder with config.json, safetensors and tokenizer files.
        destination: the file to write; an existing one is replaced.
        type: one of `TYPES`: the type of the large tensors, or a quant mix such as Q4_K_M; None:
            that of most of the checkpoint's weights, and MXFP4 for experts that are stored so.
        mmproj: the file to write the encoders to, in llama.cpp's layout; None: text and encoders
            are in one file.
        metadata: additional keys, which override the converter's own.
        overrides: types for tensors whose GGUF names match.
        threads: number of worker threads; None: one per core.
        allow_unknown: convert although a file has unknown settings, with a warning.
        progress: called with the bytes written and the total.

    Raises:
        ModelNotFoundError: if there is no checkpoint in `source`.
        ModelFileError: if a file is damaged or incomplete, or the result cannot be written.
        UnsupportedModelError: if the architecture, its settings, its tokenizer or `type` are not
            supported.
        DiskFullError: if the result does not fit on the disk.
    """
    plan = plan_conversion(
        source, type, metadata=metadata, overrides=overrides, allow_unknown=allow_unknown
    )
    if mmproj is not None:
        plan, projector = divide(plan)
        projector.write(mmproj, threads=threads)
    plan.write(destination, threads=threads, progress=progress)


def plan_conversion(
    source: Path,
    type: str | None = None,
    *,
    metadata: Mapping[str, str | int | float | bool] | None = None,
    overrides: Sequence[Override] = (),
    allow_unknown: bool = False,
) -> PlannedFile:
    """Return the file that `convert` writes, with its errors.

    `allow_unknown`: whether what a GGUF file cannot carry is left out, with a warning.
    """
    checkpoint = Checkpoint.open(source)
    if type is None:
        type, stored = _stored_types(checkpoint)
        overrides = (*overrides, *stored)  # the first that matches wins
    kind = file_type(type)
    read = Config(checkpoint.config)
    family = _family(checkpoint)
    family = (family.variant(read) or family).for_tensors(checkpoint.tensors)
    config = family.complete(read)
    generated, multipliers = family.generated(config), family.multipliers(config)
    tied = family.is_tied(config)
    modules = read_modules(checkpoint)
    parameters = _parameters(checkpoint, family, read, config, modules, allow_unknown=allow_unknown)
    tensors = with_model_prefix(checkpoint.tensors.values(), family)
    dense = dense_tensors(checkpoint, modules)
    added = {each.name: each for each in (*dense, *token_heads(checkpoint))}
    plan = family.plan(tensors, parameters, tied=tied) | added
    rows = (plan["token_embd.weight"].shape or (1,))[0]
    refusals = Refusals(allowed=allow_unknown)
    keys: dict[str, object] = {
        "general.architecture": family.architecture,
        "general.type": "model",
        "general.name": source.resolve().name,
        "general.file_type": kind.number,
        "general.quantization_version": QUANTIZATION_VERSION,
        **encoder_keys(checkpoint, modules, family.architecture, parameters, dense),
        **{f"{family.architecture}.{key}": value for key, value in parameters.items()},
        **family.tensor_keys(checkpoint.tensors),
        **family.listed(tensors, parameters),
        **tokenizer_metadata(checkpoint, rows, refusals),
        **prompts(checkpoint),
        **family.checkpoint_keys(checkpoint),
        **_training(checkpoint),
        **(metadata or {}),
    }
    if not refusals.messages:
        compare_tokens(checkpoint, keys).require()
    shapes = {name: tensor.shape or (1,) for name, tensor in plan.items()}
    model = ModelShape.of(family.architecture, parameters)
    types = _types(shapes, kind, model, overrides)
    planned = [
        *_generated_tensors(generated),
        *_checkpoint_tensors(plan, family, parameters, types, multipliers),
    ]
    file = PlannedFile(keys, sorted(planned, key=lambda tensor: tensor_order(tensor.name)))
    check_plan(file)
    return file


def _parameters(
    checkpoint: Checkpoint,
    family: Family,
    read: Config,
    config: Config,
    modules: Modules,
    *,
    allow_unknown: bool,
) -> Parameters:
    """Return the parameters of a model, from files of which every key is used or irrelevant.

    `config` is what was `read`, completed with the family's defaults.

    Raises:
        UnsupportedModelError: naming keys that are neither, unless `allow_unknown`.
    """
    check_quantization(config, family.quantizations)
    parameters = family.adapt(family.parameters(config), checkpoint.tensors)
    parameters |= family.tensor_keys(checkpoint.tensors)
    # A model that has lost its encoder keeps the files about pictures.
    has_encoder = any(key.startswith("vision.") for key in parameters)
    processor, beside = divide_settings(_image_processor(checkpoint))
    parameters |= family.image_settings(processor)
    check_config(read, is_allowed=allow_unknown)
    context = parameters.get("context_length")
    check_files(checkpoint, modules, context, is_allowed=allow_unknown)
    if family.image_steps is not None and has_encoder:
        strange = check_images(checkpoint, processor, family.image_steps, parameters)
        report(list(strange), is_allowed=allow_unknown)
    if family.sound_steps is not None:
        sound = _feature_extractor(checkpoint, None if family.image_steps is None else beside)
        strange = check_sounds(sound, family.sound_steps, parameters)
        report(list(strange), is_allowed=allow_unknown)
    return parameters


def _image_processor(checkpoint: Checkpoint) -> Config:
    """Return the image processor's settings; as in transformers, those among others' come first."""
    whole = Config(checkpoint.json(PROCESSOR_FILE) or {}, PROCESSOR_FILE)
    if "image_processor" in whole:
        return whole.section("image_processor")
    return Config(checkpoint.json(IMAGE_FILE) or {}, IMAGE_FILE)


def _feature_extractor(checkpoint: Checkpoint, beside: Config | None) -> Config:
    """Return the feature extractor's settings.

    `beside` are those among the image processor's; None for a model that has none.
    """
    whole = Config(checkpoint.json(PROCESSOR_FILE) or {}, PROCESSOR_FILE)
    if "feature_extractor" in whole:
        return whole.section("feature_extractor")
    return beside or Config(checkpoint.json(IMAGE_FILE) or {}, IMAGE_FILE)


def _stored_types(checkpoint: Checkpoint) -> tuple[str, tuple[Override, ...]]:
    """Return the type that most of a checkpoint's weights have, and those of quantized experts."""
    sizes: Counter[str] = Counter()
    for tensor in checkpoint.tensors.values():
        sizes["F32" if tensor.dtype == "F64" else tensor.dtype] += tensor.size_bytes
    found = [kind for kind, _ in sizes.most_common() if kind in ("F32", "F16", "BF16")]
    return found[0] if found else "BF16", (_MXFP4_EXPERTS,) if sizes["U8"] else ()


def _types(
    shapes: Mapping[str, tuple[int, ...]],
    kind: FileType,
    model: ModelShape,
    overrides: Sequence[Override],
) -> dict[str, GGMLType]:
    """Return the type of each tensor: that of the quant mix, else that of its base type."""
    types = {name: storage_type(name, shape, kind.base) for name, shape in shapes.items()}
    if kind.base.is_quantized or overrides:
        types |= choose_types(shapes, kind, model, overrides)
    return types


def _family(checkpoint: Checkpoint) -> Family:
    """Return the family of a checkpoint; one that embeds texts may lack the output."""
    config, known = checkpoint.config, known_families()
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    if name is None:
        name = _usual_architecture(config.get("model_type"), known)
    bare = str(name).removesuffix("Model").removesuffix("Text")  # Gemma3TextModel
    whole = name if name in known else f"{bare}ForCausalLM"
    family = known.get(whole)
    if family is None:
        raise UnsupportedModelError(
            f"architecture {name!r} is not known; docs/models.md lists those that are"
        )
    if whole != name or checkpoint.json(read_modules(checkpoint).pooling) is not None:
        return replace(family, optional=family.optional | {"output"})
    return family


def _usual_architecture(kind: object, known: Iterable[str]) -> str | None:
    """Return the architecture of a model_type: `qwen3_moe` is that of Qwen3MoeForCausalLM."""
    parts = ("ForCausalLM", "ForConditionalGeneration", "Model")
    plain = {name.lower(): name for name in known}
    wanted = (f"{kind}".replace("_text", "").replace("_", "") + part.lower() for part in parts)
    spelled = (f"{kind}".removesuffix("_text") + part.lower() for part in parts)
    return next((plain[name] for name in (*wanted, *spelled) if name in plain), None)


def _training(checkpoint: Checkpoint) -> dict[str, object]:
    """Return the scalar values of training.json, which document how the model was made."""
    training = checkpoint.json(_TRAINING_FILE) or {}
    return {
        f"tampu.training.{key}": value
        for key, value in training.items()
        if isinstance(value, str | int | float | bool)
    }


def _generated_tensors(arrays: Mapping[str, npt.NDArray[np.float32]]) -> Iterator[TensorToWrite]:
    for name, values in arrays.items():
        parts = partial(encoded_parts, name, values, GGMLType.F32)
        yield TensorToWrite(name, values.shape, GGMLType.F32, parts)


def _checkpoint_tensors(
    plan: Mapping[str, StoredTensor],
    family: Family,
    parameters: Parameters,
    types: Mapping[str, GGMLType],
    multipliers: Mapping[str, npt.NDArray[np.float32]],
) -> Iterator[TensorToWrite]:
    for name, tensor in plan.items():
        kind = types[name]
        multiplier = multipliers.get(template_of(name))
        parts = partial(_parts, name, tensor, family, parameters, kind, multiplier)
        yield TensorToWrite(name, tensor.shape or (1,), kind, parts)


def _parts(
    name: str,
    tensor: StoredTensor,
    family: Family,
    parameters: Parameters,
    kind: GGMLType,
    multiplier: npt.NDArray[np.float32] | None,
) -> Iterator[ChunkSource]:
    """Yield a tensor's bytes; one already stored in the wanted type is copied."""
    stored = np.atleast_1d(tensor.read())
    try:
        values = family.transform(name, stored, parameters)
        values = family.transform_inputs(name, values, parameters)
        values = values if multiplier is None else to_float32(values) * multiplier
    except (ValueError, IndexError) as error:  # rows that do not divide into heads, and the like
        reason = f"the shape {list(stored.shape)} does not match config.json"
        raise ModelFileError(tensor.name, reason) from error
    if values is stored and tensor.dtype == kind.name:
        yield FileRange(tensor.path, tensor.offset, tensor.size_bytes)
    else:
        yield from encoded_parts(name, values, kind)
