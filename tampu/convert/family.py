"""Model families: the declarative part of a conversion, and the rules common to all of them.

A family is a table of tensor names, a function from config.json to GGUF's keys, and if needed a
transformation of values. Names match exactly: unknown and missing tensors are errors. `{}` stands
for a layer number.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from tampu.convert.checkpoint import Checkpoint, Stored, StoredTensor, to_float32
from tampu.convert.config import Config, Rope, read_rope, rope_settings
from tampu.convert.keys.image import ImageSteps
from tampu.convert.keys.sound import SoundSteps
from tampu.convert.lazy_tensor import View, stacked, viewed
from tampu.convert.tied_output import drop_tied_output
from tampu.errors import ModelFileError, UnsupportedModelError

Parameters = dict[str, object]
_NUMBER = re.compile(r"\.(\d+)\.")
_OWNERS = {"v.sam.": "vision.sam.", "v.": "vision.", "a.": "audio."}  # of numbers of layers
_SHOWN = 5
log = logging.getLogger("tampu")


def unchanged(name: str, values: Stored, parameters: Parameters) -> Stored:  # noqa: ARG001
    """Return the values unchanged: the default transformation."""
    return values


def no_tensors(config: Config) -> dict[str, npt.NDArray[np.float32]]:  # noqa: ARG001
    """Return no tensors: the default for tensors generated from the configuration."""
    return {}


def as_stated(parameters: Parameters, names: Collection[str]) -> Parameters:  # noqa: ARG001
    """Return the keys unchanged: the default adaptation."""
    return parameters


def no_settings(processor: Config) -> Parameters:  # noqa: ARG001
    """Return no keys: the default for the image processor's settings."""
    return {}


def no_variant(config: Config) -> Family | None:  # noqa: ARG001
    """Return no other family: the default."""
    return None


def no_tensor_keys(tensors: Mapping[str, StoredTensor]) -> Parameters:  # noqa: ARG001
    """Return no keys: the default for values that are not tensors in GGUF."""
    return {}


def no_checkpoint_keys(checkpoint: Checkpoint) -> Mapping[str, object]:  # noqa: ARG001
    """Return no keys: the default for those that no table of files has."""
    return {}


def nothing_fused(parameters: Parameters) -> Mapping[str, Mapping[str, View]]:  # noqa: ARG001
    """Return no views: the default for tensors whose parts depend on config.json."""
    return {}


