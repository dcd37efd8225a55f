"""The architectures by name, and the loading of a model's weights into its architecture."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from tampu import nn
from tampu.errors import ModelFileError, UnsupportedModelError
from tampu.ml import RopeMode, Tensor, Weights

_RANK = 4  # GGUF's pooling type of models that rank documents

ASSISTANT = "assistant."
"""The prefix of an assistant's tensors, whose names are those of the model's otherwise."""

log = logging.getLogger("tampu")

__all__ = [
    "ASSISTANT",
    "Architecture",
    "architectures",
    "assisted",
    "bind_model",
    "check_text",
    "plug_ins",
]


@dataclass(frozen=True, slots=True)
class Architecture:
    """The class of an architecture, and options that its files do not have.

    Attributes:
        path: `module:class`.
        constants: options that are not in files.
        decision_types: the classes of files with a `decision.type`, by its values.
        assistants: the classes of assistants, by the architectures of their files.
    """

    path: str
    constants: Mapping[str, Any] = field(default_factory=dict)
    decision_types: Mapping[str, str] = field(default_factory=dict)
    assistants: Mapping[str, str] = field(default_factory=dict)

    def load(self, decision_type: str = "") -> type[nn.Model]:
        """Import the class."""
        found: type[nn.Model] = _imported(self.decision_types.get(decision_type, self.path))
        return found

    def load_assistant(self, architecture: str) -> type[nn.Assistant]:
        """Import the class of an assistant.

        Raises:
            UnsupportedModelError: if it is not one of this architecture.
        """
        if architecture not in self.assistants:
            raise UnsupportedModelError(
                f"architecture '{architecture}' does not guess tokens of this one"
            )
        found: type[nn.Assistant] = _imported(self.assistants[architecture])
        return found


def _imported(path: str) -> Any:
    module, _, name = path.partition(":")
    return vars(importlib.import_module(module))[name]


_BUILT_IN: Mapping[str, Architecture] = {
    "afmoe": Architecture("tampu.models.afmoe:Afmoe"),
    "apertus": Architecture("tampu.models.apertus:Apertus"),
    "baichuan": Architecture(
        "tampu.models.baichuan:Baichuan",
        {"rope_mode": RopeMode.INTERLEAVED, "may_rotate": True},
    ),
    "bailingmoe2": Architecture("tampu.models.glm4moe:Glm4Moe"),
    "bert": Architecture("tampu.models.bert:Bert"),
    "bloom": Architecture("tampu.models.bloom:Bloom", {"activate": Tensor.gelu}),
    "codeshell": Architecture("tampu.models.starcoder2:StarCoder2"),
    "cohere2": Architecture("tampu.models.cohere2:Cohere2", {"rope_mode": RopeMode.INTERLEAVED}),
    "command-r": Architecture("tampu.models.cohere2:Cohere2", {"rope_mode": RopeMode.INTERLEAVED}),
    "deepseek2": Architecture(
        "tampu.models.deepseek2:DeepSeek2", {"rope_mode": RopeMode.INTERLEAVED}
    ),
    "deepseek2-ocr": Architecture("tampu.models.deepseek2_ocr:DeepSeek2Ocr"),
    "dots1": Architecture("tampu.models.glm4moe:Glm4Moe"),
    "ernie4_5": Architecture("tampu.models.llama:Llama", {"rope_mode": RopeMode.INTERLEAVED}),
    "ernie4_5-moe": Architecture("tampu.models.ernie45_moe:Ernie45Moe"),
    "eurobert": Architecture("tampu.models.eurobert:EuroBert"),
    "exaone": Architecture("tampu.models.llama:Llama"),
    "exaone-moe": Architecture("tampu.models.exaone_moe:ExaoneMoe"),
    "exaone4": Architecture("tampu.models.exaone4:Exaone4"),
    "falcon": Architecture("tampu.models.falcon:Falcon"),
    "falcon-h1": Architecture("tampu.models.falcon_h1:FalconH1"),
    "gemma": Architecture("tampu.models.gemma:Gemma"),
    "gemma-embedding": Architecture("tampu.models.gemma_embedding:GemmaEmbedding"),
    "gemma-embedding2": Architecture("tampu.models.gemma_embedding2:GemmaEmbedding2"),
    "gemma2": Architecture("tampu.models.gemma2:Gemma2"),
    "gemma3": Architecture("tampu.models.gemma3:Gemma3"),
    "gemma4": Architecture(
        "tampu.models.gemma4:Gemma4",
        assistants={"gemma4-assistant": "tampu.models.gemma4_assistant:Gemma4Assistant"},
    ),
    "glm4": Architecture("tampu.models.glm4:Glm4"),
    "glm4moe": Architecture("tampu.models.glm4moe:Glm4Moe"),
    "gpt-oss": Architecture("tampu.models.gptoss:GptOss"),
    "gpt2": Architecture("tampu.models.gpt2:GPT2"),
    "gptj": Architecture(
        "tampu.models.falcon:Falcon",
        {"activate": Tensor.gelu, "rope_mode": RopeMode.INTERLEAVED},
    ),
    "gptneox": Architecture("tampu.models.gptneox:GPTNeoX"),
    "gptoss": Architecture("tampu.models.gptoss:GptOss"),  # Ollama's name
    "granite": Architecture("tampu.models.granite:Granite", {"rope_mode": RopeMode.INTERLEAVED}),
    "granite_swa": Architecture(
        "tampu.models.granite_swa:GraniteSwa", {"rope_mode": RopeMode.INTERLEAVED}
    ),
    "granitehybrid": Architecture(
        "tampu.models.granitehybrid:GraniteHybrid", {"rope_mode": RopeMode.INTERLEAVED}
    ),
    "granitemoe": Architecture("tampu.models.granitemoe:GraniteMoe"),
    "hunyuan-dense": Architecture("tampu.models.hunyuan:Hunyuan"),
    "hunyuan-moe": Architecture("tampu.models.hunyuan_moe:HunyuanMoe"),
    "hy_v3": Architecture("tampu.models.glm4moe:Glm4Moe"),
    "internlm2": Architecture("tampu.models.llama:Llama", {"rope_mode": RopeMode.INTERLEAVED}),
    "jais2": Architecture("tampu.models.starcoder2:StarCoder2", {"activate": nn.relu_squared}),
    "jamba": Architecture("tampu.models.jamba:Jamba"),
    "jina-bert-v2": Architecture("tampu.models.jina_bert_v2:JinaBertV2"),
    "jina-bert-v3": Architecture("tampu.models.nomic_bert:NomicBert"),
    "kimi-linear": Architecture("tampu.models.kimi_linear:KimiLinear"),
    "laguna": Architecture("tampu.models.laguna:Laguna"),
    "lfm2": Architecture("tampu.models.lfm2:Lfm2"),
    "lfm2moe": Architecture("tampu.models.lfm2:Lfm2"),
    "llama": Architecture("tampu.models.llama:Llama", {"rope_mode": RopeMode.INTERLEAVED}),
    "llama4": Architecture("tampu.models.llama4:Llama4"),
    "mamba": Architecture("tampu.models.mamba:Mamba"),
    "mamba2": Architecture("tampu.models.mamba2:Mamba2"),
    "mellum": Architecture("tampu.models.mellum:Mellum"),
    "minicpm": Architecture("tampu.models.granite:Granite", {"rope_mode": RopeMode.INTERLEAVED}),
    "minicpm3": Architecture("tampu.models.minicpm3:MiniCPM3"),
    "minimax-m2": Architecture("tampu.models.minimax_m2:MiniMaxM2"),
    "mistral3": Architecture("tampu.models.mistral3:Mistral3"),
    "mistral4": Architecture(
        "tampu.models.deepseek2:DeepSeek2", {"rope_mode": RopeMode.INTERLEAVED}
    ),
    "mllama": Architecture("tampu.models.mllama:Mllama"),
    "modern-bert": Architecture(
        "tampu.models.modern_bert:ModernBert", decision_types={"laya": "tampu.models.laya:Laya"}
    ),
    "mpt": Architecture("tampu.models.bloom:Bloom"),
    "muse-glimmer": Architecture(
        "tampu.models.muse_glimmer:MuseGlimmer", {"rope_mode": RopeMode.INTERLEAVED}
    ),
    "nemotron": Architecture("tampu.models.starcoder2:StarCoder2", {"activate": nn.relu_squared}),
    "nemotron_h": Architecture("tampu.models.nemotron_h:NemotronH"),
    "nemotron_h_moe": Architecture("tampu.models.nemotron_h:NemotronH"),
    "neo-bert": Architecture("tampu.models.neo_bert:NeoBert", {"rope_mode": RopeMode.INTERLEAVED}),
    "nomic-bert": Architecture("tampu.models.nomic_bert:NomicBert"),
    "nomic-bert-moe": Architecture("tampu.models.nomic_bert:NomicBert"),
    "olmo": Architecture("tampu.models.olmo:Olmo", {"rope_mode": RopeMode.INTERLEAVED}),
    "olmo2": Architecture("tampu.models.olmo2:Olmo2"),
    "olmoe": Architecture("tampu.models.olmoe:Olmoe"),
    "orion": Architecture("tampu.models.stablelm:StableLM"),
    "paddleocr": Architecture("tampu.models.qwen25vl:Qwen25VL"),
    "phi2": Architecture("tampu.models.falcon:Falcon", {"activate": Tensor.gelu}),
    "phi3": Architecture("tampu.models.llama:Llama"),
    "qwen2": Architecture("tampu.models.llama:Llama"),
    "qwen25vl": Architecture("tampu.models.qwen25vl:Qwen25VL"),
    "qwen2moe": Architecture("tampu.models.llama:Llama", {"renormalize": False}),
    "qwen2vl": Architecture("tampu.models.qwen25vl:Qwen25VL"),  # llama.cpp's name
    "qwen3": Architecture("tampu.models.llama:Llama"),
    "qwen35": Architecture("tampu.models.qwen35:Qwen35"),
    "qwen35moe": Architecture("tampu.models.qwen35:Qwen35"),
    "qwen3moe": Architecture("tampu.models.llama:Llama"),
    "qwen3next": Architecture("tampu.models.qwen35:Qwen35", {"is_tiled": False}),
    "qwen3vl": Architecture("tampu.models.qwen3vl:Qwen3VL"),
    "qwen3vlmoe": Architecture("tampu.models.qwen3vl:Qwen3VL"),
    "refact": Architecture("tampu.models.baichuan:Baichuan"),
    "seed_oss": Architecture("tampu.models.llama:Llama"),
    "smollm3": Architecture("tampu.models.smollm3:SmolLM3", {"rope_mode": RopeMode.INTERLEAVED}),
    "stablelm": Architecture("tampu.models.stablelm:StableLM"),
    "starcoder": Architecture("tampu.models.gpt2:GPT2"),
    "starcoder2": Architecture("tampu.models.starcoder2:StarCoder2"),
    "xverse": Architecture("tampu.models.llama:Llama", {"rope_mode": RopeMode.INTERLEAVED}),
}


def architectures() -> dict[str, Architecture]:
    """Return the known architectures by their names in files; plug-ins may add to them.

    A plug-in package names its classes in the entry-point group `tampu.models`.
    """
    plugged = {point.name: Architecture(point.value) for point in plug_ins("tampu.models")}
    return {**_BUILT_IN, **plugged}


@cache
def plug_ins(group: str) -> tuple[EntryPoint, ...]:
    """Return what installed packages name in a group of entry points.

    A look reads a file of every installed package, which takes milliseconds: there is one.
    """
    return tuple(entry_points(group=group))


def assisted(architecture: str) -> str | None:
    """Return the architecture whose tokens an assistant guesses; None: it is none of these."""
    entries = architectures().items()
    return next((name for name, entry in entries if architecture in entry.assistants), None)


def check_text(architecture: str) -> None:
    """Check that a file of an architecture has a text model.

    Raises:
        UnsupportedModelError: for a projector, and for an assistant.
    """
    if architecture == "clip":
        raise UnsupportedModelError(
            "the file is a projector (mmproj): it has encoders, and no text model. Load the "
            "model's own file, and name this one as projector= of Engine.load, or in a second FROM "
            "of a Modelfile"
        )
    if target := assisted(architecture):
        raise UnsupportedModelError(
            f"architecture '{architecture}' guesses the tokens of a model of '{target}', which its "
            "file is given to as a draft model (--draft)"
        )


def bind_model(
    weights: Weights,
    projector: Weights | None = None,
    assistant: Weights | None = None,
    *,
    predicts: bool = False,
) -> nn.Model:
    """Return the model in a file; its weights are not loaded yet.

    Args:
        weights: of the file.
        projector: of a second file with the encoders, in llama.cpp's layout; None: they are in the
            first file, or there are none.
        assistant: of the file of an assistant; None: there is none.
        predicts: whether its layer of multi-token prediction is used, if it has one that fits.

    Raises:
        UnsupportedModelError: for an architecture that is not known, or a projector for a model
            without vision.
        ModelFileError: for options or tensors that are missing, invalid or unknown.
    """
    metadata = weights.file.metadata
    entry = architectures().get(metadata.architecture)
    if entry is None:
        check_text(metadata.architecture)
        raise UnsupportedModelError(
            f"architecture '{metadata.architecture}' is not known; docs/models.md lists those that "
            "are; others need the engine llamacpp"
        )
    kind = entry.load(metadata.string("decision.type", ""))
    options = nn.read_options(kind.options_type, metadata, entry.constants)
    model = nn.bind(kind, weights, options)
    model.options = options
    name = kind.__name__
    model.vision = _bind_encoder(name, kind.vision_types, "vision", weights, projector)
    model.audio = _bind_encoder(name, kind.audio_types, "audio", weights, projector)
    model.mtp = _bind_mtp(model, weights) if predicts else None
    model.assistant = _bind_assistant(entry, model, weights, assistant) if assistant else None
    if metadata.integer("pooling_type", default=0) == _RANK and not model.ranks:
        what = "it ranks (pooling_type 4), but has neither cls.weight nor cls.output.weight"
        raise ModelFileError("tensors", what)
    unused = (*model.unused, *(name for each in model.encoders for name in each.unused))
    files = tuple(filter(None, (weights, projector, assistant)))
    for each in files:
        left = [name for name in each.unused() if not name.startswith(unused)]
        if left and each is weights and projector and weights.file.modalities:
            held = " and ".join(weights.file.modalities)
            raise UnsupportedModelError(
                f"the model's own file has its encoders ({held}): load it without the projector"
            )
        if left:
            raise ModelFileError("tensors", f"not known to the architecture: {', '.join(left[:8])}")
    for each in files:
        _warn_of_encoders(each, model)
    return model


def _bind_assistant(
    entry: Architecture, model: nn.Model, weights: Weights, source: Weights
) -> nn.Assistant:
    """Return the assistant in a file, whose tensors have the prefix `assistant.`."""
    kind = entry.load_assistant(source.file.metadata.architecture)
    options = nn.read_options(kind.options_type, source.file.metadata, {})
    assistant = nn.bind(kind, source, options, ASSISTANT)
    assistant.options = options
    vocabulary = weights.file.tensors["token_embd.weight"].shape[0]
    assistant.check(model.options.embedding, vocabulary)
    return assistant


def _bind_mtp(model: nn.Model, weights: Weights) -> nn.MTPLayer | None:
    """Return a file's layer of multi-token prediction; None if it has none that can be used."""
    if model.mtp_type is None or not model.mtp_prefixes:
        return None
    (prefix, *others), name = model.mtp_prefixes, weights.file.path.name
    if not any(each.startswith(f"{prefix}nextn.") for each in weights.file.tensors):
        return None  # its keys say that there is one, as after training without it
    if others:
        log.warning(
            "%s: of %d layers of multi-token prediction the first one is used",
            name, 1 + len(others),
        )  # fmt: skip
    try:
        layer = nn.bind(model.mtp_type, weights, model.options, prefix)
        layer.check(model.options.embedding, weights.file.tensors["token_embd.weight"].shape[0])
        return layer
    except ModelFileError as error:
        log.warning("%s: multi-token prediction is not used: %s", name, error)
        return None


