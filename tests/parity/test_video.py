"""What a model sees in a video equals what transformers' model sees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.checkpoints import RECIPES
from support.laboratory import Laboratory
from support.seeing import picture
from support.videos import Frames, scene, video

from tampu.chat.media import PreparedMedia
from tampu.engine.engine import Engine
from tampu.errors import RequestError
from tampu.vision.video import VideoSettings
from tampu.vision.video_decoding import decode_video

pytestmark = pytest.mark.parity

NAMES = ["qwen3vl", "qwen3vlmoe", "qwen35_seeing", "qwen35moe_seeing"]
TEXT = [11, 57, 200, 310, 42, 99]
IMAGE, VIDEO = 7, 500
SIDE, MERGE = 16, 2
SETTINGS = VideoSettings(2.0, 4, 768, SIDE * MERGE, 4096, 2 * 32 * 32 * 1280)


def patchified(frames: Frames) -> tuple[torch.Tensor, list[int]]:
    """Return `pixel_values_videos` and `video_grid_thw`, as Qwen3VLVideoProcessor's `patchify`."""
    count, height, width, _ = frames.shape
    rows, columns = height // SIDE, width // SIDE
    pixels = (frames.astype(np.float32) / 255 - 0.5) / 0.5
    cut = pixels.transpose(0, 3, 1, 2).reshape(
        count // 2, 2, 3, rows // MERGE, MERGE, SIDE, columns // MERGE, MERGE, SIDE
    )
    flat = cut.transpose(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(count // 2 * rows * columns, -1)
    return torch.from_numpy(np.ascontiguousarray(flat)), [count // 2, rows, columns]


def prepared_video(engine: Engine, data: bytes) -> PreparedMedia:
    found = engine.prepare_file(data)
    assert isinstance(found, PreparedMedia)
    return found


def tokens_of(items: list[Any]) -> list[int]:
    """Return transformers' tokens: other ones where a video's rows lie."""
    flat: list[Any] = []
    for item in items:
        flat += item.items if isinstance(item, PreparedMedia) else [item]
    found: list[int] = []
    for item in flat:
        if isinstance(item, int):
            found.append(item)
        else:
            held = item.item.placeholders
            found += np.where(held.embedded, VIDEO, held.tokens).tolist()
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chunk", [pytest.param(None, marks=pytest.mark.slow), 20])
def test_logits_of_a_text_with_videos(laboratory: Laboratory, name: str, chunk: int | None) -> None:
    """Two, one of them with an odd number of frames."""
    files = [video(scene(25)), video(scene(9, 64, 64, seed=1), fps=4)]
    with laboratory.engine(name) as engine:
        prepared = [prepared_video(engine, file) for file in files]
        prompt: list[Any] = [1, 33, prepared[0], *TEXT, prepared[1], *TEXT[::-1]]
        ours = engine.logits(prompt, chunk=chunk)
    ids = torch.tensor([tokens_of(prompt)])
    parts = [patchified(decode_video(file, SETTINGS).frames) for file in files]
    with torch.no_grad():
        theirs = laboratory.reference(name)(
            input_ids=ids,
            pixel_values_videos=torch.cat([pixels for pixels, _ in parts]),
            video_grid_thw=torch.tensor([grid for _, grid in parts]),
            mm_token_type_ids=(ids == VIDEO).long() * 2,
        ).logits[0]
    limit = 2e-3 if RECIPES[name].approximate_tower else 1e-5
    laboratory.compare(name, ours, theirs.float().numpy(), "F32, text with 2 videos", limit)


def test_frames_have_their_times_and_share_nothing_with_images(laboratory: Laboratory) -> None:
    frames = scene(25)
    with laboratory.engine("qwen3vl") as engine:
        found = prepared_video(engine, video(frames))
        texts = [list[int]()]
        for item in found.items:
            if isinstance(item, int):
                texts[-1].append(item)
            else:
                texts.append([])
        assert [engine.tokenizer.decode(each) for each in texts] == [
            "<0.3 seconds>", "<1.5 seconds>", "<2.4 seconds>", "",
        ]  # fmt: skip
        pairs = [item for item in found.items if not isinstance(item, int)]
        numbers = [pair.number for pair in pairs]
        numbers.append(engine.prepare_image(frames[0]).number)
        assert len(set(numbers)) == 4
        assert len(found) == len(found.tokens) == sum(map(len, pairs)) + sum(map(len, texts))


def test_a_conversation_with_a_video_and_an_image_is_answered(laboratory: Laboratory) -> None:
    """Again, its prefix comes from the cache."""
    data = video(scene(12), "mp4")
    messages = [{"role": "user", "content": "What is this?", "images": [data, picture(64, 64)]}]
    with laboratory.engine("qwen3vl") as engine:
        first = engine.chat(messages, max_tokens=4, temperature=0)
        again = engine.chat(messages, max_tokens=4, temperature=0)
        assert first.text == again.text
        assert again.usage.cached_tokens > len(prepared_video(engine, data))


def test_models_that_take_no_videos_say_so(laboratory: Laboratory) -> None:
    data = video(scene(4))
    messages = [{"role": "user", "content": "x", "images": [data]}]
    for name, message in (("gemma3_vision", "takes no videos, only images"), ("qwen3", "vision")):
        with laboratory.engine(name) as engine, pytest.raises(RequestError, match=message):
            engine.chat(messages)