@dataclass(frozen=True, kw_only=True)
class Family:
    """How one family's checkpoints become GGUF files.

    Attributes:
        architecture: GGUF's general.architecture; the prefix of the keys.
        checkpoints: the names in config.json's `architectures`.
        multipliers: config.json -> what the values of tensors are multiplied by, by their GGUF
            names with `{}` for a layer's number.
        architectures: another architecture -> whether it is that of a checkpoint with tensors of
            these GGUF names, without layers' numbers; the first is taken.
        names: checkpoint tensor -> GGUF tensor, both without `.weight` and `.bias`.
        parameters: config.json -> keys without the architecture's prefix; refuses settings that
            the architecture does not support.
        prefixes: replacements at the start of a name, in this order, before the lookup in `names`:
            the same model has been saved under several.
        ignored: checkpoint tensors that are not weights of the model.
        optional: names that a checkpoint may lack.
        tied: whether the output is the token embedding by default.
        defaults: values of the text model's configuration that files may lack.
        quantizations: the methods in `quantization_config` whose tensors it can read.
        transform: (GGUF name, values, parameters) -> values as the architecture stores them; of a
            matrix it may reorder the outputs.
        transform_inputs: the same, for a matrix whose inputs are in another order.
        generated: tensors computed from config.json.
        numbers: names of tensors of one number -> the full key of the list of all layers' numbers.
        stacks: names with a layer's and an expert's number -> GGUF's name of the stacked experts.
        splits: full names of fused tensors -> the view of each part, by its full GGUF name.
        fused: as `splits`, for parts that depend on the keys; names may have their numbers.
        image_settings: preprocessor_config.json, if there is one -> keys.
        image_steps: what the encoder does to pictures and no key changes; None: it has no encoder.
        sound_steps: the same, for sounds.
        gather: combines, renames or drops stored tensors before anything else.
        adapt: (keys, names of the checkpoint's tensors) -> keys, for what config.json may state
            wrongly.
        variant: config.json -> the family that it is of, where one name has several.
        checkpoint_keys: checkpoint -> full keys that neither config.json nor the tokenizer's files
            state as they are.
        tensor_keys: stored tensors by name -> keys, of those that are not tensors in GGUF.
        text_only: the family of a checkpoint without the tensors of the vision encoder; None: it
            must have them.
    """

    architecture: str
    checkpoints: tuple[str, ...]
    names: Mapping[str, str]
    parameters: Callable[[Config], Parameters]
    multipliers: Callable[[Config], Mapping[str, npt.NDArray[np.float32]]] = no_tensors
    architectures: Mapping[str, Callable[[Collection[str]], bool]] = field(default_factory=dict)
    prefixes: tuple[tuple[str, str], ...] = ()
    ignored: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    tied: bool = False
    defaults: Mapping[str, object] = field(default_factory=dict)
    quantizations: tuple[str, ...] = ()
    transform: Callable[[str, Stored, Parameters], Stored] = unchanged
    transform_inputs: Callable[[str, Stored, Parameters], Stored] = unchanged
    generated: Callable[[Config], dict[str, npt.NDArray[np.float32]]] = no_tensors
    numbers: Mapping[str, str] = field(default_factory=dict)
    stacks: Mapping[str, str] = field(default_factory=dict)
    splits: Mapping[str, Mapping[str, View]] = field(default_factory=dict)
    fused: Callable[[Parameters], Mapping[str, Mapping[str, View]]] = nothing_fused
    image_settings: Callable[[Config], Parameters] = no_settings
    image_steps: ImageSteps | None = None
    sound_steps: SoundSteps | None = None
    gather: Callable[[Iterable[StoredTensor]], Iterable[StoredTensor]] = iter
    adapt: Callable[[Parameters, Collection[str]], Parameters] = as_stated
    variant: Callable[[Config], Family | None] = no_variant
    checkpoint_keys: Callable[[Checkpoint], Mapping[str, object]] = no_checkpoint_keys
    tensor_keys: Callable[[Mapping[str, StoredTensor]], Parameters] = no_tensor_keys
    text_only: Family | None = None

    def complete(self, config: Config) -> Config:
        """Return a configuration with the family's defaults, those of transformers' classes."""
        if "text_config" not in config:
            return config.changed(_filled(config.values, self.defaults))
        text = _filled(config.section("text_config").values, self.defaults)
        return config.changed({**config.values, "text_config": text})

    def is_tied(self, config: Config) -> bool:
        """Return whether the output is the token embedding, as one of the configurations says."""
        key, default = "tie_word_embeddings", self.tied
        if "thinker_config" in config:  # Qwen's layout of models that hear
            config = config.section("thinker_config")
        if "text_config" in config:
            default = config.section("text_config").flag(key, default=default)
        default = config.flag(key, default=default)
        return config.flag("tie_embedding", default=default)  # LFM2's name, which comes first

    def for_tensors(self, names: Collection[str]) -> Family:
        """Return the family of a checkpoint: of text alone if all of the encoder was left out."""
        stems = (self._template(name)[0].rpartition(".")[0] for name in names)
        targets = {self.names.get(stem, "") for stem in stems}
        for architecture, is_of_it in self.architectures.items():
            if is_of_it(targets):
                return replace(self, architecture=architecture)
        if self.text_only is None:
            return self
        has_vision = any(target.startswith(("v.", "mm.")) for target in targets)
        return self if has_vision else self.text_only

    def rename(self, name: str) -> str | None:
        """Return the GGUF name of a checkpoint's tensor; None if it is ignored."""
        template, numbers = self._template(name)
        if template in self.ignored or template in self.numbers:
            return None
        if template in self.names:  # a whole name
            return self.names[template].format(*numbers)
        stem, _, leaf = template.rpartition(".")
        if stem not in self.names or leaf not in ("weight", "bias"):
            raise ModelFileError(name, f"is not a tensor of {self.architecture}")
        return f"{self.names[stem].format(*numbers)}.{leaf}"

    def listed(self, tensors: Iterable[StoredTensor], parameters: Parameters) -> Parameters:
        """Return the keys of the numbers that checkpoints have as tensors, one for each layer."""
        layers = parameters["block_count"]
        if not self.numbers or not isinstance(layers, int):
            return {}
        found: dict[str, dict[int, float]] = {key: {} for key in self.numbers.values()}
        for tensor in tensors:
            template, indices = self._template(tensor.name)
            if key := self.numbers.get(template):
                if tensor.shape not in ((), (1,)):
                    raise ModelFileError(tensor.name, f"{list(tensor.shape)} is not one number")
                found[key][int(indices[0])] = float(to_float32(tensor.read()).reshape(-1)[0])
        for key, numbers in found.items():
            if [*sorted(numbers)] != [*range(layers)]:
                reason = f"{key} has numbers for {len(numbers)} of {layers} layers"
                raise ModelFileError("checkpoint", reason)
        return {key: [numbers[layer] for layer in range(layers)] for key, numbers in found.items()}

    def _template(self, name: str) -> tuple[str, list[str]]:
        """Return a checkpoint's name with `{}` in place of its numbers, and the numbers."""
        for old, new in self.prefixes:
            if name.startswith(old):
                name = new + name[len(old) :]
        return template_of(name), _NUMBER.findall(name)

    def plan(
        self, tensors: Iterable[StoredTensor], parameters: Parameters, *, tied: bool
    ) -> dict[str, StoredTensor]:
        """Return the tensors by their GGUF names, in the order of the file."""
        plan: dict[str, StoredTensor] = {}
        splits = {**self.splits, **self.fused(parameters)}
        for name, tensor in self._named(tensors, splits):
            if name in plan:
                both = f"{plan[name].name} and {tensor.name}"
                raise ModelFileError(name, f"duplicate tensor name: {both}")
            if 0 in tensor.shape:
                raise ModelFileError(tensor.name, f"{list(tensor.shape)} has a dimension of zero")
            plan[name] = tensor
        if tied:
            drop_tied_output(plan)
        expected = self._expected(parameters, splits, tied=tied)
        missing = [name for name in expected if name not in plan]
        if missing:
            shown = ", ".join(missing[:_SHOWN]) + (", ..." if len(missing) > _SHOWN else "")
            raise ModelFileError("checkpoint", f"{len(missing)} tensors are missing: {shown}")
        return dict(sorted(plan.items(), key=lambda item: _model_order(item[0])))

    def _named(
        self, tensors: Iterable[StoredTensor], splits: Mapping[str, Mapping[str, View]]
    ) -> Iterable[tuple[str, StoredTensor]]:
        """Yield each GGUF name with its tensor, stacked or split as the family says."""
        stacks: dict[str, dict[int, StoredTensor]] = {}
        for tensor in self.gather(tensors):
            template, numbers = self._template(tensor.name)
            stem, _, leaf = template.rpartition(".")
            whole = template.format(*numbers)
            if template in splits or whole in splits:
                for name, cut in splits[template if template in splits else whole].items():
                    yield name.format(*numbers), viewed(tensor, cut)
            elif stem in self.stacks:
                name = f"{self.stacks[stem].format(numbers[0])}.{leaf}"
                stacks.setdefault(name, {})[int(numbers[1])] = tensor
            elif renamed := self.rename(tensor.name):
                yield renamed, tensor
        for name, members in stacks.items():
            if max(members) >= len(members):
                reason = f"{len(members)} experts, the last with number {max(members)}"
                raise ModelFileError(name, reason)
            yield name, stacked([members[index] for index in range(len(members))])

    def _expected(
        self, parameters: Parameters, splits: Mapping[str, Mapping[str, View]], *, tied: bool
    ) -> Iterable[str]:
        cut = [name for parts in splits.values() for name in parts]
        for name in [*self.names.values(), *self.stacks.values(), *cut]:
            if name in self.optional or (tied and name == "output"):
                continue
            leaf = "" if name in cut or name.endswith((".weight", ".bias")) else ".weight"
            owner = next((key for prefix, key in _OWNERS.items() if name.startswith(prefix)), "")
            count = parameters[f"{owner}block_count"]
            if "{}" not in name:
                yield name + leaf
            elif isinstance(count, int):
                yield from (name.format(index) + leaf for index in range(count))