def _warn_of_encoders(weights: Weights, model: nn.Model) -> None:
    """Log which encoders of a file the architecture does not have."""
    for prefix, what, encoder in (("a.", "audio", model.audio), ("v.", "images", model.vision)):
        if not encoder and any(name.startswith(prefix) for name in weights.unused()):
            name = weights.file.path.name
            log.warning("%s has an encoder of %s, which is not supported: left out", name, what)


E = TypeVar("E", bound=nn.Encoder)


def _bind_encoder(
    name: str,
    kinds: tuple[type[E], ...],
    modality: str,
    weights: Weights,
    projector: Weights | None,
) -> E | None:
    """Return the encoder of a modality, "vision" or "audio"; None if the files have none.

    Args:
        name: of the architecture's class, for messages.
        kinds: the classes of its encoders.
        modality: whose encoder it is.
        weights: of the model's own file.
        projector: of the file of its encoders; None: they are in its own file.
    """
    source = projector or weights
    held = source.file.modalities or (("vision",) if projector else ())  # else refused by its type
    if modality not in held:
        return None
    kind = _encoder_type(name, kinds, modality, source, is_apart=projector is not None)
    if kind is None:
        return None
    text = weights.file.metadata
    options = nn.read_options(kind.options_type, source.file.metadata, {}, text)
    encoder = nn.bind(kind, source, options)
    encoder.options = options
    encoder.tokens = nn.find_special_tokens(text, kind.special_tokens)
    return encoder


def _encoder_type(
    name: str, known: tuple[type[E], ...], modality: str, source: Weights, *, is_apart: bool
) -> type[E] | None:
    """Return the class of an encoder, None if the architecture has none.

    A file of text and encoders need not state it.
    """
    metadata = source.file.metadata
    usual = "mlp" if is_apart and modality == "vision" else ""
    stated = metadata.string(f"{modality}.projector_type", metadata.string("projector_type", usual))
    for each in known:
        if stated in each.projectors:
            return each
    if not is_apart:
        return known[0] if known and modality == "vision" else None
    if not known and modality == "audio":
        return None  # its tensors are left out, with a warning
    names = ", ".join(name for each in known for name in each.projectors) or "none"
    raise UnsupportedModelError(
        f"{name} does not support a projector of type '{stated}'; supported: {names}"
    )
