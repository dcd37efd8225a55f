"""Captured embeddings of pictures and sounds equal those of transformers, and steered texts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.checkpoints import HEARING, RECIPES
from support.hearing import HEARINGS
from support.laboratory import Laboratory, in_depth, relative_error
from support.observing import layers_of, observing
from support.seeing import picture
from support.sights import SIGHTS, as_published
from support.sounds import sound

from tampu.chat.media import PreparedMedia, token_ids
from tampu.runner.layout import NumberedMedia
from tampu.runner.steering_options import Steering

pytestmark = pytest.mark.parity

TEXT = [40, 57, 200, 310, 42, 99]
# More than is encoded at once, and less than a token; together they fit the context.
SOUNDS = [sound(8.7), sound(0.03, 1)]


def limit(name: str) -> float:
    """Where ggml takes the GELU of the text from a table, the encoder's is from it too."""
    recipe = RECIPES[name]
    return 2e-3 if recipe.approximate or recipe.approximate_tower else 1e-5


@pytest.mark.parametrize("name", HEARING)
def test_captured_embeddings_of_sounds_are_those_of_transformers(
    laboratory: Laboratory, name: str
) -> None:
    prompt: list[Any] = [1, 33]
    parts = []
    with laboratory.engine(name) as engine:
        for each in SOUNDS:
            prepared = engine.prepare_file(each)
            assert isinstance(prepared, PreparedMedia)
            parts.append(sum(isinstance(item, NumberedMedia) for item in prepared.items))
            prompt += [prepared, *TEXT]
        found = engine.capture(prompt, "audio_hidden_states")["audio_hidden_states"]
    assert [*found] == [*range(sum(parts))]
    rows = iter(found.values())
    for heard, count in zip(SOUNDS, parts, strict=True):
        ours = np.concatenate([next(rows) for _ in range(count)])
        with torch.no_grad():
            expected = HEARINGS[name].embed(laboratory.reference(name), heard)
        error = relative_error(ours, expected[:, : ours.shape[1]])
        assert error <= limit(name), f"{name}: {error:.1e}"


@pytest.mark.parametrize("name", in_depth([name for name in SIGHTS if name != "mllama"]))
def test_captured_embeddings_of_pictures_are_those_of_transformers(
    laboratory: Laboratory, name: str
) -> None:
    pictures = [picture(100, 150), picture(90, 60, seed=1)]
    with laboratory.engine(name) as engine:
        first, second = (engine.prepare_image(each) for each in pictures)
        prompt: list[Any] = [1, 33, first, *TEXT, second, *TEXT]
        found = engine.capture(prompt, "image_hidden_states")["image_hidden_states"]
    assert [*found] == [0, 1]
    for shown, ours in zip(pictures, found.values(), strict=True):
        with torch.no_grad():
            expected = SIGHTS[name].embed(laboratory.reference(name), Image.fromarray(shown))
        error = relative_error(ours, expected[:, : ours.shape[1]])
        assert error <= limit(name), f"{name}: {error:.1e}"


def test_captured_values_of_layers_that_attend_to_a_picture_are_those_of_transformers(
    laboratory: Laboratory,
) -> None:
    """Tokens before it attend to none, and so do texts without one, for which they do nothing."""
    shown, reference = picture(100, 150), laboratory.reference("mllama")
    names = ["layer_outputs", "attention_outputs", "mlp_outputs"]
    with laboratory.engine("mllama") as engine:
        prompt: list[Any] = [1, 33, engine.prepare_image(shown), *TEXT]
        found = engine.capture(prompt, ["hidden_states", *names])
        text = engine.capture([1, 33, *TEXT], ["hidden_states", "layer_outputs"])
    ids = [*token_ids(prompt)]
    with observing(as_published(reference), len(ids)) as expected:
        SIGHTS["mllama"].read(reference, ids, [Image.fromarray(shown)])
    for name in names:
        assert [*found[name]] == [*expected[name]] == [0, 1, 2, 3]
        for layer, rows in expected[name].items():
            first = 0 if name == "layer_outputs" else 2  # theirs hides the others later
            error = relative_error(found[name][layer][first:], rows[first:])
            assert error <= limit("mllama"), f"{name}:{layer}: {error:.1e}"
    for layer in (1, 3):
        assert np.abs(found["layer_outputs"][layer] - found["hidden_states"][layer]).max() > 0.01
        assert np.array_equal(text["layer_outputs"][layer], text["hidden_states"][layer])


@pytest.mark.parametrize("name", HEARING)
def test_steered_logits_of_a_text_with_a_sound_are_those_of_transformers(
    laboratory: Laboratory, name: str
) -> None:
    reference, heard = laboratory.reference(name), sound(1.5)
    layer = layers_of(reference)[1]
    with laboratory.engine(name) as engine:
        prompt: list[Any] = [1, 33, engine.prepare_file(heard), *TEXT]
        plain = engine.capture(prompt, "layer_outputs:1")["layer_outputs"][1]
        size = np.sqrt((plain**2).mean())
        vector = np.random.default_rng(0).standard_normal(plain.shape[1:], np.float32) * size
        steering = Steering.add("layer_outputs:1", vector, 0.5)
        ours = engine.logits(prompt, steering=steering)

    def add(_module: object, _given: object, result: Any) -> Any:
        if isinstance(result, tuple):
            return (result[0] + 0.5 * torch.tensor(vector), *result[1:])
        return result + 0.5 * torch.tensor(vector)

    hook = layer.register_forward_hook(add)
    with torch.no_grad():
        expected = HEARINGS[name].read(reference, [*token_ids(prompt)], [heard])
        hook.remove()
        unsteered = HEARINGS[name].read(reference, [*token_ids(prompt)], [heard])
    assert relative_error(expected, unsteered) > 0.05
    most = 2e-3 if RECIPES[name].approximate else 1e-5
    laboratory.compare(name, ours, expected, "steered, a sound", most)