def template_of(name: str) -> str:
    """Return a tensor's name with `{}` in place of its numbers."""
    return _NUMBER.sub(".{}.", name)


def with_model_prefix(tensors: Iterable[StoredTensor], family: Family) -> list[StoredTensor]:
    """Return the tensors of a model that was saved without its head under their usual names."""
    held = list(tensors)
    is_bare = any(tensor.name == "embed_tokens.weight" for tensor in held)
    if not is_bare or "model.embed_tokens" not in family.names:
        return held
    bare = ("embed_tokens.", "layers.", "norm.", "embedding_norm.", "rotary_emb.")
    return [
        replace(each, name=f"model.{each.name}") if each.name.startswith(bare) else each
        for each in held
    ]


def _filled(values: Mapping[str, object], defaults: Mapping[str, object]) -> dict[str, object]:
    absent = {key: value for key, value in defaults.items() if values.get(key) is None}
    return {**values, **absent}


def _model_order(name: str) -> tuple[int, int, str]:
    """Sort key in the order of the forward pass: embedding, layers, output, projector, tower."""
    heads = ["token_embd", "token_types", "position_embd", "token_embd_norm", "rope_freqs", "blk"]
    heads += ["output_norm", "output", "mm", "v"]
    number, head = _NUMBER.search(name), name.split(".")[0]
    place = heads.index(head) if head in heads else len(heads)
    return place, int(number[1]) if number else -1, name


