"""Tiny checkpoints of each architecture, made with transformers as a publisher would save them.

A recipe is in the module of its kind.
"""

from __future__ import annotations

import functools
from importlib.metadata import version
from pathlib import Path

import torch
import transformers
from support.checkpoints import (
    dense,
    encoders,
    experts,
    latent,
    layer_norm,
    pictures,
    sounds,
    state_space,
    text,
)
from support.checkpoints.making import make
from support.checkpoints.others import FOR_LLAMA_CPP, RANKERS
from support.checkpoints.published import REFERENCE, use_alibi
from support.checkpoints.recipe import CONTEXT, SEED, VOCABULARY, Recipe
from support.checkpoints.weights import draw_weights
from support.made_once import key_of, made_once
from transformers import PreTrainedModel

__all__ = [
    "CONTEXT",
    "DECODERS",
    "ENCODERS",
    "FAMILIES",
    "FOR_LLAMA_CPP",
    "HYBRIDS",
    "RANKERS",
    "RECIPES",
    "SEED",
    "SEEING_HYBRIDS",
    "SEEN_ONLY",
    "VOCABULARY",
    "Recipe",
    "draw_weights",
    "load_reference",
    "make_checkpoint",
    "recipe_of",
]

transformers.utils.logging.disable_progress_bar()

# Architectures made of the same parts as others, which `test_families` compares.
FAMILIES: dict[str, Recipe] = {
    **dense.RECIPES,
    **experts.RECIPES,
    **latent.RECIPES,
    **layer_norm.RECIPES,
    **state_space.RECIPES,
}
_IN_DEPTH = text.RECIPES | pictures.RECIPES
ENCODERS: dict[str, Recipe] = encoders.RECIPES  # `test_encoders` compares these
HEARING: dict[str, Recipe] = sounds.RECIPES  # `test_audio` compares these
RECIPES: dict[str, Recipe] = _IN_DEPTH | FAMILIES | ENCODERS | HEARING | encoders.SEEING

# These are compared with pictures only: their text is that of qwen35moe, of gemma4 or gemma4_small.
SEEN_ONLY = ("gemma4_seeing", "gemma4_small_seeing", "gemma4_unified_seeing", "qwen35moe_seeing")
DECODERS = [name for name in _IN_DEPTH if name not in ("bert", *SEEN_ONLY)]
HYBRIDS = [  # with recurrent layers
    "lfm2",
    "qwen35",
    "qwen35_seeing",
    "qwen35moe",
    "qwen35moe_seeing",
    "qwen3next",
]
SEEING_HYBRIDS = [  # with pictures
    "qwen35_seeing",
    "qwen35moe_seeing",
    "lfm2_vl",
    "minicpmv",
    "nemotron_omni",
]


def make_checkpoint(name: str, folder: Path) -> Path:
    """Write the checkpoint `name` to `folder` and return the folder."""
    return made_once(_key(name), name, folder, functools.partial(make, recipe_of(name)))


def _key(name: str) -> str:
    """Return a hash of all that a checkpoint depends on."""
    versions = [f"{each} {version(each)}" for each in ("torch", "transformers", "tokenizers")]
    recipe = recipe_of(name)
    sources = ["tests/support/checkpoints/making.py"]
    if recipe.model is not None:  # a class of the tests' own
        sources.append(f"tests/{recipe.model.__module__.replace('.', '/')}.py")
    return key_of(sources, [*versions, repr(recipe)])


def load_reference(name: str, folder: Path) -> PreTrainedModel:
    """Return transformers' model of a checkpoint, in float32 with plain attention."""
    recipe = recipe_of(name)
    model = recipe.model_class.from_pretrained(
        folder / REFERENCE if recipe.published or recipe.layout else folder,
        dtype=torch.float32,
        attn_implementation="eager",
    )
    if recipe.layout:
        use_alibi(model, recipe.layout)
    return model.eval()


def recipe_of(name: str) -> Recipe:
    """Return what a checkpoint is made of."""
    return (RECIPES | FOR_LLAMA_CPP | RANKERS | encoders.RANKERS)[name]
