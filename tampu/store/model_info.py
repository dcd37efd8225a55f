"""Model info: the metadata of a model's file, read without loading weights."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tampu.chat.fim import fim_tokens
from tampu.chat.template import ChatTemplate
from tampu.chat.template_loader import PromptTemplate, model_template
from tampu.chat.unusable_template import UnusableTemplate
from tampu.gguf_compat import architecture_of
from tampu.ml.gguf import GGUFFile, read_gguf
from tampu.ml.metadata import Metadata
from tampu.ml.types import GGMLType
from tampu.store.draft import is_assistant
from tampu.text import valid_text

# `general.file_type`: the common names of quantizations. The numbers are those of llama.cpp's
# `llama_ftype`, which the GGUF specification refers to.
FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K",
    11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S",
    17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS",
    23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M",
    30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
}  # fmt: skip


_DECISIONS = "laya"  # decoders with another type answer as any model does
_RANK = 4  # GGUF's pooling type of models that rank documents
_TEMPLATE_CAPABILITIES = ("tools", "thinking", "insert")  # depend on the template


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model as its file describes it.

    Attributes:
        path: the file.
        name: what messages call it; the file's name, unless it has another one.
        size_bytes: its size.
        architecture: GGUF's name of the architecture.
        parameters: the number of weights.
        tensors: the number of tensors.
        quantization: the name of the file's quantization, such as Q4_K_M.
        context: the training context length in tokens.
        embedding_length: the width of its hidden state.
        embedding_length_out: the width of its embeddings, which dense layers may change.
        capabilities: completion, embedding, rerank, decision or draft (an assistant, which
            guesses another model's tokens), and those supported of vision,
            audio, tools, thinking and insert (fill-in-the-middle).
        template: its chat template; empty if it has none.
        template_problem: why conversations are refused or, if it begins with "for tools", those
            with tools; empty if the template compiles.
        metadata: all keys.
        loaded_as: llama.cpp's name of the architecture, by which an engine is chosen.
    """

    path: Path
    name: str
    size_bytes: int
    architecture: str
    parameters: int
    tensors: int
    quantization: str
    context: int
    embedding_length: int
    embedding_length_out: int
    capabilities: tuple[str, ...]
    template: str
    template_problem: str
    metadata: Metadata
    loaded_as: str

    @property
    def parameter_size(self) -> str:
        """The number of parameters, such as 7.6B or 494.03M."""
        return human_number(self.parameters)

    @property
    def license(self) -> str:
        """The license's name; empty if the file has none."""
        return self.metadata.string("general.license", default="")


def describe(file: GGUFFile) -> ModelInfo:
    """Return the model info of a parsed file."""
    metadata = file.metadata
    template = model_template(metadata)
    capabilities = _capabilities(file, template)
    return ModelInfo(
        path=file.path,
        name=file.path.name,
        size_bytes=file.size_bytes,
        architecture=metadata.architecture,
        loaded_as=architecture_of(file),
        parameters=sum(math.prod(tensor.shape) for tensor in file.tensors.values()),
        tensors=len(file.tensors),
        quantization=_quantization(file),
        context=metadata.integer("context_length", default=0),
        embedding_length=metadata.integer("embedding_length", default=0),
        embedding_length_out=_embedding_length_out(file, capabilities),
        capabilities=capabilities,
        template=template.source if template else "",
        template_problem=_problem(template),
        metadata=metadata,
    )


def with_template(info: ModelInfo, template: PromptTemplate) -> ModelInfo:
    """Return the info of a model with another template than its file's."""
    kept = [name for name in info.capabilities if name not in _TEMPLATE_CAPABILITIES]
    capabilities = (*kept, *_capabilities_of(template, info.metadata))
    return replace(
        info,
        template=template.source,
        template_problem=_problem(template),
        capabilities=capabilities,
    )