def text_parameters(
    config: Config,
    *,
    scalings: tuple[str, ...],
    truncates: bool = True,
    rotated_part: float | None = None,
) -> Parameters:
    """Return the keys common to all decoders.

    Args:
        config: the text model's configuration.
        scalings: the supported types of RoPE scaling.
        truncates: as `Rope.metadata` takes it; False for gpt-oss only.
        rotated_part: the default of `partial_rotary_factor`; None: heads are rotated as a whole.
    """
    heads = config.integer("num_attention_heads")
    key_value_heads = config.integer("num_key_value_heads", heads)
    if heads % key_value_heads:
        reason = f"{heads} heads are not a multiple of {key_value_heads}"
        raise config.error("num_key_value_heads", reason)
    embedding = config.integer("hidden_size")
    if "head_dim" not in config and embedding % heads:
        raise config.error("hidden_size", f"{embedding} is not a multiple of {heads} heads")
    head_size = config.head_size()
    if head_size % 2:
        raise config.error("head_dim", f"{head_size} is odd: RoPE rotates pairs")
    rope = read_rope(config, is_partial=rotated_part is not None)
    if rope.kind not in scalings:
        raise UnsupportedModelError(
            f"{rope.settings.where}: rope type {rope.kind!r} is not supported"
        )
    return {
        "vocab_size": config.integer("vocab_size"),
        "context_length": _context(config.integer("max_position_embeddings"), rope),
        "embedding_length": embedding,
        "block_count": config.layers(),
        "feed_forward_length": config.integer("intermediate_size"),
        "attention.head_count": heads,
        "attention.head_count_kv": key_value_heads,
        "attention.key_length": head_size,
        "attention.value_length": head_size,
        "attention.layer_norm_rms_epsilon": config.number("rms_norm_eps", 1e-6),
        "rope.dimension_count": _rotated(rope.settings, head_size, rotated_part),
        **rope.metadata(truncates=truncates),
    }


def rotated_features(config: Config, usual: float, *, layers: str = "full_attention") -> int:
    """Return how many features of each head RoPE rotates.

    Args:
        config: the text model's configuration.
        usual: the part of a head, if the configuration does not say.
        layers: as `read_rope` takes it.
    """
    rope = rope_settings(config)
    rope = rope.section(layers) if layers in rope else rope
    return _rotated(rope, config.head_size(), usual)


def _rotated(rope: Config, head_size: int, part: float | None) -> int:
    """Return how many features of a head are rotated."""
    if part is None:
        return head_size
    factor = rope.number("partial_rotary_factor", part)
    rotated = int(head_size * factor)
    if rotated % 2 or not 0 < rotated <= head_size:
        reason = f"{factor} of {head_size} features is not a number of pairs"
        raise rope.error("partial_rotary_factor", reason)
    return rotated


def _context(stated: int, rope: Rope) -> int:
    """Return the context; YaRN extends one that config.json states as it was before."""
    if rope.kind != "yarn":
        return stated
    original = rope.settings.integer("original_max_position_embeddings")
    return max(stated, int(original * rope.settings.number("factor")))


def with_window(parameters: Parameters, window: int | None) -> Parameters:
    """Add a sliding window over all layers, if it is smaller than the context."""
    length = parameters["context_length"]
    if window is None or (isinstance(length, int) and window >= length):
        return parameters
    return parameters | {"attention.sliding_window": window}
