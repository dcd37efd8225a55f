"""What models see equals what transformers' models see: embeddings, and texts with images.

The reference gets the images from transformers' own processors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.checkpoints import RECIPES, load_reference
from support.laboratory import Laboratory, TableGelu, in_depth
from support.running import TinyModel
from support.seeing import Seer, picture
from support.sights import SIGHTS, as_published

from tampu.ml import Backend, GGMLType
from tampu.ml.library import gg
from tampu.nn import Batch
from tampu.runner import encoder_cache as image_store

pytestmark = pytest.mark.parity

NAMES = list(SIGHTS)
WEIGHED = [
    "deepseek_ocr", "deepseek_ocr2", "glm_ocr", "internvl", "internvl_large", "lfm2_vl", "minicpmv",
    "paddleocr", "smolvlm",
]  # fmt: skip
TEXT = [11, 57, 200, 310, 42, 99]


def limit(name: str, pictures: int = 1) -> float:
    recipe = RECIPES[name]
    return 2e-3 if recipe.approximate or (recipe.approximate_tower and pictures) else 1e-5


@pytest.fixture(scope="module", autouse=True)
def published_mllama(laboratory: Laboratory) -> None:
    as_published(laboratory.reference("mllama"))


@pytest.fixture(scope="module")
def seer(backend: Backend, laboratory: Laboratory) -> Iterator[Callable[[str], Seer]]:
    seers: dict[str, Seer] = {}

    def seer(name: str) -> Seer:
        if name not in seers:
            seers[name] = Seer(backend, laboratory.file(name))
        return seers[name]

    yield seer
    for each in seers.values():
        each.close()


@pytest.mark.seed("S50", "S51", "S52")
@pytest.mark.parametrize("name", in_depth(NAMES))
@pytest.mark.parametrize("size", [(100, 150), (300, 90), (40, 30), (230, 230)])
def test_the_embedding_of_an_image(
    laboratory: Laboratory, seer: Callable[[str], Seer], name: str, size: tuple[int, int]
) -> None:
    image = picture(*size)
    sight = SIGHTS[name]
    with torch.no_grad():
        expected = sight.embed(laboratory.reference(name), Image.fromarray(image))
    ours = seer(name).see(image)
    laboratory.compare(name, ours, expected, "F32, embedding of a picture", limit(name))


@pytest.mark.parametrize("name", in_depth(NAMES))
def test_the_embedding_of_an_image_with_half_precision_weights(
    laboratory: Laboratory, backend: Backend, name: str
) -> None:
    image = picture(100, 150)
    with torch.no_grad():
        expected = SIGHTS[name].embed(laboratory.reference(name), Image.fromarray(image))
    seer = Seer(backend, laboratory.file(name, "F16"))
    ours = seer.see(image)
    seer.close()
    laboratory.compare(name, ours, expected, "F16, embedding of a picture", 3e-3)


@pytest.mark.parametrize(
    "name", in_depth(name for name in NAMES if RECIPES[name].approximate_tower)
)
def test_the_table_of_the_activation_explains_the_towers_error(
    laboratory: Laboratory, seer: Callable[[str], Seer], name: str
) -> None:
    """What is left are arguments that round to the other neighbour."""
    model: Any = load_reference(name, laboratory.checkpoint(name))
    for part, module in model.named_modules():
        for activation in ("act_fn", "activation_fn"):
            if hasattr(module, activation) and "vis" in part and part.endswith(".mlp"):
                setattr(module, activation, TableGelu())
    image = picture(100, 150)
    with torch.no_grad():
        expected = SIGHTS[name].embed(model, Image.fromarray(image))
    ours = seer(name).see(image)
    what = "F32, embedding of a picture, same table of GELU"
    laboratory.compare(name, ours, expected, what, 2e-4)


@pytest.mark.parametrize("name", in_depth(WEIGHED))
def test_every_weight_of_an_encoder_matters(laboratory: Laboratory, name: str) -> None:
    """But for biases of keys, which change no softmax: what is compared depends on all others."""
    model, sight = load_reference(name, laboratory.checkpoint(name)), SIGHTS[name]
    shown = sight.small or [sight.process([Image.fromarray(picture(40, 30))])]
    with torch.no_grad():
        expected = [sight.embed_processed(model, inputs) for inputs in shown]
        for part, weight in model.named_parameters():
            if part.startswith(("model.text_model", "model.language_model", "lm_head")):
                continue
            values = weight.clone()
            weight.zero_()
            is_seen = any(
                np.abs(sight.embed_processed(model, inputs) - before).max() > 1e-2
                for inputs, before in zip(shown, expected, strict=True)
            )
            weight.copy_(values)
            assert is_seen or part.endswith("k_proj.bias"), part


@pytest.mark.seed("S60", "S61", "S94", "S99")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [*(pytest.param(n, marks=pytest.mark.slow) for n in (0, 1)), 2])
def test_logits_of_a_text_with_images(
    laboratory: Laboratory, seer: Callable[[str], Seer], name: str, count: int
) -> None:
    sight = SIGHTS[name]
    images = [picture(100, 150), picture(90, 60, seed=1)][:count]
    parts: list[list[int] | np.ndarray] = [[1, 33, 34, 35]]
    for image in images:
        parts += [image, TEXT]
    parts.append(TEXT[::-1])
    ours = seer(name)
    stream = ours.stream(parts)
    with torch.no_grad():
        expected = sight.read(
            laboratory.reference(name),
            stream.tokens,
            [Image.fromarray(image) for image in images],
        )
    found = ours.logits(parts)
    laboratory.compare(
        name, found, expected, f"F32, text with {count} pictures", limit(name, count)
    )


@pytest.mark.seed("S16", "S18", "S31", "S46", "S47", "S48", "S62")
@pytest.mark.parametrize("name", in_depth(NAMES))
@pytest.mark.parametrize("chunk", [None, 40, 1])
def test_the_engine_computes_a_text_with_images(
    laboratory: Laboratory, name: str, chunk: int | None
) -> None:
    """As above, but by the runner: at once, in chunks that images cross, input by input."""
    sight = SIGHTS[name]
    images = [picture(100, 150), picture(90, 60, seed=1)]
    with laboratory.engine(name) as engine:
        prompt: list[Any] = [
            1,
            33,
            *(engine.prepare_image(image) for image in images),
            *TEXT,
            *TEXT[::-1],
        ]
        ours = engine.logits(prompt, chunk=chunk)
    stream_of = [token for part in prompt for token in _tokens(part)]
    with torch.no_grad():
        pictures = [Image.fromarray(image) for image in images]
        expected = sight.read(laboratory.reference(name), stream_of, pictures)
    what = f"F32, text with {len(images)} pictures"
    laboratory.compare(name, ours, expected, what, limit(name))


@pytest.mark.seed("S62")
@pytest.mark.parametrize("name", in_depth(NAMES))
def test_an_encoder_in_pieces_gives_the_same_embeddings(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A layer at a time, as towers of real size are computed; to the bit."""
    image = picture(100, 150)
    found = []
    for rows in (image_store.CHUNK_ROWS, 1):
        monkeypatch.setattr(image_store, "CHUNK_ROWS", rows)
        with laboratory.engine(name) as engine:
            seen = engine.prepare_image(image)
            found.append(engine.logits([1, seen, *TEXT]))
    np.testing.assert_array_equal(found[0], found[1])


