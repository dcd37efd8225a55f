"""Points: found by the names of weights, seen by hooks while a graph is built."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.running import load_tiny

from tampu.ml import Backend, Tensor
from tampu.nn.module import Hook, Module
from tampu.nn.points import ModelPoints, Point


class Twice(Module):
    def __call__(self, x: int, add: int = 0) -> int:
        return 2 * x + add


class TwicePlusOne(Twice):
    def __call__(self, x: int, add: int = 0) -> int:
        return super().__call__(x, add) + 1


class Named(TwicePlusOne):
    """A part whose calls are those of its base."""


def test_a_hook_changes_the_input_and_the_output() -> None:
    part = Twice()
    part.hook = Hook(lambda x: x + 1, lambda y: y * 10)
    assert part(3, add=2) == 100
    part.hook = None
    assert part(3, add=2) == 8


@pytest.mark.parametrize("kind", [TwicePlusOne, Named])
def test_a_hook_sees_a_call_once_where_a_base_is_called_too(kind: type[Twice]) -> None:
    seen: list[int] = []
    part = kind()

    def see(y: int) -> int:
        seen.append(y)
        return y

    part.hook = Hook(on_output=see)
    assert part(3) == 7
    assert seen == [7]


def test_points_are_numbered_as_in_transformers(backend: Backend, tmp_path: Path) -> None:
    model = load_tiny(backend, tmp_path)
    points = ModelPoints(model.model)
    count = model.model.options.layers
    layers = tuple(range(count))
    assert points.layers == {
        "hidden_states": (*layers, count),
        "layer_outputs": layers,
        "attention_outputs": layers,
        "mixer_outputs": (),
        "mlp_outputs": layers,
        "router_logits": (),
        "router_indices": (),
        "attentions": layers,
        "conv_states": (),
        "recurrent_states": (),
        "image_hidden_states": (),
        "audio_hidden_states": (),
    }
    assert points.last == Point("hidden_states", count)
    model.close()


def test_no_hook_is_left_after_an_error(backend: Backend, tmp_path: Path) -> None:
    model = load_tiny(backend, tmp_path)
    points = ModelPoints(model.model)
    wanted = [Point(name, n) for name, of in points.layers.items() for n in of]

    def see(_: Point, value: Tensor) -> Tensor:
        return value

    def build() -> None:
        with points.seen(wanted, see):
            assert len(_hooks(model.model)) == 3 * model.model.options.layers
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        build()
    assert _hooks(model.model) == []
    model.close()


def _hooks(module: Module) -> list[Module]:
    parts = [p for v in vars(module).values() for p in (v if isinstance(v, list) else [v])]
    own = [module] if module.hook else []
    return own + [hook for part in parts if isinstance(part, Module) for hook in _hooks(part)]
