"""Telling what a picture shows."""

from __future__ import annotations

import random
from typing import Any

from tools.train_demo import pictures
from tools.train_demo.turns import Pick, Turn, is_held_out, is_trained

_ASK_PICTURE: dict[str, tuple[str, ...]] = {
    "describe": ("What is in the picture?", "What do you see?", "Describe the picture.",
                 "Describe the image.", "What is in this image?", "What does the picture show?"),
    "colour": ("What colour is it?", "Which colour is the shape?", "What color is the shape?",
               "Which color is it?", "What colour is the object?"),
    "shape": ("What shape is it?", "Which shape is it?", "What shape is in the picture?",
              "What shape do you see?", "Which shape is in the image?"),
    "position": ("Where is it?", "Where is the shape?", "What is its position?",
                 "Where in the picture is it?", "Where is the object?"),
    "count": ("How many shapes?", "How many shapes are there?", "How many shapes do you see?",
              "How many shapes are in the picture?", "Count the shapes.",
              "How many objects are in the image?"),
}  # fmt: skip


def _one_shape(rng: random.Random, pick: Pick) -> pictures.Shape:
    while True:
        shape = pictures.Shape(
            rng.choice(list(pictures.COLOURS)), rng.choice(pictures.SHAPES), rng.randrange(9)
        )
        if pick(f"vision:{shape.colour}|{shape.shape}|{shape.position}"):
            return shape


def _many_shapes(rng: random.Random, pick: Pick) -> list[pictures.Shape]:
    while True:
        cells = sorted(rng.sample(range(9), rng.choice((1, 2, 2, 3, 3))))
        shapes = [
            pictures.Shape(rng.choice(list(pictures.COLOURS)), rng.choice(pictures.SHAPES), cell)
            for cell in cells
        ]
        dark = {"black", "blue", "purple"}
        if any(s.colour == "white" for s in shapes) and any(s.colour in dark for s in shapes):
            continue  # hardly any background would show them all
        if pick("vision:" + ",".join(f"{s.colour}|{s.shape}|{s.position}" for s in shapes)):
            return shapes


def trained_scene(rng: random.Random) -> list[pictures.Shape]:
    """The shapes of a picture that training may show."""
    if rng.random() < 0.4:
        return _many_shapes(rng, is_trained)
    return [_one_shape(rng, is_trained)]


def _picture_answer(kind: str, shapes: list[pictures.Shape]) -> str:
    s = shapes[0]
    if kind == "count":
        return str(len(shapes))
    if kind == "colour":
        return f"{s.colour.capitalize()}."
    if kind == "shape":
        return f"A {s.shape}."
    where = pictures.POSITIONS[s.position]
    if kind == "position":
        return f"{where.capitalize()}."
    article = "An" if s.colour == "orange" else "A"
    return f"{article} {s.colour} {s.shape} {where}."


def picture_turns(rng: random.Random, pick: Pick, count: int) -> list[Turn]:
    if rng.random() < 0.3:
        shapes, kinds = _many_shapes(rng, pick), ["count"]
    else:
        shapes = [_one_shape(rng, pick)]
        kinds = rng.sample(("describe", "colour", "shape", "position", "count"), min(count, 5))
        if pick is is_held_out and rng.random() < 0.5:
            kinds[-1] = "describe"
    image = pictures.draw(rng, shapes)
    turns = []
    for i, kind in enumerate(kinds):
        ask: Any = rng.choice(_ASK_PICTURE[kind])
        if i == 0:
            parts = [{"type": "image", "image": image}, {"type": "text", "text": ask}]
            ask = parts if rng.random() < 0.85 else parts[::-1]
        turns.append(Turn(ask, _picture_answer(kind, shapes), kind))
    return turns