def _tokens(part: Any) -> list[int]:
    return [part] if isinstance(part, int) else part.item.placeholders.tokens.tolist()


@pytest.mark.seed("S15", "S18")
@pytest.mark.parametrize("name", in_depth(NAMES))
def test_the_graph_of_a_text_uses_no_weight_of_the_vision_tower(
    laboratory: Laboratory, backend: Backend, name: str
) -> None:
    """An image's embedding is an input there; who computed it is not in the graph."""
    loaded = TinyModel(backend, laboratory.file(name))
    context, width = backend.context(), loaded.model.positions_per_token
    number, outputs = (context.input(each, (5,), GGMLType.I32) for each in ("tokens", "outputs"))
    positions = context.input("positions", (5,) if width == 1 else (width, 5), GGMLType.I32)
    embedded: tuple[Any, ...] = ()
    if name != "mllama":  # its images lie beside the text
        parts = 1 + getattr(loaded.model.options, "deepstack", 0)
        images = context.input("images", (2, 128 * parts), GGMLType.F32)
        embedded = (images, context.input("rows", (2,), GGMLType.I64))
    spans = next(loaded.cache.views_by_fill(5))
    graph = loaded.cache.build(context, 5, spans)
    batch = Batch(number, positions, outputs, *embedded)
    context.output(loaded.model.head(loaded.model.hidden(batch, graph.layers)))
    nodes = [
        gg.ggml_graph_node(context.graph, index).contents
        for index in range(gg.ggml_graph_n_nodes(context.graph))
    ]
    read = {each.contents.name.decode() for node in nodes for each in node.src if each}
    assert any(each.startswith("blk.0.") for each in read)
    assert not [weight for weight in read if weight.startswith(("v.", "mm."))]
    context.close()
    loaded.close()