def chats_refused(problem: str) -> str:
    """Return a note on a template that cannot be used, for the user."""
    return f"the chat template cannot be used, so chats are refused: {problem}; give a TEMPLATE"


def with_encoders(info: ModelInfo, modalities: Iterable[str]) -> ModelInfo:
    """Return the info of a model with encoders in other files, of vision or audio."""
    first, *rest = info.capabilities
    added = [each for each in modalities if each not in rest]
    return replace(info, capabilities=(first, *added, *rest))


def read_model_info(path: str | Path) -> ModelInfo:
    """Read the info of a model file without loading weights.

    Raises:
        ModelNotFoundError: if the file does not exist.
        ModelFileError: if it is not a valid model file.
    """
    return describe(read_gguf(path))


def plain_metadata(metadata: Metadata, *, max_items: int | None = None) -> dict[str, Any]:
    """Return metadata as JSON values; arrays of more than `max_items` become None."""
    return {key: _plain(value, max_items) for key, value in metadata.items()}


def human_number(count: int) -> str:
    """Return a count in short form: 7.6B, 494.03M, 12K."""
    for unit, letter, digits in ((10**9, "B", 1), (10**6, "M", 2), (10**3, "K", 0)):
        if count >= unit:
            return f"{count / unit:.{0 if count % unit == 0 else digits}f}{letter}"
    return str(count)


def _quantization(file: GGUFFile) -> str:
    """Return the file's stated quantization, else the type of most of its weights."""
    stated = file.metadata.get("general.file_type")
    if isinstance(stated, int) and stated in FILE_TYPES:
        return FILE_TYPES[stated]
    sizes: Counter[GGMLType] = Counter()
    for tensor in file.tensors.values():
        sizes[tensor.type] += tensor.size_bytes
    return sizes.most_common(1)[0][0].name if sizes else "unknown"


def _embedding_length_out(file: GGUFFile, capabilities: Sequence[str]) -> int:
    """Return the width of embeddings: that of the last dense layer, else what the file says."""
    metadata = file.metadata
    width = metadata.integer("embedding_length", default=0)
    if "embedding" not in capabilities:
        return width
    layers = (file.tensors.get(f"{name}.weight") for name in ("dense_3", "dense_2"))
    found = next((layer.shape[0] for layer in layers if layer and layer.shape), None)
    return found or metadata.integer("embedding_length_out", default=width)


def _capabilities(file: GGUFFile, template: PromptTemplate | None) -> tuple[str, ...]:
    metadata = file.metadata
    is_encoder = not metadata.boolean("attention.causal", default=True)
    is_embedder = is_encoder or metadata.has("pooling_type")
    kind = "embedding" if is_embedder else "completion"
    kind = "rerank" if metadata.integer("pooling_type", default=0) == _RANK else kind
    kind = "decision" if metadata.string("decision.type", "") == _DECISIONS else kind
    if is_assistant(file):
        return ("draft",)
    found = [kind]
    return (*found, *file.modalities, *_capabilities_of(template, file.metadata))


def _capabilities_of(template: PromptTemplate | None, metadata: Metadata) -> list[str]:
    inserts = template is not None and template.supports_insert
    held = (
        template is not None and template.supports_tools,
        template is not None and template.supports_thinking,
        inserts or bool(fim_tokens(metadata)),
    )
    return [name for name, is_there in zip(_TEMPLATE_CAPABILITIES, held, strict=True) if is_there]


def _problem(template: PromptTemplate | None) -> str:
    if isinstance(template, UnusableTemplate):
        return template.problem
    return template.tool_problem if isinstance(template, ChatTemplate) else ""


def _plain(value: object, max_items: int | None) -> object:
    if isinstance(value, str):
        return valid_text(value)
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (np.ndarray, Sequence)):
        if max_items is not None and len(value) > max_items:
            return None
        return (
            value.tolist()
            if isinstance(value, np.ndarray)
            else [valid_text(item) for item in value]
        )
    return str(value)
