"""The points of a model at which values can be seen or changed, named as transformers names them.

    hidden_states      what layer i reads; after the last layer, what the head reads (normed)
    layer_outputs      what layer i returns
    attention_outputs  what the attention of layer i returns, before it is added
    mixer_outputs      the same of a recurrent part: Mamba, delta nets, short convolutions
    mlp_outputs        the same of the feed-forward part, or of the experts
    router_logits      the router's scores of all experts, before softmax or sigmoid
    router_indices     the experts that the router chose
    attentions         attention weights: of each query its softmax over the keys
    conv_states        what a recurrent part keeps of its last inputs, after a token
    recurrent_states   the rest of its state after a token
    image_hidden_states  what the projector returns for picture i of a prompt
    audio_hidden_states  the same for a piece of a sound

Every layer and every part of it is a module, so an architecture's file has no line for this: a hook
at the module sees the value where it leaves one part for the next. Which part is which follows from
the standard name of its last weight in the file. Attention weights and states are seen where layers
meet the cache, because no module returns them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from tampu.ml import Tensor
from tampu.nn.experts import ExpertLinear, Router
from tampu.nn.linear import Linear
from tampu.nn.model import CacheShape, LayerShape, Model, cache_parts
from tampu.nn.module import Hook, Module
from tampu.nn.norm import LayerNorm, RMSNorm, UnscaledLayerNorm

HIDDEN_STATES = "hidden_states"
LAYER_OUTPUTS = "layer_outputs"

_LAST_WEIGHTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "attention_outputs": ("attn_output", "cross_attn_o_proj"),
        "mixer_outputs": ("ssm_out", "shortconv.out_proj"),
        "mlp_outputs": ("ffn_down", "ffn_down_exps"),
    }
)
_ROUTER = "ffn_gate_inp"
ROUTER_LOGITS = "router_logits"
ROUTER_INDICES = "router_indices"
ATTENTIONS = "attentions"
STATES = ("conv_states", "recurrent_states")
"""The points of the states of a layer: of its convolutions, which are first, and of the last."""
IN_CACHE = frozenset({ATTENTIONS, *STATES})
"""The names of points that layers have at their caches."""

IMAGES = "image_hidden_states"
SOUNDS = "audio_hidden_states"
MEDIA = frozenset({IMAGES, SOUNDS})
"""The names of points that pictures and sounds have, not layers: encoders compute these values."""

NAMES = (
    HIDDEN_STATES, LAYER_OUTPUTS, *_LAST_WEIGHTS, ROUTER_LOGITS, ROUTER_INDICES, ATTENTIONS,
    *STATES, IMAGES, SOUNDS,
)  # fmt: skip
"""Of all points."""

ONLY_SEEN = frozenset({ROUTER_INDICES, *IN_CACHE, *MEDIA})
"""The names of points whose values can be seen and not changed."""


class Point(NamedTuple):
    """One point.

    Attributes:
        name: of its kind, in `NAMES`.
        layer: from 0; of a picture or a piece of a sound, its number in the prompt.
    """

    name: str
    layer: int

    def __str__(self) -> str:
        return f"{self.name}:{self.layer}"


See: TypeAlias = Callable[[Point, Tensor], Tensor]
"""Is given the value (rows, features) at a point, and returns what takes its place."""


class ModelPoints:
    """The points of one model, found by the names of its weights.

    Attributes:
        layers: the numbers of the layers that have a point of each name; none: the model has none.
    """

    def __init__(self, model: Model) -> None:
        """Find them."""
        found = _layers(model)
        parts = [_parts(layer, f"blk.{index}.") for index, layer in enumerate(found)]
        self._layers = found
        self._parts = {
            Point(name, index): part for index, own in enumerate(parts) for name, part in own
        }
        last = Point(HIDDEN_STATES, len(found))
        every = [
            *(Point(name, i) for name in (HIDDEN_STATES, LAYER_OUTPUTS) for i in range(len(found))),
            last,
            *self._parts,
            *_in_cache(model.cache_shapes()[: len(found)]),
        ]
        self.layers: Mapping[str, tuple[int, ...]] = {
            name: tuple(point.layer for point in every if point.name == name) for name in NAMES
        }

    @property
    def last(self) -> Point:
        """What the head reads: no module returns it, the code that builds the graph captures it."""
        return Point(HIDDEN_STATES, len(self._layers))

    @contextmanager
    def seen(self, points: Iterable[Point], see: See) -> Iterator[None]:
        """Have a function see the values at points, in what is built meanwhile.

        Those at `last` and in the cache are seen elsewhere. The values of a batch are those of all
        its tokens if its outputs are.
        """
        hooks: dict[int, tuple[Module, list[Point], list[Point]]] = {}
        for point in points:
            is_input = point.name == HIDDEN_STATES
            if point == self.last or point.name in IN_CACHE:
                continue
            module = self._parts.get(point) or self._layers[point.layer]
            _, inputs, outputs = hooks.setdefault(id(module), (module, [], []))
            (inputs if is_input else outputs).append(point)
        try:
            for module, inputs, outputs in hooks.values():
                module.hook = Hook(_all(inputs, see), _all(outputs, see))
            yield
        finally:
            for module, _, _ in hooks.values():
                module.hook = None


def final_norm(model: Model, x: Tensor) -> Tensor:
    """Return the output of a layer (rows, features) after the norm that comes before the head."""
    norm = vars(model).get("output_norm")
    if isinstance(norm, RMSNorm | LayerNorm | UnscaledLayerNorm):
        return norm(x, model.options.epsilon)
    return x


def _in_cache(shapes: Sequence[CacheShape]) -> Iterator[Point]:
    """Yield the points of layers with these caches."""
    for index, shape in enumerate(shapes):
        for part in cache_parts(shape):
            if isinstance(part, LayerShape):
                yield Point(ATTENTIONS, index)
            else:
                yield from (Point(STATES[i], index) for i in range(min(len(part.shapes), 2)))


def _all(points: list[Point], see: See) -> Callable[[Any], Any]:
    """Return a function that has all of these points seen."""

    def seen(value: Tensor) -> Tensor:
        for point in points:
            value = see(point, value)
        return value

    def seen_choice(value: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return seen(value[0]), value[1]

    is_choice = any(point.name == ROUTER_INDICES for point in points)
    return seen_choice if is_choice else seen


def _layers(model: Model) -> list[Module]:
    """Return the layers of a model in their order, without those of multi-token prediction."""
    lists = (value for value in vars(model).values() if isinstance(value, list))
    every = [each for values in lists for each in values if isinstance(each, Module)]
    return every[: model.options.layers]


def _parts(module: Module, prefix: str) -> Iterator[tuple[str, Module]]:
    """Yield a layer's parts with the names of their points; the first of a name is the layer's."""
    known: set[str] = set()
    for name, part in _candidates(module, prefix):
        if name not in known:
            known.add(name)
            yield name, part


def _candidates(module: Module, prefix: str) -> Iterator[tuple[str, Module]]:
    """Yield each module in another that has the last weight of a part, and routers."""
    for each in vars(module).values():
        if not isinstance(each, Module):
            continue
        if isinstance(each, Linear) and each.weight.name == f"{prefix}{_ROUTER}.weight":
            yield ROUTER_LOGITS, each
        if isinstance(each, Router):
            yield ROUTER_INDICES, each
        last = next((name for name in _LAST_WEIGHTS if _ends_with(each, prefix, name)), None)
        if last:
            yield last, each
        yield from _candidates(each, prefix)


def _ends_with(part: Module, prefix: str, name: str) -> bool:
    """Return whether a part itself has the last weight of parts with a point of this name."""
    wanted = {f"{prefix}{weight}.weight" for weight in _LAST_WEIGHTS[name]}
    own = (each for each in vars(part).values() if isinstance(each, Linear | ExpertLinear))
    return any(each.weight.name in wanted for each in own)
