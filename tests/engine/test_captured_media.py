"""Captured embeddings of pictures: rows of the encoder, whatever is cached or divided."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tampu.engine.engine import Engine
from tampu.errors import RequestError

PICTURE = Path("docs/picture.png").read_bytes()
POINTS = ["image_hidden_states", "hidden_states:0"]


@pytest.fixture(scope="module", params=[512, 16], ids=["whole", "divided"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    options: dict[str, Any] = {"context": 512, "threads": 1, "batch": request.param}
    with Engine.load("demo", **options) as engine:
        yield engine


def ask(*pictures: bytes) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "What color is the shape?", "images": [*pictures]}]


def turned() -> bytes:
    image, data = Image.open(io.BytesIO(PICTURE)), io.BytesIO()
    image.transpose(Image.Transpose.ROTATE_90).save(data, "PNG")
    return data.getvalue()


def places(rows: np.typing.NDArray[np.float32], states: np.typing.NDArray[np.float32]) -> list[int]:
    """Return where rows are among the states that the first layer reads."""
    distances = np.abs(states[:, None] - rows[None]).max(axis=-1)
    assert (distances.min(axis=0) < 1e-6).all()
    found: list[int] = distances.argmin(axis=0).tolist()
    return found


def test_the_first_layer_reads_the_embeddings_of_pictures(engine: Engine) -> None:
    found = engine.capture(ask(PICTURE, turned()), POINTS)
    assert [*found["image_hidden_states"]] == [0, 1]
    first, second = found["image_hidden_states"].values()
    [states] = found["hidden_states"].values()
    assert first.shape == second.shape
    assert not np.allclose(first, second)
    begin = places(first, states)[0]
    assert np.allclose(states[begin : begin + len(first)], first, atol=1e-6)
    assert places(second, states)[0] > begin


def test_a_picture_in_the_cache_is_captured_too(engine: Engine) -> None:
    expected = engine.capture(ask(PICTURE), "image_hidden_states")["image_hidden_states"][0]
    capture = {"points": ["image_hidden_states"], "positions": [-1]}
    for _ in range(2):
        done = engine.chat(ask(PICTURE), capture=capture, temperature=0)
        assert done.text == "Red."
        assert done.captured
        np.testing.assert_allclose(done.captured["image_hidden_states"][0], expected, atol=1e-6)


def test_a_picture_that_is_not_there_is_named(engine: Engine) -> None:
    with pytest.raises(RequestError, match="the model has no point 'image_hidden_states'"):
        engine.capture("What color?", "image_hidden_states")
    with pytest.raises(RequestError, match="layer 1 has no image_hidden_states"):
        engine.capture(ask(PICTURE), "image_hidden_states:1")
    with pytest.raises(RequestError, match="capture_file: image_hidden_states"):
        engine.capture_file("nowhere", [ask(PICTURE)], "image_hidden_states")
