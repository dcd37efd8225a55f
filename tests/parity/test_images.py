"""Answers to prompts with images are those of transformers, however they are computed.

Of all kinds: embeddings whose rows see one another (Gemma 3), or are past to what follows, or have
positions of three coordinates (Qwen 2.5-VL), and images beside the text (Llama 3.2 Vision).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.checkpoints import RECIPES, SEEING_HYBRIDS
from support.laboratory import Laboratory, in_depth
from support.seeing import picture
from support.sights import SIGHTS, as_published

from tampu.engine.engine import Engine
from tampu.engine.input_processor import Prompt
from tampu.errors import ContextLengthError
from tampu.nn import RGBImage

pytestmark = pytest.mark.parity

NAMES = list(SIGHTS)
TEXT = [11, 57, 200, 310, 42, 99]
ONE, OTHER = picture(100, 150), picture(90, 60, seed=1)
TWIN = picture(100, 150, seed=2)  # as large as the first
COUNT = 6
STATES = 32  # a recurrent layer keeps a state after so many tokens

Parts = Sequence[int | RGBImage]
_REFERENCE = Lock()  # transformers' models answer one at a time


@pytest.fixture(scope="module", autouse=True)
def published_mllama(laboratory: Laboratory) -> None:
    as_published(laboratory.reference("mllama"))


def load(
    laboratory: Laboratory, name: str, context: int = 0, slots: int = 1, batch: int = 512
) -> Engine:
    path, context = laboratory.file(name), context or RECIPES[name].pictures_context
    return Engine.load(path, context=context, slots=slots, batch=batch, threads=1, cache_type="f32")


def stream_of(engine: Engine, parts: Parts) -> list[int]:
    """Return a prompt's tokens as they lie in the cache."""
    looked = [part if isinstance(part, int) else engine.prepare_image(part) for part in parts]
    tokens = [
        [each] if isinstance(each, int) else each.item.placeholders.tokens.tolist()
        for each in looked
    ]
    return [token for each in tokens for token in each]


def require_answer(
    laboratory: Laboratory, name: str, engine: Engine, parts: Parts, count: int = COUNT
) -> int:
    """Require that the answer is transformers'; return how many tokens were in the cache."""
    prompt: Prompt = [
        part if isinstance(part, int) else engine.prepare_image(part) for part in parts
    ]
    sight = SIGHTS[name]  # an answer has no image
    marks = [sight.image, sight.image if sight.laid is None else sight.laid]
    found = engine.generate(
        prompt,
        temperature=0.0,
        max_tokens=count,
        ignore_eos=True,
        logit_bias=dict.fromkeys(marks, -100.0),
    )
    assert len(found.tokens) == count
    stream = [*stream_of(engine, parts), *found.tokens]
    images = [Image.fromarray(part) for part in parts if not isinstance(part, int)]
    with _REFERENCE, torch.no_grad():
        rows = SIGHTS[name].read(laboratory.reference(name), stream, images)[-count - 1 : -1]
    rows[:, marks] = -np.inf
    best = np.sort(rows, axis=-1)[:, -2:]
    is_approximate = RECIPES[name].approximate or RECIPES[name].approximate_tower
    clear = best[:, 1] - best[:, 0] > (0.05 if is_approximate else 1e-3)
    assert clear.any()
    assert (rows.argmax(-1) == np.array(found.tokens))[clear].all()
    return found.usage.cached_tokens


@pytest.mark.seed("S31", "S33", "S34", "S62", "S78", "S81")
@pytest.mark.parametrize("name", in_depth(NAMES))
def test_concurrent_prompts_with_no_image_one_two_and_the_same_twice(
    laboratory: Laboratory, name: str
) -> None:
    prompts: list[Parts] = [
        [1, *TEXT, *TEXT],
        [1, ONE, *TEXT],
        [1, 33, OTHER, *TEXT, ONE, 57],
        [1, 34, ONE, *TEXT, ONE, *TEXT],
    ]
    with load(laboratory, name, slots=4) as engine, ThreadPoolExecutor(4) as pool:
        engine.generate([1], max_tokens=1)
        asked = [
            pool.submit(require_answer, laboratory, name, engine, prompt) for prompt in prompts
        ]
        for each in asked:
            each.result()


@pytest.mark.seed("S16", "S17", "S20", "S33", "S34", "S38", "S48")
@pytest.mark.parametrize("name", in_depth(NAMES))
@pytest.mark.parametrize("batch", [1, 8])
def test_an_image_larger_than_the_batch(laboratory: Laboratory, name: str, batch: int) -> None:
    with load(laboratory, name, batch=batch) as engine:
        require_answer(laboratory, name, engine, [1, 33, ONE, *TEXT, OTHER, 57])


@pytest.mark.parametrize("name", in_depth(NAMES))
def test_an_image_at_the_end_of_the_context(laboratory: Laboratory, name: str) -> None:
    parts: Parts = [1, *TEXT, ONE]
    with load(laboratory, name) as engine:
        length = len(stream_of(engine, parts))
    with load(laboratory, name, context=length + COUNT) as engine:
        require_answer(laboratory, name, engine, parts)
    with load(laboratory, name, context=length) as engine:
        prompt: Prompt = [1, 1, *TEXT, engine.prepare_image(ONE)]
        with pytest.raises(ContextLengthError, match=str(length + 1)):
            engine.generate(prompt, max_tokens=1)


@pytest.mark.seed("S44", "S53", "S54", "S55")
@pytest.mark.parametrize("name", in_depth(NAMES))
def test_a_prefix_with_an_image_is_reused(laboratory: Laboratory, name: str) -> None:
    is_hybrid = name in SEEING_HYBRIDS
    text = TEXT * 6 if is_hybrid else TEXT  # long enough for states before and behind the image
    with load(laboratory, name) as engine:
        before: list[Any] = [1, *text]
        behind: list[Any] = [ONE, *text[::-1]]
        whole = len(stream_of(engine, [*before, *behind]))
        assert require_answer(laboratory, name, engine, [*before, *behind, 17, 19]) == 0
        reused = require_answer(laboratory, name, engine, [*before, *behind, 12, 13])
        assert reused == (whole // STATES * STATES if is_hybrid else whole)
        # Another image of the same size, and one of another: nothing of the first is taken.
        for other in (TWIN, OTHER):
            reused = require_answer(laboratory, name, engine, [*before, other, *text[::-1]])
            marks = 3  # at most, before the image itself
            fewest = len(before) // STATES * STATES if is_hybrid else len(before)
            assert fewest <= reused <= len(before) + marks
